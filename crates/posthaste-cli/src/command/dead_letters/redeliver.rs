//! Sends dead letters back into their queues, a page at a time, and none of them twice: what is sent back may be rejected at once,
//! and is a new dead letter then, which fits just as well.

use posthaste::{Backend, DeadLetterScope, Outbox, OutboxError, OutboxMessageId};

/// What was sent back, and as what.
pub type Sent = (OutboxMessageId, OutboxMessageId);

/// Ids ascend: whatever was there when we began has a lower one than the first message that we made.
#[derive(Debug, Default)]
pub struct Redelivery {
    first_made: Option<OutboxMessageId>,
}

/// Why a page was rolled back.
enum Undone {
    /// Some of it was sent back by ourselves; so many were not.
    TooNew(u32),
    Failed(OutboxError),
}

impl From<OutboxError> for Undone {
    fn from(error: OutboxError) -> Self {
        Self::Failed(error)
    }
}

impl Redelivery {
    /// Sends back those that fit, at most so many; none, if there are no more of those that were there when we began.
    pub async fn page<DB: Backend>(
        &mut self,
        outbox: &Outbox<DB>,
        scope: &DeadLetterScope,
        mut limit: u32,
    ) -> Result<Vec<Sent>, OutboxError> {
        while limit > 0 {
            match self.attempt(outbox, &scope.clone().limit(limit)).await {
                Ok(sent) => {
                    self.first_made = self.first_made.or(sent.iter().map(|(_, made)| *made).min());
                    return Ok(sent);
                }
                Err(Undone::TooNew(older)) => limit = older,
                Err(Undone::Failed(error)) => return Err(error),
            }
        }
        Ok(Vec::new())
    }

    async fn attempt<DB: Backend>(
        &self,
        outbox: &Outbox<DB>,
        scope: &DeadLetterScope,
    ) -> Result<Vec<Sent>, Undone> {
        let first_made = self.first_made;
        let work = async |tx: &mut sqlx::Transaction<'_, DB>| {
            let sent = outbox.dead_letter_redeliver(tx, scope).await?;
            let was_there = |(old, _): &&Sent| first_made.is_none_or(|made| *old < made);
            match sent.iter().filter(was_there).count() {
                all if all == sent.len() => Ok(sent),
                older => Err(Undone::TooNew(u32::try_from(older).unwrap_or(u32::MAX))),
            }
        };
        outbox.transaction(work).await
    }
}
