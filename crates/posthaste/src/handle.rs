//! A running outbox.

use crate::{Health, Outbox, OutboxStats, WorkerId, crew::Crew, store::Backend};

/// A running outbox. Dropping it without [`stop`](Self::stop) cancels the workers too, but waits for nothing: they end
/// in the background, if the runtime goes on.
pub struct OutboxHandle<DB: Backend> {
    outbox: Outbox<DB>,
    worker_id: WorkerId,
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
        Self { outbox, worker_id: crew.worker_id(), crew: Some(crew) }
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

    /// The name under which this process takes leases, from this start on: [`PartitionLag::owner`](crate::PartitionLag::owner) is
    /// one. It is logged at the start.
    #[must_use]
    pub const fn worker_id(&self) -> WorkerId {
        self.worker_id
    }

    /// Whether the database answers, messages get their order, and partitions make progress: for a readiness probe, by
    /// [`Health::is_ready`], and for alerts. It looks now, and waits for the database for at most 3 s; the future does
    /// not borrow the handle. However many ask, there is one look at a time.
    ///
    /// On SQLite in memory, where the workers share the caller's pool, the database counts as out of reach while others use all its
    /// connections.
    ///
    /// What stands still is known from earlier looks, which the outbox makes by itself every 3 s: a partition that has work and
    /// settles none of it is reported here, and logged as a warning, within 10 s. With so many partitions that a look takes longer than
    /// 150 ms, it looks less often.
    pub fn health(&self) -> impl Future<Output = Health> + Send + use<DB> {
        let health = self.crew.as_ref().map(Crew::health);
        async move {
            match health {
                Some(health) => health.await,
                None => Health::unknown("the outbox has stopped".to_owned()),
            }
        }
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
