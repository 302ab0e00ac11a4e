//! Dead letters for operators: looking at them, reprocessing them, sending them back, throwing them away.
//!
//! Nothing here happens by itself. Every change first locks what it changes, then checks, then writes, in one transaction: all or
//! nothing of what was asked for is done.

mod letter;
mod scope;

use std::time::Duration;

use sqlx::Connection;
use uuid::Uuid;

pub use self::{
    letter::{ClaimedDeadLetter, DeadLetterClaim, DeadLetterMessage, DeadLetterStatus, DeadLetterToken},
    scope::{DeadLetterFilter, DeadLetterScope},
};
use crate::{
    Outbox, OutboxError, OutboxMessageId, Target,
    error::storable,
    limits::{MAX_CLAIM_TIMEOUT, MAX_DEAD_LETTER_PAGE_BYTES, MAX_REASON},
    store::{Backend, Change, Lock, NewMessage, Picked, Selection, Store},
};

/// Those whose payloads, headers and reasons fit into a page together, but at least one.
fn page(picked: Vec<Picked>) -> Vec<i64> {
    let mut bytes = 0;
    let fits = |(place, picked): &(usize, Picked)| {
        bytes += picked.bytes;
        *place == 0 || bytes <= MAX_DEAD_LETTER_PAGE_BYTES
    };
    picked.into_iter().enumerate().take_while(fits).map(|(_, picked)| picked.id).collect()
}

/// In which state something can be done with them.
const PENDING: &[DeadLetterStatus] = &[DeadLetterStatus::Pending];
const ENDED: &[DeadLetterStatus] = &[DeadLetterStatus::Resolved, DeadLetterStatus::Discarded];

/// Runs what changes dead letters where the caller wants it: in the caller's transaction, or in one of its own.
macro_rules! changing {
    ($outbox:expr, $target:expr, |$conn:ident| $work:expr) => {
        match $target {
            Target::Pool(pool) => {
                $outbox
                    .transaction_on(pool, async |transaction| {
                        let $conn: &mut DB::Connection = &mut *transaction;
                        $work.await
                    })
                    .await
            }
            Target::Connection(conn) => {
                if $outbox.store().is_in_transaction(conn).await? {
                    let $conn = conn;
                    return $work.await;
                }
                let mut transaction = conn.begin_with(<DB::Store as Store>::BEGIN_TO_WRITE).await?;
                let done = {
                    let $conn: &mut DB::Connection = &mut transaction;
                    $work.await?
                };
                transaction.commit().await?;
                Ok(done)
            }
        }
    };
}

