//! A running outbox.

use std::time::Duration;

use taskward::{CancellationToken, TaskOutcome, TaskSet};

use crate::{
    Outbox, OutboxStats,
    stats::Counters,
    store::{Backend, Store},
};

/// How long after the grace period leases may take to be released.
const RELEASE: Duration = Duration::from_millis(500);

/// A running outbox. Dropping it without [`stop`](Self::stop) cancels the workers too, but waits for nothing: they end
/// in the background, if the runtime goes on.
pub struct OutboxHandle<DB: Backend> {
    outbox: Outbox<DB>,
    counters: Counters,
    crew: Option<RunningCrew<DB>>,
}

/// What is stopped.
pub(crate) struct RunningCrew<DB: Backend> {
    pub(crate) store: DB::Store,
    pub(crate) tasks: TaskSet,
    pub(crate) out_of_grace: CancellationToken,
    pub(crate) grace: Duration,
}

impl<DB: Backend> std::fmt::Debug for OutboxHandle<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxHandle").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl<DB: Backend> OutboxHandle<DB> {
    pub(crate) const fn new(outbox: Outbox<DB>, counters: Counters, crew: RunningCrew<DB>) -> Self {
        Self { outbox, counters, crew: Some(crew) }
    }

    /// The outbox to enqueue to; it may be cloned and outlives the workers.
    #[must_use]
    pub fn outbox(&self) -> Outbox<DB> {
        self.outbox.clone()
    }

    /// What the workers of this process have done since the start, counted by kind.
    #[must_use]
    pub fn stats(&self) -> OutboxStats {
        self.counters.read()
    }

    /// Stops the workers. Handlers that run get the grace period; then they are dropped, which counts as no try, and all
    /// leases are released, so that another process goes on at once. Returns within the grace period and a second,
    /// unless a handler blocks its thread.
    pub async fn stop(mut self) {
        if let Some(crew) = self.crew.take() {
            crew.stop().await;
        }
    }
}

impl<DB: Backend> Drop for OutboxHandle<DB> {
    fn drop(&mut self) {
        // Without a runtime, dropping the crew cancels it all the same.
        if let (Some(crew), Ok(runtime)) = (self.crew.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(crew.stop());
        }
    }
}

impl<DB: Backend> RunningCrew<DB> {
    async fn stop(self) {
        let Self { store, tasks, out_of_grace, grace } = self;
        let deadline = tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            out_of_grace.cancel();
        });
        for task in tasks.shutdown_within(grace.saturating_add(RELEASE)).await {
            match task.outcome {
                TaskOutcome::Finished => {}
                outcome => {
                    tracing::warn!(task = task.name, ?outcome, "a task of the outbox did not end by itself");
                }
            }
        }
        deadline.abort();
        store.close().await;
    }
}
