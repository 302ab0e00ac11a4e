//! The worker that looks for what should not be: work that a lost wake-up left behind, and messages that no tick will find.

use std::time::Duration;

use taskward::{CancellationToken, Directive, WorkerAction};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    OutboxError,
    outage::Outage,
    store::{Store, Suspects},
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
    pub(crate) last_look: Option<Instant>,
    /// Behind this id the next window begins.
    pub(crate) after_id: i64,
    /// All messages up to this id are gone; a round begins behind it.
    pub(crate) start_id: i64,
    pub(crate) is_at_start: bool,
}

impl<S: Store> Reconciler<S> {
    async fn reconcile(&mut self) -> Result<Directive<u64>, OutboxError> {
        let waiting = self.store.waiting(&self.partition_ids, self.owner).await?;
        let found = u64::try_from(waiting.len()).unwrap_or_default();
        waiting.into_iter().for_each(|id| self.wake.sequenced(id));
        if self.last_look.is_none_or(|last| last.elapsed() >= self.stray_interval) {
            self.bring_in_strays().await?;
            self.last_look = Some(Instant::now());
        }
        Ok(Directive::Idle(found))
    }

    /// Looks at the next window of messages for such as no tick will find; if there are any, all of them get their seqs.
    async fn bring_in_strays(&mut self) -> Result<(), OutboxError> {
        let Suspects { ids, window, is_end } = self.store.suspects(self.after_id).await?;
        let strays = if ids.is_empty() { 0 } else { self.store.strays(&ids).await? };
        if strays > 0 {
            tracing::error!(
                strays,
                "committed messages that no tick will find: were they written by other ways than enqueue? They get \
                 their order now",
            );
            let recovered = self.store.recover().await?;
            tracing::warn!(recovered, "messages that had no order have one now");
            self.wake.ask_for_everything();
        }
        if let Some((first, last)) = window {
            if self.is_at_start {
                self.start_id = first - 1;
            }
            self.after_id = last;
        }
        self.is_at_start = is_end;
        if is_end {
            self.after_id = self.start_id;
        }
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
                (self.after_id, self.start_id, self.is_at_start) = (0, 0, true);
                Ok(Directive::Sleep(self.store.timings().unreachable, 0))
            }
            result => result,
        }
    }
}
