//! Leased mode: the handler runs outside any transaction and holds no connection; then the batch is settled. Settling is
//! guarded by the epoch and the owner: a processor whose lease was taken over changes nothing.

use std::pin::{Pin, pin};

use taskward::catch_panic;

use super::{
    BatchSettled, Processor, Turn, judged,
    settlement::{Handled, exhausted},
};
use crate::{
    Batch, HandlerResult, LeasedHandler, OutboxError,
    store::{Leased, Store},
    telemetry::Stopwatch,
};

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

impl<S: Store> Processor<S> {
    /// Handles a batch, then settles it.
    pub(super) async fn lease(
        &mut self,
        handler: &dyn AnyLeasedHandler,
        leased: &Leased,
        turn: &Turn<'_>,
    ) -> Result<BatchSettled, OutboxError> {
        let handled = match exhausted(leased, self.of.max_attempts) {
            Some(verdict) => Handled::judged(verdict),
            None => self.call(handler, leased, turn).await,
        };
        let decision = self.decide(leased, handled, turn.goes_on());
        self.settle(decision).await
    }

    /// Calls the handler, until it returns, panics, or must be dropped.
    async fn call(&mut self, handler: &dyn AnyLeasedHandler, leased: &Leased, turn: &Turn<'_>) -> Handled {
        let mut batch = Batch::new(&leased.messages, turn.deadline, &turn.is_closed);
        if turn.is_over() {
            return Handled::abandoned(batch.abandon());
        }
        self.claim.handled_epoch = leased.epoch;
        let _busy = self.shared.busy.with(self.partition_id);
        let mut stopwatch = Stopwatch::default();
        stopwatch.start();
        kill_point!(HandlerBefore);
        let outcome = {
            let call = pin!(catch_panic(async { handler.handle(&mut batch).await }));
            tokio::select! {
                biased;
                outcome = call => Some(judged(outcome)),
                () = self.shared.out_of_grace.cancelled() => None,
                never = self.close_when_paused(turn) => match never {},
                () = tokio::time::sleep_until(turn.deadline) => {
                    Some(HandlerResult::Retry { reason: "lease expired".to_owned() })
                }
            }
        };
        kill_point!(HandlerAfter);
        stopwatch.stop();
        self.of.queue.metrics.handled(leased.messages.len(), &stopwatch);
        match outcome {
            Some(result) => Handled::judged(batch.verdict(result)),
            None => Handled::abandoned(batch.abandon()),
        }
    }
}
