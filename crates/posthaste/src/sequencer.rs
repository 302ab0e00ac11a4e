//! The worker that gives new messages their order. How a tick does that is the store's business; when to tick is ours.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use taskward::{CancellationToken, Directive, WorkerAction};
use tracing::Instrument;

use crate::{
    OutboxError, WorkerTuning,
    outage::Outage,
    store::{Horizon, NewsChannel, Store, Tick, Ticket},
    telemetry::{self, SequencerMetrics},
    vacuum::Waste,
    wake::Wake,
};

/// Under load, rows gather for so long between ticks, so that a tick and its commit serve many messages. An idle
/// sequencer answers at once.
const GATHER: Duration = Duration::from_millis(3);
/// So long if the last tick found as many as [`MANY`]: then each tick costs more in acquires and settlements of the
/// partitions it touches than the wait does.
const GATHER_MANY: Duration = Duration::from_millis(10);
const MANY: u64 = 4;
/// How long to stay away while another process ticks.
const BUSY: Duration = Duration::from_millis(5);

pub(crate) struct Sequencer<S> {
    pub(crate) store: S,
    pub(crate) wake: Wake,
    pub(crate) waste: Waste,
    pub(crate) tuning: WorkerTuning,
    pub(crate) max_inner_iterations: u32,
    pub(crate) channel: NewsChannel,
    pub(crate) outage: Outage,
    pub(crate) open: OpenTransactions,
    /// Another process ticks, since then or since that was last said.
    pub(crate) busy_since: Option<Instant>,
    /// When the last tick that found something began, and how much it found.
    pub(crate) last_find: Option<(Instant, u64)>,
    pub(crate) metrics: SequencerMetrics,
}

impl<S: Store> Sequencer<S> {
    /// Another process ticks. If that lasts, somebody should know.
    fn wait_for_others(&mut self) {
        let since = *self.busy_since.get_or_insert_with(Instant::now);
        let limit = self.store.timings().tick_warning;
        if since.elapsed() >= limit {
            tracing::warn!(
                "another process has held the tick for {limit:?}: until it ends, no process can sequence messages"
            );
            self.busy_since = Some(Instant::now());
        }
    }
}

impl<S: Store> Sequencer<S> {
    async fn tick(&self, began: Instant) -> Result<Tick, OutboxError> {
        let span = telemetry::tick();
        let (most, announces) = (self.tuning.batch_size, self.channel == NewsChannel::Notified);
        kill_point!(TickBefore);
        let mut tick = self.store.tick(most, announces).instrument(span.clone()).await;
        // A connection that ended while it was idle says so only now: the next is new.
        if tick.as_ref().is_err_and(OutboxError::is_retryable) {
            tick = self.store.tick(most, announces).instrument(span.clone()).await;
        }
        if let Ok(tick) = &tick {
            kill_point!(TickAfter if tick.taken > 0);
            telemetry::ticked(&span, tick.taken, tick.partitions.len());
            self.metrics.ticked(tick.taken, began);
        }
        tick
    }
}

