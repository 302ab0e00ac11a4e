//! The worker that looks for what should not be: work that a lost wake-up left behind, and messages that no tick will find.

use std::time::Duration;

use taskward::{CancellationToken, Directive, WorkerAction};
use tokio::time::Instant;
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
    /// How often to look for messages in no segment: nothing but tampering makes one.
    pub(crate) stray_interval: Duration,
    pub(crate) last_stray_look: Option<Instant>,
    /// All messages up to this id are gone.
    pub(crate) after_id: i64,
}

impl<S: Store> Reconciler<S> {
    async fn reconcile(&mut self) -> Result<Directive<u64>, OutboxError> {
        let waiting = self.store.waiting(&self.partition_ids, self.owner).await?;
        let found = u64::try_from(waiting.len()).unwrap_or_default();
        waiting.into_iter().for_each(|id| self.wake.sequenced(id));
        if self.last_stray_look.is_none_or(|last| last.elapsed() >= self.stray_interval) {
            self.last_stray_look = Some(Instant::now());
            self.bring_in_strays().await?;
        }
        Ok(Directive::Idle(found))
    }

    async fn bring_in_strays(&mut self) -> Result<(), OutboxError> {
        let strays = self.store.strays(self.after_id).await?;
        self.after_id = strays.after_id;
        if strays.count == 0 {
            return Ok(());
        }
        tracing::error!(
            strays = strays.count,
            "committed messages that no tick will find: were they written by other ways than enqueue? They get their \
             order now",
        );
        let recovered = self.store.recover().await?;
        tracing::warn!(recovered, "messages that had no order have one now");
        self.wake.ask_for_everything();
        Ok(())
    }
}

impl<S: Store> WorkerAction for Reconciler<S> {
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        match self.reconcile().await {
            Err(error) if error.is_retryable() => {
                self.outage.noticed("reconciler", &error);
                // Who answers next may be a standby that is a little behind.
                self.after_id = 0;
                Ok(Directive::Sleep(UNREACHABLE, 0))
            }
            result => result,
        }
    }
}
