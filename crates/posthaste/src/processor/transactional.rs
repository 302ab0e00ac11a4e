//! Transactional mode: the handler's writes and the cursor's move are one transaction, and commit together or not at all.
//!
//! The transaction first locks the partition, then looks whether the lease is still ours; the handler works in savepoints;
//! the settlement is the last statement. Whatever ends the transaction undoes all of it, and is written down as a retry
//! beside it, guarded by the same epoch: if the commit had succeeded after all, that changes nothing.

use std::{pin::Pin, sync::Arc, time::Duration};

use sqlx::Transaction;
use taskward::catch_panic;
use tokio::time::Instant;
use tracing::Instrument;

use super::{
    BatchSettled, Processor, Turn, judged,
    settlement::{Handled, Tally, exhausted},
};
use crate::{
    HandlerResult, OutboxError, OutboxMessage, TransactionalHandler, TransactionalMessageHandler,
    batch::{Blame, Retry, Verdict},
    error::storable,
    limits::MAX_REASON,
    store::{Backend, Begun, Handling, Kept, Leased, Session, Settled, Store},
    telemetry::{self, Stopwatch},
};

/// A handler behind a pointer.
pub(crate) trait AnyTransactionalHandler<DB: Backend>: Send + Sync {
    /// Whether each message has a call, and a savepoint, of its own.
    fn is_per_message(&self) -> bool;

    fn handle<'a>(
        &'a self,
        conn: &'a mut DB::Connection,
        messages: &'a [OutboxMessage],
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;
}

/// Calls a handler for each message.
pub(crate) struct EachMessage<H>(pub(crate) H);
/// Calls a handler for a whole batch.
pub(crate) struct WholeBatch<H>(pub(crate) H);

impl<DB: Backend, H: TransactionalMessageHandler<DB>> AnyTransactionalHandler<DB> for EachMessage<H> {
    fn is_per_message(&self) -> bool {
        true
    }

    fn handle<'a>(
        &'a self,
        conn: &'a mut DB::Connection,
        messages: &'a [OutboxMessage],
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>> {
        match messages {
            [message] => Box::pin(self.0.handle(conn, message).instrument(telemetry::message(message))),
            _ => unreachable!("a call is for one message"),
        }
    }
}

impl<DB: Backend, H: TransactionalHandler<DB>> AnyTransactionalHandler<DB> for WholeBatch<H> {
    fn is_per_message(&self) -> bool {
        false
    }

    fn handle<'a>(
        &'a self,
        conn: &'a mut DB::Connection,
        messages: &'a [OutboxMessage],
    ) -> Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>> {
        Box::pin(self.0.handle(conn, messages))
    }
}

/// How a handler is called.
struct Call<'h, DB: Backend> {
    handler: &'h dyn AnyTransactionalHandler<DB>,
    timeout: Duration,
    stopwatch: Stopwatch,
}

/// What became of a batch.
enum Transacted {
    /// The transaction has ended; whether its connection is good for more.
    Settled { settled: BatchSettled, is_sound: bool },
    /// The transaction is lost, and all that was done in it; the session may not know yet.
    Lost { handled: Handled, session: Session },
}

/// What became of the messages of one call.
enum Fate {
    Done,
    Retried(String),
    Rejected(String),
}

/// Why a transaction is lost, and all that was done in it.
enum Broken {
    Failed(String),
    /// The handler had rejected what it was given, which can be written down all the same.
    Rejected(String),
    /// The database went away, and the handler had not failed.
    Unanswered(String),
    /// The process stops.
    Stopped,
}

impl<S: Store> Processor<S> {
    /// Handles a batch and settles it, in one transaction.
    pub(super) async fn transact(
        &mut self,
        handler: &dyn AnyTransactionalHandler<S::Db>,
        timeout: Duration,
        kept: &mut Option<Handling<S::Db>>,
        leased: &Leased,
        turn: &Turn<'_>,
    ) -> Result<BatchSettled, OutboxError> {
        let beside = match exhausted(leased, self.of.max_attempts) {
            Some(verdict) => Some(self.decide(leased, Handled::judged(verdict), turn.goes_on())),
            None if turn.is_over() => Some(self.decide(leased, abandoned(), false)),
            None => None,
        };
        if let Some(decision) = beside {
            // It may be the only connection there is.
            if let Some(handling) = kept.take() {
                self.shared.store.give_back(handling, false).await?;
            }
            return self.settle(decision).await;
        }
        let mut handling = match kept.take() {
            Some(handling) => handling,
            None => self.shared.store.handling().await?,
        };
        let transacted = match self.transact_on(&mut handling, handler, timeout, leased, turn).await {
            Ok(transacted) => transacted,
            // A handler may have used it before, and left something behind.
            Err(error) => return Err(handling.conn.give_up(error)),
        };
        match transacted {
            Transacted::Settled { settled, is_sound } => {
                *kept = is_sound.then_some(handling);
                Ok(settled)
            }
            Transacted::Lost { handled, session } => {
                // It may be in the middle of a statement, which would keep the partition locked.
                match self.shared.store.end_session(session).await {
                    Err(error) if error.is_retryable() => self.shared.outage.noticed("handler", &error),
                    Err(error) => {
                        tracing::warn!(%error, "cannot end the session of a lost transaction: it ends by itself later");
                    }
                    Ok(_) => {}
                }
                if let Err(error) = self.shared.store.give_back(handling, true).await {
                    tracing::debug!(%error, "a handler's connection was lost after its use");
                }
                let decision = self.decide(leased, handled, false);
                self.settle(decision).await
            }
        }
    }