impl<S: Store> WorkerAction for Sequencer<S> {
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let mut sequenced = 0;
        for _ in 0..self.max_inner_iterations {
            if let Some(last) = self.last_find {
                let gathered = last.0.elapsed();
                let gather = if last.1 >= MANY { GATHER_MANY } else { GATHER };
                let rest = gather.saturating_sub(gathered);
                if !rest.is_zero() && cancel.run_until_cancelled(tokio::time::sleep(rest)).await.is_none() {
                    break;
                }
            }
            self.open.extend(self.wake.take_tickets(), Instant::now());
            let began = Instant::now();
            let tick = match self.tick(began).await {
                Err(error) if error.is_retryable() => {
                    self.outage.noticed("sequencer", &error);
                    return Ok(Directive::Sleep(self.store.timings().unreachable, sequenced));
                }
                tick => tick?,
            };
            self.outage.is_over();
            if tick.needs_recovery {
                let recovered = self.store.recover().await?;
                tracing::warn!(
                    recovered,
                    "the outbox was restored from elsewhere; its waiting messages have their order now"
                );
                self.wake.ask_for_everything();
                continue;
            }
            if tick.is_busy {
                self.wait_for_others();
                return Ok(Directive::Sleep(BUSY, sequenced));
            }
            self.busy_since = None;
            self.open.forget(&tick.horizon, began);
            tick.partitions.iter().for_each(|id| self.wake.sequenced(*id));
            sequenced += tick.taken;
            if tick.taken > 0 {
                self.waste.ticked();
            }
            self.last_find = (tick.taken > 0).then_some((began, tick.taken));
            if !tick.has_more && tick.taken < u64::from(self.tuning.batch_size) {
                return Ok(match self.open.next_look(Instant::now()) {
                    Some(delay) => Directive::Sleep(delay, sequenced),
                    None => Directive::Idle(sequenced),
                });
            }
        }
        Ok(Directive::Proceed(sequenced))
    }
}

/// Producers' transactions that had not ended when last looked at, and since when they are known.
#[derive(Debug)]
pub(crate) struct OpenTransactions {
    since: BTreeMap<Ticket, Instant>,
    /// One that is open for this long is polled rarely.
    long: Duration,
}

impl OpenTransactions {
    pub(crate) const fn new(long: Duration) -> Self {
        Self { since: BTreeMap::new(), long }
    }

    fn extend(&mut self, tickets: Vec<Ticket>, now: Instant) {
        for ticket in tickets {
            // The last enqueue counts: it is then that the transaction gets ready to commit.
            self.since.insert(ticket, now);
        }
    }

    /// Forgets those that have ended; and, where that is not known of all, those that are known for long: news of them
    /// comes another way, if later.
    fn forget(&mut self, horizon: &Horizon, now: Instant) {
        let is_old = |since: Instant| horizon.is_vague() && now.saturating_duration_since(since) >= self.long;
        self.since.retain(|ticket, since| !horizon.has_passed(*ticket) && !is_old(*since));
    }

    /// When to look again: soon after an enqueue, then in 1, 2, 4 … ms; rarely at what has been open for long.
    fn next_look(&self, now: Instant) -> Option<Duration> {
        let youngest = self.since.values().max()?;
        let age = now.saturating_duration_since(*youngest);
        if age >= self.long {
            return Some(Duration::from_millis(150));
        }
        let at_most = if age < self.long / 2 { 10 } else { 25 };
        Some(age.clamp(Duration::from_millis(1), Duration::from_millis(at_most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_transaction_is_looked_at_ever_more_rarely() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let long = ms(1000);
        let mut open = OpenTransactions::new(long);
        assert_eq!(open.next_look(start), None);
        open.extend(vec![Ticket(7)], start);
        for (age, delay) in
            [(0, 1), (1, 1), (2, 2), (4, 4), (20, 10), (499, 10), (999, 25), (1000, 150), (100_000, 150)]
        {
            assert_eq!(open.next_look(start + ms(age)), Some(ms(delay)), "after {age} ms");
        }
        open.extend(vec![Ticket(9)], start + ms(5000));
        assert_eq!(open.next_look(start + ms(5002)), Some(ms(2)), "the youngest counts");
        open.forget(&Horizon::Seen(vec![9]), start);
        assert_eq!(open.next_look(start + ms(5002)), Some(ms(150)));
        open.forget(&Horizon::Seen(vec![]), start + long);
        assert_eq!(open.next_look(start), None, "nobody will ever say what became of it");
        open.extend(vec![Ticket(11)], start);
        open.forget(&Horizon::Snapshot { next: 11, open: vec![] }, start + 9 * long);
        assert_eq!(open.next_look(start), Some(ms(1)), "it is open, however long");
        open.forget(&Horizon::Everything, start);
        assert_eq!(open.next_look(start), None);
    }
}
