//! Leased mode: acquire and read, handle, settle and read on.
//!
//! The handler runs outside any transaction and holds no connection. Settling is guarded by the epoch and the owner: a
//! processor whose lease was taken over changes nothing.

use std::{
    any::Any,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use taskward::{CancellationToken, Directive, WorkerAction, catch_panic, panic_text};
use tokio::time::Instant;
use uuid::Uuid;

use super::Poison;
use crate::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, OutboxError, OutboxMessage, WorkerTuning,
    batch::{Retry, Verdict},
    error::storable,
    limits::{MAX_REASON, PROCESSOR_SLICE},
    outage::{Outage, UNREACHABLE},
    store::{Acquired, Burial, Claim, Leased, Queue, Settled, Settlement, Store},
};

/// How often a settlement that the database did not answer is tried again before the messages are given up to
/// redelivery.
const SETTLE_TRIES: u32 = 3;
/// How long to stay away after another worker was faster.
const RACED: Duration = Duration::from_millis(10);

/// A handler behind a pointer.
pub(crate) trait AnyLeasedHandler: Send + Sync {
    fn handle<'a>(
        &'a self,
        batch: &'a mut Batch<'_>,
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;
}

impl<H: LeasedHandler> AnyLeasedHandler for H {
    fn handle<'a>(
        &'a self,
        batch: &'a mut Batch<'_>,
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>> {
        Box::pin(LeasedHandler::handle(self, batch))
    }
}

pub(crate) struct LeasedProcessor<S> {
    store: S,
    queue: Arc<Queue>,
    claim: Claim,
    handler: Arc<dyn AnyLeasedHandler>,
    lease: LeaseConfig,
    tuning: WorkerTuning,
    max_attempts: Option<u32>,
    poison: Poison,
    /// The back-off after a retry: nothing cuts it short.
    not_before: Option<Instant>,
    /// The grace period is over: a handler that still runs is dropped.
    out_of_grace: CancellationToken,
    outage: Outage,
}

/// What a queue's processors have in common.
pub(crate) struct LeasedQueue {
    pub(crate) queue: Arc<Queue>,
    pub(crate) handler: Arc<dyn AnyLeasedHandler>,
    pub(crate) lease: LeaseConfig,
    pub(crate) tuning: WorkerTuning,
    pub(crate) max_attempts: Option<u32>,
}

/// How a batch was handled.
enum Handled {
    /// By the handler, well or not.
    Judged(Verdict),
    /// Not to its end: the process stops.
    Abandoned(Verdict),
}

impl<S: Store> LeasedProcessor<S> {
    pub(crate) fn new(
        store: S,
        of: &LeasedQueue,
        partition_id: i32,
        owner: Uuid,
        out_of_grace: CancellationToken,
        outage: Outage,
    ) -> Self {
        let poison = Poison::new(of.tuning.batch_size, of.tuning.degradation_threshold);
        let claim = Claim {
            partition_id,
            owner,
            lease: of.lease.duration,
            batch_size: poison.size(),
            handled_epoch: 0,
        };
        Self {
            store,
            queue: Arc::clone(&of.queue),
            claim,
            handler: Arc::clone(&of.handler),
            lease: of.lease,
            tuning: of.tuning,
            max_attempts: of.max_attempts,
            poison,
            not_before: None,
            out_of_grace,
            outage,
        }
    }

    /// Acquires, then handles and settles batch after batch until the partition is empty or the slice is over.
    async fn work(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let slice_ends = Instant::now() + PROCESSOR_SLICE;
        let mut done = 0;
        // Counted from before the acquire: the database's clock started later.
        let mut asked = Instant::now();
        let mut leased = match self.acquire().await? {
            Acquired::Batch(leased) => leased,
            Acquired::Empty => return Ok(Directive::Idle(0)),
            Acquired::Held(left) => return Ok(Directive::Sleep(left, 0)),
            Acquired::Raced => return Ok(Directive::Sleep(RACED, 0)),
        };
        loop {
            let handled = self.handle(&leased, asked + self.lease.handler_budget(), cancel).await;
            let go_on = !cancel.is_cancelled() && Instant::now() < slice_ends;
            let settlement = self.settlement(&leased, handled, go_on);
            done += u64::try_from(settlement.processed_seq - leased.processed_seq).unwrap_or_default();
            asked = Instant::now();
            match self.settle(&settlement).await? {
                Settled::Next(next) => leased = next,
                Settled::Released { has_more } => {
                    if has_more && cancel.is_cancelled() {
                        self.hand_over().await;
                    }
                    return Ok(self.rest(has_more, done));
                }
                Settled::Lost => {
                    tracing::warn!(
                        queue = &*self.queue.name,
                        partition_id = self.claim.partition_id,
                        epoch = settlement.epoch,
                        "nothing was settled: the lease was taken over, or an earlier try whose answer was lost had done it",
                    );
                    return Ok(Directive::Sleep(RACED, done));
                }
            }
        }
    }

    async fn acquire(&mut self) -> Result<Acquired, OutboxError> {
        self.claim.batch_size = self.poison.size();
        self.store.acquire(&self.queue, &self.claim).await
    }

