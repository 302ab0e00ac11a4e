//! The workers that give messages to handlers and settle: one a partition.
//!
//! Both modes go the same way: take the lease, then batch after batch until the partition is empty or the slice is over.
//! They differ in what a batch is: `leased.rs` calls the handler and then settles; `transactional.rs` does both in one
//! transaction.

mod leased;
mod poison;
pub(crate) mod settlement;
mod transactional;

use std::{
    any::Any,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use taskward::{CancellationToken, Directive, WorkerAction, panic_text};
use tokio::time::Instant;
use tracing::{Instrument, Span};
use uuid::Uuid;

use self::settlement::{Decision, Handled, Tally, decide};
#[cfg(test)]
pub(crate) use self::transactional::lost;
pub(crate) use self::{
    leased::AnyLeasedHandler,
    poison::Poison,
    transactional::{AnyTransactionalHandler, EachMessage, WholeBatch},
};
use crate::{
    HandlerResult, LeaseConfig, OutboxError, WorkerTuning,
    clock::Clock,
    limits::MAX_SAVEPOINTS,
    monitor::Busy,
    outage::Outage,
    pauses::Pauses,
    store::{Acquired, Claim, Handling, Leased, Queue, Settled, Store},
    telemetry,
    timings::Timings,
    vacuum::Waste,
};

/// How often a settlement that the database did not answer is tried again before the messages are given up to
/// redelivery.
const SETTLE_TRIES: u32 = 3;
/// How long to stay away after another worker was faster.
const RACED: Duration = Duration::from_millis(10);
/// How many messages a processor that adapts to the load takes; [`WorkerTuning::ADAPTIVE`] says the same.
const LEAST_ADAPTIVE: u32 = 100;
const MOST_ADAPTIVE: u32 = 500;

/// What a queue's processors have in common.
pub(crate) struct ProcessedQueue<S: Store> {
    pub(crate) queue: Arc<Queue>,
    pub(crate) mode: Mode<S>,
    pub(crate) lease: LeaseConfig,
    pub(crate) tuning: WorkerTuning,
    pub(crate) max_attempts: Option<u32>,
}

/// How the handler is called.
pub(crate) enum Mode<S: Store> {
    Leased(Arc<dyn AnyLeasedHandler>),
    Transactional { handler: Arc<dyn AnyTransactionalHandler<S::Db>>, timeout: Duration },
}

pub(crate) struct Processor<S: Store> {
    of: Arc<ProcessedQueue<S>>,
    partition_id: i32,
    /// Its number in the queue.
    partition: u32,
    shared: Shared<S>,
    claim: Claim,
    poison: Poison,
    /// The back-off after a retry: nothing cuts it short.
    not_before: Option<Instant>,
    /// Somebody else's transaction has the partition locked, since then or since that was last said.
    locked_since: Option<Instant>,
}

/// What all processors of a process have in common.
#[derive(Clone)]
pub(crate) struct Shared<S> {
    pub(crate) store: S,
    pub(crate) waste: Waste,
    /// Names this start of this process: whoever holds a lease under another name is somebody else.
    pub(crate) owner: Uuid,
    /// The grace period is over: a handler that still runs is dropped.
    pub(crate) out_of_grace: CancellationToken,
    pub(crate) outage: Outage,
    pub(crate) pauses: Pauses,
    /// By which messages are as old as they are.
    pub(crate) clock: Clock,
    pub(crate) busy: Busy,
}

/// The circumstances of a batch.
struct Turn<'t> {
    cancel: &'t CancellationToken,
    slice_ends: Instant,
    /// The time of a batch under this lease is up then.
    deadline: Instant,
    /// No more of it is to be begun: the queue is paused.
    is_closed: AtomicBool,
}

impl Turn<'_> {
    fn goes_on(&self) -> bool {
        !self.cancel.is_cancelled() && !self.is_closed() && Instant::now() < self.slice_ends
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Too late to begin: the process stops, the queue is paused, or the batch was so long on its way that its time is up.
    fn is_over(&self) -> bool {
        self.cancel.is_cancelled() || self.is_closed() || Instant::now() >= self.deadline
    }
}

