//! Looks at what happens: in the shop's books as they grow, and in the outbox.

use std::{
    collections::VecDeque,
    path::Path,
    time::{Duration, Instant},
};

use posthaste::{Backend, DeadLetterFilter, Outbox, WorkerId};
use sqlx::Pool;

use super::{
    ledger::{Delivery, LedgerReader, Process},
    order::{CUSTOMERS, QUEUE},
    producers::{Counts, Pace},
    snapshot::{Partition, Phase, Snapshot},
};
use crate::{failure::Failure, output::span};

/// What "of late" means for a rate.
const WINDOW: Duration = Duration::from_secs(2);

pub struct Observer<DB: Backend> {
    pub outbox: Outbox<DB>,
    pub pool: Pool<DB>,
    pub us: WorkerId,
    pub pace: Pace,
    began: Instant,
    reader: LedgerReader,
    deliveries: Vec<Delivery>,
    /// The latest order of each customer that was delivered: what is not later comes again.
    latest: Vec<u64>,
    delivered: u64,
    by_second: u64,
    recent: VecDeque<(Instant, u64)>,
}

impl<DB: Backend> Observer<DB> {
    pub fn new(
        outbox: Outbox<DB>,
        pool: &Pool<DB>,
        us: WorkerId,
        pace: Pace,
        ledger: &Path,
    ) -> Result<Self, Failure> {
        let (began, pool) = (Instant::now(), pool.clone());
        let (reader, latest) = (LedgerReader::open(ledger)?, vec![0; CUSTOMERS as usize]);
        let recent = VecDeque::from([(began, 0)]);
        Ok(Self {
            outbox,
            pool,
            us,
            pace,
            began,
            reader,
            deliveries: Vec::new(),
            latest,
            delivered: 0,
            by_second: 0,
            recent,
        })
    }

    /// Orders are placed from now on.
    pub fn begin(&mut self) {
        self.began = Instant::now();
        self.recent = VecDeque::from([(self.began, 0)]);
    }

    pub async fn look(
        &mut self,
        counts: &Counts,
        phase: Phase,
        kills: Option<u64>,
    ) -> Result<Snapshot, Failure> {
        let lags = self.outbox.lag().await?;
        let partitions = lags.iter().map(|lag| Partition::of(lag, self.us)).collect();
        let filter = DeadLetterFilter::default().queue(QUEUE);
        let dead_letters = self.outbox.dead_letter_count(&self.pool, &filter).await?;
        self.read()?;
        let (enqueued, rolled_back) = (counts.committed(), counts.rolled_back());
        let elapsed = self.began.elapsed();
        let share = match phase {
            Phase::Placing(_) => self.share(elapsed, enqueued + rolled_back),
            _ => 1.0,
        };
        let (delivered, rate) = (self.delivered, self.rate());
        Ok(Snapshot {
            elapsed,
            share,
            phase,
            enqueued,
            rolled_back,
            delivered,
            rate,
            dead_letters,
            kills,
            partitions,
        })
    }

    /// What it is that goes on while orders are placed.
    pub fn placing(&self) -> Phase {
        Phase::Placing(match (self.pace.time, self.pace.most) {
            (Some(time), _) => format!("of {}", span(time)),
            (None, Some(most)) => format!("until there are {most} orders"),
            (None, None) => String::new(),
        })
    }

    fn share(&self, elapsed: Duration, placed: u64) -> f64 {
        let time = self.pace.time.map_or(0.0, |time| elapsed.as_secs_f64() / time.as_secs_f64());
        let orders = self.pace.most.map_or(0.0, |most| placed as f64 / most as f64);
        time.max(orders).clamp(0.0, 1.0)
    }

    /// How many deliveries there are by second processes.
    pub fn by_second(&mut self) -> Result<u64, Failure> {
        self.read()?;
        Ok(self.by_second)
    }

    fn read(&mut self) -> Result<(), Failure> {
        for delivery in self.reader.read()? {
            if let Some(latest) = self.latest.get_mut(delivery.order.customer as usize)
                && delivery.order.number > *latest
            {
                *latest = delivery.order.number;
                self.delivered += 1;
            }
            self.by_second += u64::from(delivery.by == Process::Second);
            self.deliveries.push(delivery);
        }
        Ok(())
    }

    fn rate(&mut self) -> f64 {
        let now = Instant::now();
        self.recent.push_back((now, self.delivered));
        while self.recent.len() > 2 && self.recent.get(1).is_some_and(|(then, _)| now - *then >= WINDOW) {
            self.recent.pop_front();
        }
        let (then, before) = self.recent.front().copied().unwrap_or((now, 0));
        let seconds = (now - then).as_secs_f64();
        if seconds > 0.0 { (self.delivered - before) as f64 / seconds } else { 0.0 }
    }

    /// Everything that was delivered.
    pub fn into_deliveries(mut self) -> Result<Vec<Delivery>, Failure> {
        self.read()?;
        Ok(self.deliveries)
    }
}