/// Dead letters. `conn` is as for [`enqueue`](Self::enqueue): in the caller's transaction, what is done here commits or rolls back
/// with the rest of it. After an error of the database, roll it back.
impl<DB: Backend> Outbox<DB> {
    /// The dead letters that the filter lets through, in the order of their messages' ids: a page, which has no more of them than the
    /// limit, and ends early when it has 16 MiB. The next page is [`after`](DeadLetterFilter::after) the last of this one.
    ///
    /// # Errors
    ///
    /// If the filter is not valid, or what the database says.
    pub async fn dead_letter_list<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        filter: &DeadLetterFilter,
    ) -> Result<Vec<DeadLetterMessage>, OutboxError> {
        let target = conn.into();
        let selection = filter.scope.select("listed", &[], filter.after)?;
        match target {
            Target::Connection(conn) => self.list(conn, &selection).await,
            Target::Pool(pool) => self.lent(pool, async |conn| self.list(conn, &selection).await).await,
        }
    }

    async fn list(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
    ) -> Result<Vec<DeadLetterMessage>, OutboxError> {
        let picked = self.store().pick_dead_letters(conn, selection, Lock::None).await?;
        self.read(conn, &page(picked), Lock::None).await
    }

    async fn read(
        &self,
        conn: &mut DB::Connection,
        ids: &[i64],
        lock: Lock,
    ) -> Result<Vec<DeadLetterMessage>, OutboxError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.store().read_dead_letters(conn, ids, lock).await
    }

    /// How many dead letters the filter lets through, whatever its limit.
    ///
    /// # Errors
    ///
    /// If the filter is not valid, or what the database says.
    pub async fn dead_letter_count<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        filter: &DeadLetterFilter,
    ) -> Result<u64, OutboxError> {
        let target = conn.into();
        let selection = filter.scope.select("counted", &[], filter.after)?;
        let store = self.store();
        match target {
            Target::Connection(conn) => store.count_dead_letters(conn, &selection).await,
            Target::Pool(pool) => {
                self.lent(pool, async |conn| store.count_dead_letters(conn, &selection).await).await
            }
        }
    }

    /// Claims pending dead letters, to reprocess them: nobody else gets them until `timeout` has passed, or before they are
    /// [resolved](Self::dead_letter_resolve) or [rejected](Self::dead_letter_reject) again. Like a page of
    /// [`dead_letter_list`](Self::dead_letter_list), the claims may be fewer than the limit.
    ///
    /// A claim that has run out counts as a try when the next one begins.
    ///
    /// # Errors
    ///
    /// If the scope is not valid, `timeout` is zero or longer than a week, a dead letter that was named is not there or not pending
    /// (then none is claimed), or what the database says.
    pub async fn dead_letter_replay<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        scope: &DeadLetterScope,
        timeout: Duration,
    ) -> Result<Vec<ClaimedDeadLetter>, OutboxError> {
        let target = conn.into();
        if timeout < Duration::from_millis(1) || timeout > MAX_CLAIM_TIMEOUT {
            return Err(OutboxError::InvalidArgument(format!(
                "a claim for {timeout:?}: use a millisecond to {MAX_CLAIM_TIMEOUT:?}"
            )));
        }
        let selection = scope.select("replayed", PENDING, None)?;
        let change = Change::Claim { token: Uuid::new_v4(), timeout };
        changing!(self, target, |conn| self.claim(conn, &selection, &change))
    }

    async fn claim(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
        change: &Change<'_>,
    ) -> Result<Vec<ClaimedDeadLetter>, OutboxError> {
        let ids = page(self.picked(conn, selection).await?);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.store().change_dead_letters(conn, &ids, change).await?;
        let token = match change {
            Change::Claim { token, .. } => DeadLetterToken(*token),
            _ => return Ok(Vec::new()),
        };
        let messages = self.read(conn, &ids, Lock::Wait).await?;
        let claimed = |message: DeadLetterMessage| ClaimedDeadLetter {
            claim: DeadLetterClaim { id: message.id, token },
            message,
        };
        Ok(messages.into_iter().map(claimed).collect())
    }

    /// Those that fit and that nobody else is at, locked; an error if any was named and is not among them.
    async fn picked(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
    ) -> Result<Vec<Picked>, OutboxError> {
        let picked = self.store().pick_dead_letters(conn, selection, Lock::Skip).await?;
        let found: Vec<_> = picked.iter().map(|picked| picked.id).collect();
        selection.scope.check_found(&found, selection.states)?;
        Ok(picked)
    }

    /// Says that claimed dead letters were reprocessed: they are resolved now.
    ///
    /// # Errors
    ///
    /// If any of the claims is stale, since it ran out and somebody else has claimed it, or it has ended already: then none of
    /// them is resolved. Or what the database says.
    pub async fn dead_letter_resolve<'c, C: AsRef<DeadLetterClaim> + Sync>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        claims: &[C],
    ) -> Result<(), OutboxError> {
        self.settle_claims(conn.into(), claims, &Change::Resolve).await
    }

    /// Says that claimed dead letters could not be reprocessed, and why: they are pending again, with a try more.
    ///
    /// # Errors
    ///
    /// As for [`dead_letter_resolve`](Self::dead_letter_resolve).
    pub async fn dead_letter_reject<'c, C: AsRef<DeadLetterClaim> + Sync>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        claims: &[C],
        reason: &str,
    ) -> Result<(), OutboxError> {
        let reason = storable(reason, MAX_REASON);
        self.settle_claims(conn.into(), claims, &Change::Reject { reason: &reason }).await
    }

    async fn settle_claims<C: AsRef<DeadLetterClaim> + Sync>(
        &self,
        target: Target<'_, DB>,
        claims: &[C],
        change: &Change<'_>,
    ) -> Result<(), OutboxError> {
        let claims: Vec<DeadLetterClaim> = claims.iter().map(|claim| *claim.as_ref()).collect();
        if claims.is_empty() {
            return Ok(());
        }
        let scope = DeadLetterScope::default().ids(claims.iter().map(|claim| claim.id));
        let selection = scope.select("settled", &[], None)?;
        changing!(self, target, |conn| self.end_claims(conn, &selection, &claims, change))
    }

    async fn end_claims(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
        claims: &[DeadLetterClaim],
        change: &Change<'_>,
    ) -> Result<(), OutboxError> {
        let picked = self.store().pick_dead_letters(conn, selection, Lock::Wait).await?;
        let is_held = |claim: &DeadLetterClaim| {
            let place = picked.binary_search_by_key(&claim.id.0, |picked| picked.id);
            place.is_ok_and(|place| picked[place].token == Some(claim.token.0))
        };
        let stale: Vec<_> = claims.iter().filter(|claim| !is_held(claim)).map(|claim| claim.id).collect();
        if !stale.is_empty() {
            return Err(OutboxError::StaleClaims { ids: stale });
        }
        let ids: Vec<_> = picked.iter().map(|picked| picked.id).collect();
        self.store().change_dead_letters(conn, &ids, change).await
    }

    /// Throws pending dead letters away: they are discarded now, and gone with the next cleanup. Returns how many.
    ///
    /// # Errors
    ///
    /// If the scope is not valid, a dead letter that was named is not there or not pending (then none is discarded), or what the
    /// database says.
    pub async fn dead_letter_discard<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        scope: &DeadLetterScope,
    ) -> Result<u64, OutboxError> {
        let target = conn.into();
        let selection = scope.select("discarded", PENDING, None)?;
        changing!(self, target, |conn| self.discard(conn, &selection))
    }

    async fn discard(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
    ) -> Result<u64, OutboxError> {
        let ids: Vec<_> = self.picked(conn, selection).await?.iter().map(|picked| picked.id).collect();
        if !ids.is_empty() {
            self.store().change_dead_letters(conn, &ids, &Change::Discard).await?;
        }
        Ok(u64::try_from(ids.len()).unwrap_or_default())
    }

    /// Deletes resolved and discarded dead letters. Returns how many: if that is the limit, there may be more.
    ///
    /// # Errors
    ///
    /// If the scope is not valid, a dead letter that was named is not there or neither resolved nor discarded (then none is
    /// deleted), or what the database says.
    pub async fn dead_letter_cleanup<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        scope: &DeadLetterScope,
    ) -> Result<u64, OutboxError> {
        let target = conn.into();
        let selection = scope.select("cleaned up", ENDED, None)?;
        changing!(self, target, |conn| self.clean_up(conn, &selection))
    }

    async fn clean_up(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
    ) -> Result<u64, OutboxError> {
        let ids: Vec<_> = self.picked(conn, selection).await?.iter().map(|picked| picked.id).collect();
        if !ids.is_empty() {
            self.store().delete_dead_letters(conn, &ids).await?;
        }
        Ok(u64::try_from(ids.len()).unwrap_or_default())
    }

    /// Sends pending dead letters back into their queues, at the end, as new messages with the same key, headers, type and payload,
    /// in the order in which they were first enqueued. They are resolved now, and remember what they were sent back as.
    /// Returns the old and the new ids. Like a page of [`dead_letter_list`](Self::dead_letter_list), they may be fewer than the limit.
    ///
    /// # Errors
    ///
    /// If the scope is not valid, a dead letter that was named is not there or not pending (then none is sent back), or what
    /// the database says.
    pub async fn dead_letter_redeliver<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        scope: &DeadLetterScope,
    ) -> Result<Vec<(OutboxMessageId, OutboxMessageId)>, OutboxError> {
        let target = conn.into();
        let selection = scope.select("redelivered", PENDING, None)?;
        changing!(self, target, |conn| self.redeliver(conn, &selection))
    }

    async fn redeliver(
        &self,
        conn: &mut DB::Connection,
        selection: &Selection<'_>,
    ) -> Result<Vec<(OutboxMessageId, OutboxMessageId)>, OutboxError> {
        let ids = page(self.picked(conn, selection).await?);
        let dead = self.read(conn, &ids, Lock::Wait).await?;
        let rows = dead.iter().map(NewMessage::again).collect::<Result<Vec<_>, _>>()?;
        let new = self.write(conn, &rows, false).await?;
        for together in dead.chunk_by(|one, next| one.queue == next.queue) {
            if let Some(first) = together.first() {
                self.queue(conn, &first.queue).await?.metrics.enqueued(together.len());
            }
        }
        let sent: Vec<_> = dead.iter().map(|dead| dead.id).zip(new).collect();
        if !sent.is_empty() {
            self.store().mark_redelivered(conn, &sent).await?;
        }
        Ok(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(id: i64, bytes: i64) -> Picked {
        Picked { id, bytes, token: None }
    }

    #[test]
    fn a_page_ends_before_it_is_too_large_but_has_one_at_least() {
        let most = MAX_DEAD_LETTER_PAGE_BYTES;
        assert_eq!(page(vec![picked(1, most - 1), picked(2, 1), picked(3, 1)]), [1, 2]);
        assert_eq!(page(vec![picked(7, most * 9), picked(8, 0)]), [7]);
        assert_eq!(page(Vec::new()), [0_i64; 0]);
    }
}