/// How many messages are taken at once, and never more than these.
fn sizes(tuning: &WorkerTuning, most: u32) -> Poison {
    let threshold = tuning.degradation_threshold;
    match tuning.batch_size {
        WorkerTuning::ADAPTIVE => {
            Poison::new(LEAST_ADAPTIVE.min(most), threshold).adapting(MOST_ADAPTIVE.min(most))
        }
        size => Poison::new(size.min(most), threshold),
    }
}

impl<S: Store> Processor<S> {
    pub(crate) fn new(of: Arc<ProcessedQueue<S>>, partition_id: i32, shared: Shared<S>) -> Self {
        let (is_transactional, most) = match &of.mode {
            Mode::Transactional { handler, .. } if handler.is_per_message() => (true, MAX_SAVEPOINTS),
            Mode::Transactional { .. } => (true, u32::MAX),
            Mode::Leased(_) => (false, u32::MAX),
        };
        let poison = sizes(&of.tuning, most);
        let claim = Claim {
            partition_id,
            owner: shared.owner,
            lease: of.lease.duration,
            batch_size: poison.size(),
            handled_epoch: 0,
            is_transactional,
        };
        let partition = of.queue.number_of(partition_id);
        Self { of, partition_id, partition, shared, claim, poison, not_before: None, locked_since: None }
    }

    fn timings(&self) -> &Timings {
        self.shared.store.timings()
    }

    /// Acquires, then handles and settles batch after batch until the partition is empty or the slice is over.
    async fn work(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let mut handling = None;
        let result = self.work_on(cancel, &mut handling).await;
        if let Some(handling) = handling
            && let Err(error) = self.shared.store.give_back(handling, false).await
        {
            tracing::debug!(%error, "a handler's connection was lost after its use");
        }
        result
    }

    async fn work_on(
        &mut self,
        cancel: &CancellationToken,
        handling: &mut Option<Handling<S::Db>>,
    ) -> Result<Directive<u64>, OutboxError> {
        let slice_ends = Instant::now() + self.timings().processor_slice;
        let mut done = 0;
        // Counted from before the acquire: the database's clock started later.
        let mut asked = Instant::now();
        let moment = self.shared.pauses.now();
        let mut leased = match self.acquire().await? {
            Acquired::Batch(leased) => leased,
            Acquired::Empty => return Ok(Directive::Idle(0)),
            Acquired::Paused => {
                self.shared.pauses.began(&self.of.queue.name, moment);
                return Ok(self.paused().unwrap_or(Directive::Proceed(0)));
            }
            Acquired::Held(left) => return Ok(Directive::Sleep(left, 0)),
            Acquired::Locked => return Ok(self.locked()),
            Acquired::Raced => return Ok(Directive::Sleep(RACED, 0)),
        };
        loop {
            self.isolate_last_attempt(&mut leased);
            let deadline = asked + self.of.lease.handler_budget();
            let turn = Turn { cancel, slice_ends, deadline, is_closed: AtomicBool::new(false) };
            let of = Arc::clone(&self.of);
            let span = telemetry::batch(&of.queue.name, self.partition, &leased);
            let settled = match &of.mode {
                Mode::Leased(handler) => {
                    self.lease(&**handler, &leased, &turn).instrument(span.clone()).await?
                }
                Mode::Transactional { handler, timeout } => {
                    let transacting = self.transact(&**handler, *timeout, handling, &leased, &turn);
                    transacting.instrument(span.clone()).await?
                }
            };
            asked = settled.asked;
            if !matches!(settled.outcome, Settled::Lost) {
                done += self.count(&leased, settled.tally, &span);
            }
            match settled.outcome {
                Settled::Next(next) => leased = next,
                Settled::Released { has_more } => {
                    if has_more && cancel.is_cancelled() {
                        self.hand_over().await;
                    }
                    return Ok(self.rest(has_more, done));
                }
                Settled::Lost => return Ok(Directive::Sleep(RACED, done)),
            }
        }
    }