    async fn transact_on(
        &mut self,
        handling: &mut Handling<S::Db>,
        handler: &dyn AnyTransactionalHandler<S::Db>,
        timeout: Duration,
        leased: &Leased,
        turn: &Turn<'_>,
    ) -> Result<Transacted, OutboxError> {
        let (store, of) = (self.shared.store.clone(), Arc::clone(&self.of));
        let begun = store.begin(handling, &self.claim, leased.epoch, timeout).await?;
        let Begun::Transaction { mut transaction, session } = begun else {
            // Not ours any more; or locked by whoever is about to find out that it is not theirs.
            let (outcome, asked) = (Settled::Lost, Instant::now());
            let settled = BatchSettled { outcome, tally: Tally::default(), asked };
            return Ok(Transacted::Settled { settled, is_sound: true });
        };
        kill_point!(TransactionBegun);
        self.claim.handled_epoch = leased.epoch;
        let _busy = self.shared.busy.with(self.partition_id);
        let mut call = Call { handler, timeout, stopwatch: Stopwatch::default() };
        let handled = tokio::select! {
            biased;
            handled = self.call_in(&mut transaction, &mut call, leased, turn) => handled,
            never = self.close_when_paused(turn) => match never {},
        };
        of.queue.metrics.handled(leased.messages.len(), &call.stopwatch);
        let handled = match handled {
            Ok(handled) => handled,
            Err(handled) => return Ok(Transacted::Lost { handled, session }),
        };
        // What failed may fail for as long as its session lives: a prepared statement whose table has changed, for one.
        let is_sound = handled.verdict.retry.is_none();
        let decision = self.decide(leased, handled, turn.goes_on());
        self.claim.batch_size = decision.poison.size();
        let asked = Instant::now();
        kill_point!(DeadLetterBefore if !decision.settlement.burials.is_empty());
        let settling = store.settle_within(transaction, &of.queue, &self.claim, &decision.settlement);
        Ok(match settling.instrument(self.settling(&decision)).await {
            Ok(outcome) => {
                kill_point!(TransactionAfterCommit);
                kill_point!(DeadLetterAfter if !decision.settlement.burials.is_empty());
                Transacted::Settled { settled: self.settled(&decision, asked, outcome), is_sound }
            }
            Err(error) => {
                let blame = match leased.messages.len() {
                    // The database went away, and the handler was content: it is no message's fault.
                    _ if error.is_retryable() => Blame::Nobody,
                    1 => Blame::Message,
                    _ => Blame::Call,
                };
                let handled = lost(format!("the transaction could not be committed: {error}"), blame);
                Transacted::Lost { handled, session }
            }
        })
    }

    /// Calls the handler until all is handled, something must come again, or there is no more time; an error if the
    /// transaction is lost.
    async fn call_in(
        &self,
        transaction: &mut Transaction<'_, S::Db>,
        call: &mut Call<'_, S::Db>,
        leased: &Leased,
        turn: &Turn<'_>,
    ) -> Result<Handled, Handled> {
        let is_per_message = call.handler.is_per_message();
        let size = if is_per_message { 1 } else { leased.messages.len() };
        let calls = leased.messages.chunks(size.max(1));
        let last = calls.len().saturating_sub(1);
        let mut verdict = Verdict { done: 0, rejected: Vec::new(), retry: None };
        for (place, messages) in calls.enumerate() {
            let blame = if messages.len() == 1 { Blame::Message } else { Blame::Call };
            let attempt = self.attempt(transaction, call, messages, place == last, turn).await;
            let (fate, is_last) = attempt.map_err(|broken| match broken {
                Broken::Failed(reason) | Broken::Rejected(reason) if place > 0 => {
                    lost(reason, Blame::Behind(place))
                }
                Broken::Failed(reason) => lost(reason, blame),
                Broken::Rejected(reason) => rejected(messages.len(), &reason),
                Broken::Unanswered(reason) => lost(reason, Blame::Nobody),
                Broken::Stopped => abandoned(),
            })?;
            match fate {
                Fate::Done => verdict.done += messages.len(),
                Fate::Retried(reason) => verdict.retry = Some(Retry { reason, blame }),
                Fate::Rejected(reason) => {
                    let places = verdict.done..verdict.done + messages.len();
                    verdict.done = places.end;
                    verdict.rejected.extend(places.map(|place| (place, reason.clone())));
                }
            }
            if is_last {
                break;
            }
        }
        Ok(Handled::judged(verdict))
    }

