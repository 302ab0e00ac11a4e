//! Dead letters for operators: looking at them, reprocessing them, sending them back, throwing them away.
//!
//! Nothing here happens by itself. Every change first locks what it changes, then checks, then writes, in one transaction: all or
//! nothing of what was asked for is done.

mod letter;
mod scope;

use std::time::Duration;

use uuid::Uuid;

use self::scope::Wanted;
pub use self::{
    letter::{ClaimedDeadLetter, DeadLetterClaim, DeadLetterMessage, DeadLetterStatus, DeadLetterToken},
    scope::{DeadLetterFilter, DeadLetterScope},
};
use crate::{
    Outbox, OutboxError, OutboxMessageId, Target,
    error::storable,
    limits::{MAX_CLAIM_TIMEOUT, MAX_DEAD_LETTER_PAGE_BYTES, MAX_REASON},
    store::{Backend, Change, Lock, NewMessage, Picked, Store},
};

/// Those whose payloads, headers and reasons fit into a page together, but at least one; and the rest.
fn page(picked: &[Picked]) -> (&[Picked], &[Picked]) {
    let mut bytes = 0;
    let fits = |(place, picked): &(usize, &Picked)| {
        bytes += picked.bytes;
        *place == 0 || bytes <= MAX_DEAD_LETTER_PAGE_BYTES
    };
    picked.split_at(picked.iter().enumerate().take_while(fits).count())
}

fn ids(picked: &[Picked]) -> Vec<i64> {
    picked.iter().map(|picked| picked.id).collect()
}

fn count(picked: &[Picked]) -> u64 {
    u64::try_from(picked.len()).unwrap_or(u64::MAX)
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
                    .own_transaction(pool, async |transaction| {
                        let $conn: &mut DB::Connection = &mut *transaction;
                        $work.await
                    })
                    .await
            }
            Target::Connection(conn) => {
                if let Some(mut transaction) = $outbox.store().begin_on(&mut *conn).await? {
                    let done = {
                        let $conn: &mut DB::Connection = &mut transaction;
                        $work.await?
                    };
                    transaction.commit().await?;
                    return Ok(done);
                }
                let $conn = conn;
                $work.await
            }
        }
    };
}

