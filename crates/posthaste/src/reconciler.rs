//! The worker that looks for work that a lost wake-up left behind.

use taskward::{CancellationToken, Directive, WorkerAction};

use uuid::Uuid;

use crate::{
    OutboxError,
    outage::{Outage, UNREACHABLE},
    store::Store,
    wake::Wake,
};

pub(crate) struct Reconciler<S> {
    pub(crate) store: S,
    pub(crate) wake: Wake,
    pub(crate) outage: Outage,
    pub(crate) partition_ids: Vec<i32>,
    /// Whose leases this process takes.
    pub(crate) owner: Uuid,
}

impl<S: Store> WorkerAction for Reconciler<S> {
    type Payload = ();
    type Error = OutboxError;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive, OutboxError> {
        match self.store.waiting(&self.partition_ids, self.owner).await {
            Err(error) if error.is_retryable() => {
                self.outage.noticed("reconciler", &error);
                Ok(Directive::sleep(UNREACHABLE))
            }
            waiting => {
                waiting?.into_iter().for_each(|id| self.wake.sequenced(id));
                Ok(Directive::idle())
            }
        }
    }
}