    /// Others wait for the lease's end; they need not.
    async fn hand_over(&self) {
        if let Err(error) = self.store.announce_released(self.claim.partition_id).await {
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

    /// Calls the handler, until it returns, panics, or must be dropped.
    async fn handle(&mut self, leased: &Leased, deadline: Instant, cancel: &CancellationToken) -> Handled {
        let mut batch = Batch::new(&leased.messages, deadline);
        // Too late to begin: the process stops, or the batch was so long on its way that its time is up.
        if cancel.is_cancelled() || Instant::now() >= deadline {
            return Handled::Abandoned(batch.abandon());
        }
        if let Some(verdict) = self.exhausted(leased) {
            return Handled::Judged(verdict);
        }
        self.claim.handled_epoch = leased.epoch;
        let outcome = {
            let call = pin!(catch_panic(async { self.handler.handle(&mut batch).await }));
            tokio::select! {
                biased;
                outcome = call => Some(judged(outcome)),
                () = self.out_of_grace.cancelled() => None,
                () = tokio::time::sleep_until(deadline) => Some(HandlerResult::Retry { reason: "lease expired".to_owned() }),
            }
        };
        match outcome {
            Some(result) => Handled::Judged(batch.verdict(result)),
            None => Handled::Abandoned(batch.abandon()),
        }
    }

    /// A message that has had all its tries, the last of which ended with the death of its worker.
    fn exhausted(&self, leased: &Leased) -> Option<Verdict> {
        let tried = leased.attempts.saturating_sub(1);
        let limit = self.max_attempts.filter(|limit| tried >= *limit)?;
        let why = leased.last_error.as_deref().unwrap_or("its worker died");
        let reason = format!("given up after {tried} of {limit} attempts: {why}");
        Some(Verdict { done: 1, rejected: vec![(0, reason)], retry: None })
    }

    /// What to tell the database: the only place that decides how far the cursor moves.
    fn settlement(&mut self, leased: &Leased, handled: Handled, go_on: bool) -> Settlement {
        let (mut verdict, abandoned) = match handled {
            Handled::Judged(verdict) => (verdict, false),
            Handled::Abandoned(verdict) => (verdict, true),
        };
        // The first message of the batch has been tried before; the others have not.
        let tries = |place: usize| if place == 0 { leased.attempts } else { 1 };
        let retry = verdict.retry.take();
        let tried = tries(verdict.done);
        let is_last_try =
            |retry: &Retry| retry.was_tried && self.max_attempts.is_some_and(|limit| tried >= limit);
        let (mut attempts, mut last_error) = (0, None);
        let mut go_on = go_on && !abandoned;
        match retry {
            Some(retry) if is_last_try(&retry) => {
                verdict.rejected.push((verdict.done, retry.reason));
                verdict.done += 1;
                self.poison.rejected(verdict.done);
                self.not_before = None;
            }
            Some(retry) => {
                self.poison.retried(verdict.done);
                self.not_before = Instant::now().checked_add(self.tuning.retry_delay(self.poison.failures()));
                attempts = if retry.was_tried { tried } else { 0 };
                last_error = Some(storable(&retry.reason, MAX_REASON));
                // However short the back-off: the tries are written down when the lease is let go.
                go_on = false;
            }
            None if abandoned => {
                // A stop is no try.
                attempts = if verdict.done == 0 { leased.attempts.saturating_sub(1) } else { 0 };
                last_error = leased.last_error.clone().filter(|_| verdict.done == 0);
            }
            None if verdict.rejected.is_empty() => self.poison.succeeded(),
            None => self.poison.rejected(verdict.done - verdict.rejected.len()),
        }
        self.claim.batch_size = self.poison.size();
        Settlement {
            epoch: leased.epoch,
            processed_seq: leased.processed_seq + i64::try_from(verdict.done).unwrap_or_default(),
            burials: burials(&leased.messages, verdict.rejected, tries),
            attempts,
            last_error,
            go_on,
        }
    }

    /// Settles, and does not give up at once if the database does not answer: the handler's work is done.
    async fn settle(&self, settlement: &Settlement) -> Result<Settled, OutboxError> {
        let mut tries = 1;
        loop {
            match self.store.settle(&self.queue, &self.claim, settlement).await {
                Err(error) if error.is_retryable() && tries < SETTLE_TRIES => {
                    self.outage.noticed("processor, settling", &error);
                    tokio::time::sleep(UNREACHABLE * tries).await;
                    tries += 1;
                }
                result => return result,
            }
        }
    }
}

fn burials(
    messages: &[OutboxMessage],
    rejected: Vec<(usize, String)>,
    tries: impl Fn(usize) -> u32,
) -> Vec<Burial> {
    let burial = |(place, reason): (usize, String)| {
        let message = messages.get(place)?;
        Some(Burial {
            id: message.id.0,
            seq: message.seq,
            reason: storable(&reason, MAX_REASON),
            attempts: tries(place),
        })
    };
    rejected.into_iter().filter_map(burial).collect()
}

/// A panic is a retry with the panic's text.
fn judged(outcome: Result<HandlerResult, Box<dyn Any + Send>>) -> HandlerResult {
    outcome.unwrap_or_else(|panic| HandlerResult::Retry { reason: format!("panic: {}", panic_text(&*panic)) })
}

impl<S: Store> WorkerAction for LeasedProcessor<S> {
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
        match self.work(cancel).await {
            Err(error) if error.is_retryable() => {
                self.outage.noticed("processor", &error);
                Ok(Directive::Sleep(UNREACHABLE, 0))
            }
            result => result,
        }
    }
}