/// Dead letters. `conn` is as for [`enqueue`](Self::enqueue): in the caller's transaction, what is done here commits or rolls back
/// with the rest of it. After an error of the database, roll it back.
///
/// A call on a connection should not be dropped half-way, by a timeout for one: nobody knows then whether it is in a transaction. On a
/// pool it can be: the connection is closed. On MySQL, in a SERIALIZABLE transaction of the caller's, whatever is looked at is
/// locked against others, who leave it out.
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
        let wanted = filter.scope.wanted("listed", &[])?;
        match target {
            Target::Connection(conn) => self.list(conn, &wanted, filter.after).await,
            Target::Pool(pool) => {
                self.reading(pool, async |conn| self.list(conn, &wanted, filter.after).await).await
            }
        }
    }

    /// What was found may have changed until it is read: what does not fit any more is left out, and if that is all of a page, the next
    /// one is looked at.
    async fn list(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
        mut after: Option<OutboxMessageId>,
    ) -> Result<Vec<DeadLetterMessage>, OutboxError> {
        loop {
            let picked = self.pick(conn, wanted, after, Lock::None).await?;
            let ids = ids(page(&picked).0);
            let Some(last) = ids.last() else { return Ok(Vec::new()) };
            after = Some(OutboxMessageId(*last));
            let mut letters = self.store().read_dead_letters(conn, &ids, false).await?;
            letters.retain(|letter| wanted.fits(letter));
            if !letters.is_empty() {
                return Ok(letters);
            }
        }
    }

    /// In the order of their ids, up to the limit.
    async fn pick(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
        after: Option<OutboxMessageId>,
        lock: Lock,
    ) -> Result<Vec<Picked>, OutboxError> {
        let mut picked = Vec::new();
        for selection in wanted.selections(after) {
            picked.extend(self.store().pick_dead_letters(conn, &selection, lock).await?);
        }
        picked.sort_unstable_by_key(|picked| picked.id);
        picked.truncate(wanted.limit());
        Ok(picked)
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
        let wanted = filter.scope.wanted("counted", &[])?;
        match target {
            Target::Connection(conn) => self.count(conn, &wanted, filter.after).await,
            Target::Pool(pool) => {
                self.reading(pool, async |conn| self.count(conn, &wanted, filter.after).await).await
            }
        }
    }

    async fn count(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
        after: Option<OutboxMessageId>,
    ) -> Result<u64, OutboxError> {
        let mut count = 0;
        for selection in wanted.selections(after) {
            count += self.store().count_dead_letters(conn, &selection).await?;
        }
        Ok(count)
    }

    /// Claims pending dead letters, to reprocess them: nobody else gets them until `timeout` has passed, or before they are
    /// [resolved](Self::dead_letter_resolve) or [rejected](Self::dead_letter_reject) again. Like a page of
    /// [`dead_letter_list`](Self::dead_letter_list), the claims may be fewer than the limit.
    ///
    /// A claim that has run out counts as a try when the next one begins.
    ///
    /// # Errors
    ///
    /// If the scope is not valid, `timeout` is zero or longer than a week, a dead letter that was named is not there or not pending, those
    /// that were named take more than 16 MiB together (then none is claimed), or what the database says.
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
        let wanted = scope.wanted("replayed", PENDING)?;
        let token = Uuid::new_v4();
        changing!(self, target, |conn| self.claim(conn, &wanted, token, timeout))
    }

    async fn claim(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
        token: Uuid,
        timeout: Duration,
    ) -> Result<Vec<ClaimedDeadLetter>, OutboxError> {
        let picked = self.lock(conn, wanted).await?;
        let (page, rest) = page(&picked);
        if wanted.are_named() && !rest.is_empty() {
            let fit = page.len();
            return Err(OutboxError::InvalidArgument(format!(
                "the dead letters that were named take more than {MAX_DEAD_LETTER_PAGE_BYTES} bytes: claim the first {fit} by themselves"
            )));
        }
        let ids = ids(page);
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.store().change_dead_letters(conn, &ids, &Change::Claim { token, timeout }).await?;
        let messages = self.store().read_dead_letters(conn, &ids, true).await?;
        let claimed = |message: DeadLetterMessage| ClaimedDeadLetter {
            claim: DeadLetterClaim { id: message.id, token: DeadLetterToken(token) },
            message,
        };
        Ok(messages.into_iter().map(claimed).collect())
    }

    /// Those that fit and that nobody else is at, locked; an error if any was named and is not among them.
    async fn lock(&self, conn: &mut DB::Connection, wanted: &Wanted<'_>) -> Result<Vec<Picked>, OutboxError> {
        let picked = self.pick(conn, wanted, None, Lock::Skip).await?;
        wanted.check_found(&ids(&picked))?;
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
        let wanted = scope.wanted("settled", &[])?;
        changing!(self, target, |conn| self.end_claims(conn, &wanted, &claims, change))
    }

    async fn end_claims(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
        claims: &[DeadLetterClaim],
        change: &Change<'_>,
    ) -> Result<(), OutboxError> {
        let picked = self.pick(conn, wanted, None, Lock::Wait).await?;
        let is_held = |claim: &DeadLetterClaim| {
            let place = picked.binary_search_by_key(&claim.id.0, |picked| picked.id);
            place.is_ok_and(|place| picked[place].token == Some(claim.token.0))
        };
        let stale: Vec<_> = claims.iter().filter(|claim| !is_held(claim)).map(|claim| claim.id).collect();
        if !stale.is_empty() {
            return Err(OutboxError::StaleClaims { ids: stale });
        }
        self.store().change_dead_letters(conn, &ids(&picked), change).await
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
        let wanted = scope.wanted("discarded", PENDING)?;
        changing!(self, target, |conn| self.discard(conn, &wanted))
    }

    async fn discard(&self, conn: &mut DB::Connection, wanted: &Wanted<'_>) -> Result<u64, OutboxError> {
        let picked = self.lock(conn, wanted).await?;
        if !picked.is_empty() {
            self.store().change_dead_letters(conn, &ids(&picked), &Change::Discard).await?;
        }
        Ok(count(&picked))
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
        let wanted = scope.wanted("cleaned up", ENDED)?;
        changing!(self, target, |conn| self.clean_up(conn, &wanted))
    }

    async fn clean_up(&self, conn: &mut DB::Connection, wanted: &Wanted<'_>) -> Result<u64, OutboxError> {
        let picked = self.lock(conn, wanted).await?;
        if !picked.is_empty() {
            self.store().delete_dead_letters(conn, &ids(&picked)).await?;
        }
        Ok(count(&picked))
    }

    /// Sends pending dead letters back into their queues, at the end, as new messages with the same key, headers, type and payload,
    /// in the order in which they were first enqueued. They are resolved now, and remember what they were sent back as.
    /// Returns the old and the new ids.
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
        let wanted = scope.wanted("redelivered", PENDING)?;
        changing!(self, target, |conn| self.redeliver(conn, &wanted))
    }

    /// Page by page, so that they are never all in memory.
    async fn redeliver(
        &self,
        conn: &mut DB::Connection,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<(OutboxMessageId, OutboxMessageId)>, OutboxError> {
        let picked = self.lock(conn, wanted).await?;
        let (mut sent, mut rest) = (Vec::with_capacity(picked.len()), &picked[..]);
        while !rest.is_empty() {
            let (page, behind) = page(rest);
            sent.extend(self.send_back(conn, &ids(page)).await?);
            rest = behind;
        }
        Ok(sent)
    }

    async fn send_back(
        &self,
        conn: &mut DB::Connection,
        ids: &[i64],
    ) -> Result<Vec<(OutboxMessageId, OutboxMessageId)>, OutboxError> {
        let dead = self.store().read_dead_letters(conn, ids, true).await?;
        let rows = dead.iter().map(NewMessage::again).collect::<Result<Vec<_>, _>>()?;
        let new = self.write(conn, &rows, false).await?;
        for together in dead.chunk_by(|one, next| one.queue == next.queue) {
            if let Some(first) = together.first() {
                self.queue(conn, &first.queue).await?.metrics.enqueued(together.len());
            }
        }
        let sent: Vec<_> = dead.iter().map(|dead| dead.id).zip(new).collect();
        self.store().mark_redelivered(conn, &sent).await?;
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
        let first = |all: &[Picked]| ids(page(all).0);
        assert_eq!(first(&[picked(1, most - 1), picked(2, 1), picked(3, 1)]), [1, 2]);
        assert_eq!(first(&[picked(7, most * 9), picked(8, 0)]), [7]);
        assert_eq!(first(&[]), [0_i64; 0]);
    }
}