    /// Calls the handler in a savepoint, which is released or gone back to; and whether it was the last call.
    async fn attempt(
        &self,
        transaction: &mut Transaction<'_, S::Db>,
        call: &mut Call<'_, S::Db>,
        messages: &[OutboxMessage],
        is_last: bool,
        turn: &Turn<'_>,
    ) -> Result<(Fate, bool), Broken> {
        let result = self.outcome(transaction, call, messages).await?;
        let is_last = is_last || turn.is_over();
        let store = &self.shared.store;
        let fate = match result {
            HandlerResult::Retry { reason } => Fate::Retried(reason),
            // Cut before it is copied for each message: it may be of any length.
            HandlerResult::Reject { reason } => Fate::Rejected(storable(&reason, MAX_REASON)),
            HandlerResult::Success => {
                match self.answer(call, store.keep(transaction, &self.claim, call.timeout, is_last)).await? {
                    Ok(Kept::Yes) => {
                        kill_point!(TransactionKept);
                        return Ok((Fate::Done, is_last));
                    }
                    Ok(Kept::Refused(why)) => Fate::Retried(format!(
                        "the handler returned Success, but what it wrote cannot be kept: {why}"
                    )),
                    Ok(Kept::TransactionEnded) => return Err(Broken::Failed(self.ended())),
                    Err(error) if error.is_retryable() => return Err(Broken::Unanswered(error.to_string())),
                    Err(error) => return Err(Broken::Failed(error.to_string())),
                }
            }
        };
        let is_last = is_last || matches!(fate, Fate::Retried(_));
        let why = match self.answer(call, store.undo(transaction, is_last)).await? {
            Ok(Kept::Yes) => return Ok((fate, is_last)),
            Ok(Kept::TransactionEnded) => self.ended(),
            Ok(Kept::Refused(why)) => why,
            Err(error) => error.to_string(),
        };
        Err(match fate {
            Fate::Retried(reason) => Broken::Failed(format!("{reason} (and then: {why})")),
            Fate::Rejected(reason) => Broken::Rejected(format!("{reason} (and then: {why})")),
            Fate::Done => Broken::Unanswered(why),
        })
    }

    /// What the handler returns, unless it must be dropped.
    async fn outcome(
        &self,
        transaction: &mut Transaction<'_, S::Db>,
        call: &mut Call<'_, S::Db>,
        messages: &[OutboxMessage],
    ) -> Result<HandlerResult, Broken> {
        let handling = catch_panic(async { call.handler.handle(transaction, messages).await });
        let late = || format!("the handler took longer than its timeout of {:?}", call.timeout);
        kill_point!(HandlerBefore);
        call.stopwatch.start();
        let outcome = self.in_time(call.timeout, handling, late).await;
        call.stopwatch.stop();
        kill_point!(HandlerAfter);
        outcome.map(judged)
    }

    /// What the database says to the end of a call. It may take as long as the call: a deferred trigger is at work, or a
    /// statement that the handler has given up on still runs.
    async fn answer(
        &self,
        call: &Call<'_, S::Db>,
        asked: impl Future<Output = Result<Kept, OutboxError>>,
    ) -> Result<Result<Kept, OutboxError>, Broken> {
        let limit = call.timeout.max(self.timings().handler_answer);
        let late = || format!("the handler returned, but its connection was not free within {limit:?}");
        self.in_time(limit, asked, late).await
    }

    /// Awaits what is done on a handler's connection, unless it takes too long or the process stops.
    async fn in_time<T>(
        &self,
        limit: Duration,
        done: impl Future<Output = T>,
        late: impl Fn() -> String,
    ) -> Result<T, Broken> {
        tokio::select! {
            biased;
            done = done => Ok(done),
            () = self.shared.out_of_grace.cancelled() => Err(Broken::Stopped),
            () = tokio::time::sleep(limit) => Err(Broken::Failed(late())),
        }
    }

    /// Says loudly that a handler did what no handler must; or what the database may have done instead.
    fn ended(&self) -> String {
        let text = format!("{}: what it wrote is not part of the settlement", S::TRANSACTION_ENDED);
        tracing::error!(queue = &*self.of.queue.name, partition_id = self.partition_id, "{text}");
        text
    }
}

/// All that was done is undone, and comes again.
pub(crate) fn lost(reason: String, blame: Blame) -> Handled {
    Handled::judged(Verdict { done: 0, rejected: Vec::new(), retry: Some(Retry { reason, blame }) })
}

/// All that was done is undone; the handler did not want it anyway.
fn rejected(messages: usize, reason: &str) -> Handled {
    let rejected = (0..messages).map(|place| (place, reason.to_owned())).collect();
    Handled::judged(Verdict { done: messages, rejected, retry: None })
}

/// All that was done is undone, and nobody is to blame.
fn abandoned() -> Handled {
    Handled::abandoned(Verdict { done: 0, rejected: Vec::new(), retry: None })
}