    /// Tells everybody what became of a batch; returns how many messages are settled.
    fn count(&self, leased: &Leased, tally: Tally, span: &Span) -> u64 {
        let Tally { settled, rejected, is_retry } = tally;
        let retried = if is_retry { leased.messages.len().saturating_sub(settled) } else { 0 };
        telemetry::ended(span, settled.saturating_sub(rejected), rejected, retried);
        let metrics = &self.of.queue.metrics;
        metrics.settled(leased.messages.get(..settled).unwrap_or_default(), rejected, &self.shared.clock);
        if is_retry {
            metrics.retried();
        }
        let messages = u64::try_from(settled).unwrap_or_default();
        self.shared.waste.settled(self.partition_id, messages);
        messages
    }

    /// A call that failed with several messages does not tell which of them is at fault. So the last attempt of the
    /// first message is made alone, in every process.
    fn isolate_last_attempt(&self, leased: &mut Leased) {
        let is_whole_batch =
            matches!(&self.of.mode, Mode::Transactional { handler, .. } if !handler.is_per_message());
        let is_last = self.of.max_attempts.is_some_and(|limit| leased.attempts >= limit);
        if is_whole_batch && is_last && leased.last_error.is_some() {
            leased.messages.truncate(1);
        }
    }

    async fn acquire(&mut self) -> Result<Acquired, OutboxError> {
        self.claim.batch_size = self.poison.size();
        kill_point!(AcquireBefore);
        let acquired = self.shared.store.acquire(&self.of.queue, &self.claim).await?;
        kill_point!(AcquireAfter if matches!(acquired, Acquired::Batch(_)));
        if !matches!(acquired, Acquired::Locked) {
            self.locked_since = None;
        }
        Ok(acquired)
    }

    /// A handler's transaction is open, longer than its lease. If that lasts, somebody should know.
    fn locked(&mut self) -> Directive<u64> {
        let since = *self.locked_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.timings().lock_warning {
            tracing::warn!(
                queue = &*self.of.queue.name,
                partition_id = self.partition_id,
                "a transaction has the partition locked, and its lease is over: a handler that is very slow, or one that \
                 left a prepared transaction behind",
            );
            self.locked_since = Some(Instant::now());
        }
        Directive::Sleep(self.timings().locked, 0)
    }

    /// Delivery stops for as long as the queue is paused, as far as is known.
    fn paused(&self) -> Option<Directive<u64>> {
        Some(Directive::Sleep(self.shared.pauses.left(&self.of.queue.name)?, 0))
    }

    /// Closes the batch if the queue is paused meanwhile, for which it looks now and then; never returns.
    async fn close_when_paused(&self, turn: &Turn<'_>) -> Infallible {
        let queue = &self.of.queue.name;
        loop {
            tokio::time::sleep(self.timings().pause_poll).await;
            let is_known = self.shared.pauses.left(queue).is_some();
            if is_known || matches!(self.shared.store.is_paused(queue).await, Ok(true)) {
                turn.is_closed.store(true, Ordering::Relaxed);
                return std::future::pending().await;
            }
        }
    }

    /// Others wait for the lease's end; they need not.
    async fn hand_over(&self) {
        if let Err(error) = self.shared.store.announce_released(self.partition_id).await {
            tracing::warn!(%error, "cannot tell other processes that a partition is free");
        }
    }

    /// What to do once the lease is let go.
    fn rest(&self, has_more: bool, done: u64) -> Directive<u64> {
        match self.not_before {
            Some(until) => Directive::Sleep(until.saturating_duration_since(Instant::now()), done),
            None if has_more => Directive::Proceed(done),
            None => Directive::Idle(done),
        }
    }

    fn decide(&self, leased: &Leased, handled: Handled, go_on: bool) -> Decision {
        decide(leased, handled, go_on, self.poison, &self.of.tuning, self.of.max_attempts)
    }

