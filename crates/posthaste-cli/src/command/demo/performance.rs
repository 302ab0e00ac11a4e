//! The run itself, from the first order to the books being closed.

use std::time::{Duration, Instant};

use posthaste::{Backend, DeadLetterFilter, MAX_DEAD_LETTER_LIMIT, Outbox, OutboxHandle};
use sqlx::Pool;
use tokio::time::MissedTickBehavior;

use super::{
    interrupts::Interrupts,
    judge::Books,
    ledger::{self, Ledger, Process},
    observer::Observer,
    order::{Order, OrderId, QUEUE},
    producers::{Committed, Counts, Pace, Tills},
    second::Second,
    shop::{Shop, ShopTable},
    snapshot::Phase,
    stage::Stage,
    view::View,
    worker,
};
use crate::{Context, failure::Failure};

/// How often to look.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long nothing may happen at all before what is not delivered counts as lost. A lease, a back-off and a slow disk are shorter.
const STANDSTILL: Duration = Duration::from_secs(30);

/// What is needed to run it.
pub struct Performance<'a, DB: Shop> {
    pub stage: &'a Stage,
    pub table: &'a ShopTable,
    pub pool: &'a Pool<DB>,
    pub pace: Pace,
    pub kills: bool,
    pub view: &'a mut View,
    pub interrupts: Interrupts,
    pub context: &'a Context,
}

/// What it came to.
pub struct Played {
    pub books: Books,
    pub is_interrupted: bool,
    /// How long orders were placed.
    pub placing: Duration,
}

/// What is known when everything is delivered.
struct Delivered {
    began: u64,
    committed_at: Vec<Committed>,
    rolled_back: u64,
    kills: u64,
    is_interrupted: bool,
    placing: Duration,
}

impl<DB: Shop> Performance<'_, DB> {
    /// Whatever happens, nobody is at work on the tables afterwards.
    pub async fn play(mut self) -> Result<Played, Failure> {
        let path = self.stage.ledger();
        let ledger = Ledger::open(&path)?;
        let handle = worker::start(self.pool, &self.stage.tables, ledger, Process::Main, self.kills).await?;
        let outbox = handle.outbox();
        let observer = Observer::new(outbox.clone(), self.pool, handle.worker_id(), self.pace, &path);
        let played = match observer {
            Ok(mut observer) => self.deliver(&handle, &mut observer).await.map(|played| (played, observer)),
            Err(failure) => Err(failure),
        };
        handle.stop().await;
        let (delivered, observer) = played?;
        let books = self.close_books(&outbox, observer, delivered).await?;
        Ok(books)
    }

    /// Places orders until it is time to end, and waits until all are delivered.
    async fn deliver(
        &mut self,
        handle: &OutboxHandle<DB>,
        observer: &mut Observer<DB>,
    ) -> Result<Delivered, Failure> {
        let mut second = match self.kills {
            true => Some(Second::start(self.stage.workplace()).await?),
            false => None,
        };
        let (began, start) = (ledger::now(), Instant::now());
        observer.begin();
        let mut tills = Tills::open(&handle.outbox(), self.table, self.pace);
        let counts = std::sync::Arc::clone(&tills.counts);
        let is_interrupted = self.place(&mut tills, &mut second, observer).await?;
        let placing = start.elapsed();
        if let Some(second) = &mut second {
            second.kill().await?;
        }
        let kills = second.as_ref().map(|second| second.kills);
        self.drain(&counts, kills, is_interrupted, observer).await?;
        Ok(Delivered {
            began,
            committed_at: tills.into_committed(),
            rolled_back: counts.rolled_back(),
            kills: kills.unwrap_or_default(),
            is_interrupted,
            placing,
        })
    }

    /// Until the tills are closed; whether that is because somebody interrupted it.
    async fn place(
        &mut self,
        tills: &mut Tills,
        second: &mut Option<Second>,
        observer: &mut Observer<DB>,
    ) -> Result<bool, Failure> {
        let mut tick = ticks();
        let mut is_interrupted = false;
        loop {
            tokio::select! {
                closed = tills.closed() => {
                    closed?;
                    return Ok(is_interrupted);
                }
                () = self.interrupts.first(), if !is_interrupted => {
                    is_interrupted = true;
                    tills.close();
                }
                lived = lives(second.as_mut()) => {
                    lived?;
                    if let Some(second) = second {
                        second.kill().await?;
                        second.replace()?;
                    }
                }
                _ = tick.tick() => {
                    let kills = second.as_ref().map(|second| second.kills);
                    let snapshot = observer.look(&tills.counts, observer.placing(), kills).await?;
                    self.view.show(&snapshot, self.context)?;
                }
            }
        }
    }

    /// Until the outbox says that nothing is left to do, or nothing happens any more: then the books say what is lost.
    async fn drain(
        &mut self,
        counts: &Counts,
        kills: Option<u64>,
        is_interrupted: bool,
        observer: &mut Observer<DB>,
    ) -> Result<(), Failure> {
        let mut tick = ticks();
        let (mut progress, mut since) = ((0, 0, 0), Instant::now());
        loop {
            tick.tick().await;
            let phase = if is_interrupted { Phase::Interrupted } else { Phase::Draining };
            let mut snapshot = observer.look(counts, phase, kills).await?;
            if snapshot.progress() != progress {
                (progress, since) = (snapshot.progress(), Instant::now());
            }
            let is_over = snapshot.is_settled() || since.elapsed() >= STANDSTILL;
            if is_over {
                snapshot.phase = Phase::Done;
            }
            self.view.show(&snapshot, self.context)?;
            if is_over {
                return Ok(());
            }
        }
    }

    async fn close_books(
        &self,
        outbox: &Outbox<DB>,
        observer: Observer<DB>,
        delivered: Delivered,
    ) -> Result<Played, Failure> {
        let Delivered { began, committed_at, rolled_back, kills, is_interrupted, placing } = delivered;
        let filter = DeadLetterFilter::default().queue(QUEUE);
        let books = Books {
            began,
            committed: DB::orders(self.pool, self.table).await?,
            committed_at,
            rolled_back,
            deliveries: observer.into_deliveries()?,
            dead_letters: outbox.dead_letter_count(self.pool, &filter).await?,
            dead: dead(outbox, self.pool).await?,
            kills,
        };
        Ok(Played { books, is_interrupted, placing })
    }
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Until the second process is to be killed; if there is none, never.
async fn lives(second: Option<&mut Second>) -> Result<(), Failure> {
    match second {
        Some(second) => second.lives().await,
        None => std::future::pending().await,
    }
}

/// The orders that are dead letters.
async fn dead<DB: Backend>(outbox: &Outbox<DB>, pool: &Pool<DB>) -> Result<Vec<Option<OrderId>>, Failure> {
    let mut dead = Vec::new();
    let mut filter = DeadLetterFilter::default().queue(QUEUE).limit(MAX_DEAD_LETTER_LIMIT);
    loop {
        let page = outbox.dead_letter_list(pool, &filter).await?;
        let Some(last) = page.last() else { return Ok(dead) };
        filter = filter.after(last.id);
        dead.extend(page.iter().map(|letter| Order::of(&letter.payload).map(|order| order.id)));
    }
}
