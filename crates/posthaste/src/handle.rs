//! A running outbox.

use crate::{Outbox, OutboxStats, crew::Crew, store::Backend};

/// A running outbox. Dropping it without [`stop`](Self::stop) cancels the workers too, but waits for nothing: they end
/// in the background, if the runtime goes on.
pub struct OutboxHandle<DB: Backend> {
    outbox: Outbox<DB>,
    /// Gone once it is stopped.
    crew: Option<Crew<DB::Store>>,
}

impl<DB: Backend> std::fmt::Debug for OutboxHandle<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutboxHandle").field("outbox", &self.outbox).finish_non_exhaustive()
    }
}

impl<DB: Backend> OutboxHandle<DB> {
    pub(crate) const fn new(outbox: Outbox<DB>, crew: Crew<DB::Store>) -> Self {
        Self { outbox, crew: Some(crew) }
    }

    /// The outbox to enqueue to; it may be cloned and outlives the workers.
    #[must_use]
    pub fn outbox(&self) -> Outbox<DB> {
        self.outbox.clone()
    }

    /// What the workers of this process have done since the start, counted by kind.
    #[must_use]
    pub fn stats(&self) -> OutboxStats {
        self.crew.as_ref().map(Crew::stats).unwrap_or_default()
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