    /// Remembers a decision that the database knows of; not one that came too late.
    fn settled(&mut self, decision: &Decision, asked: Instant, outcome: Settled) -> BatchSettled {
        self.of.queue.metrics.settling_took(asked.elapsed());
        if matches!(outcome, Settled::Lost) {
            // Whoever settled knows better what comes next.
            tracing::warn!(
                queue = &*self.of.queue.name,
                partition_id = self.partition_id,
                epoch = decision.settlement.epoch,
                "nothing was settled: the lease was taken over, or an earlier try whose answer was lost had done it",
            );
        } else {
            self.poison = decision.poison;
            let backoff = decision.settlement.backoff;
            self.not_before = backoff.and_then(|backoff| Instant::now().checked_add(backoff));
        }
        BatchSettled { outcome, tally: decision.tally, asked }
    }

    fn settling(&self, decision: &Decision) -> Span {
        let Tally { settled, rejected, .. } = decision.tally;
        telemetry::settle(&self.of.queue.name, self.partition, settled, rejected)
    }

    /// Settles outside any transaction, and does not give up at once if the database does not answer: the handler's work
    /// is done.
    async fn settle(&mut self, decision: Decision) -> Result<BatchSettled, OutboxError> {
        self.claim.batch_size = decision.poison.size();
        let asked = Instant::now();
        let mut tries = 1;
        let span = self.settling(&decision);
        kill_point!(DeadLetterBefore if !decision.settlement.burials.is_empty());
        kill_point!(SettleBefore);
        let outcome = loop {
            let settling = self.shared.store.settle(&self.of.queue, &self.claim, &decision.settlement);
            match settling.instrument(span.clone()).await {
                Err(error) if error.is_retryable() && tries < SETTLE_TRIES => {
                    self.shared.outage.noticed("processor, settling", &error);
                    tokio::time::sleep(self.timings().unreachable * tries).await;
                    tries += 1;
                }
                result => break result?,
            }
        };
        kill_point!(SettleAfter);
        kill_point!(DeadLetterAfter if !decision.settlement.burials.is_empty());
        Ok(self.settled(&decision, asked, outcome))
    }
}

/// A batch that is settled.
struct BatchSettled {
    outcome: Settled,
    tally: Tally,
    /// When the database was asked: the next lease counts from before that.
    asked: Instant,
}

/// A panic is a retry with the panic's text.
fn judged(outcome: Result<HandlerResult, Box<dyn Any + Send>>) -> HandlerResult {
    outcome.unwrap_or_else(|panic| HandlerResult::Retry { reason: format!("panic: {}", panic_text(&*panic)) })
}

impl<S: Store> WorkerAction for Processor<S> {
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        if let Some(until) = self.not_before {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Ok(Directive::Sleep(left, 0));
            }
            self.not_before = None;
        }
        if let Some(paused) = self.paused() {
            return Ok(paused);
        }
        let mut result = self.work(cancel).await;
        // A connection that ended while it was idle says so only now, and takes the other idle ones along: the next is new.
        if result.as_ref().is_err_and(OutboxError::is_retryable) && !cancel.is_cancelled() {
            result = self.work(cancel).await;
        }
        match result {
            Err(error) if error.is_retryable() => {
                self.shared.outage.noticed("processor", &error);
                Ok(Directive::Sleep(self.timings().unreachable, 0))
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_batch_is_larger_than_its_mode_allows() {
        let adaptive = WorkerTuning::processor().batch_size(WorkerTuning::ADAPTIVE);
        for (tuning, first, last) in [
            (WorkerTuning::processor().batch_size(7), 7, 7),
            (WorkerTuning::processor().batch_size(1000), MAX_SAVEPOINTS, MAX_SAVEPOINTS),
            (adaptive, MAX_SAVEPOINTS, MAX_SAVEPOINTS),
        ] {
            let mut sizes = sizes(&tuning, MAX_SAVEPOINTS);
            assert_eq!(sizes.size(), first);
            for _ in 0..10 {
                sizes.succeeded(usize::MAX, 0);
            }
            assert_eq!(sizes.size(), last);
        }
        let mut sizes = sizes(&adaptive, u32::MAX);
        assert_eq!(sizes.size(), LEAST_ADAPTIVE);
        for _ in 0..10 {
            sizes.succeeded(usize::MAX, 0);
        }
        assert_eq!(sizes.size(), MOST_ADAPTIVE);
    }
}
