//! What gives messages to processors, and settles.

use std::time::Duration;

use sqlx::{Executor, MySql, MySqlConnection, Row, Transaction, mysql::MySqlRow};
use uuid::Uuid;

use super::{DUPLICATE, MySqlStore, REST, begin, number, query, work};
use crate::{
    OutboxError,
    limits::{MAX_REASON, SEGMENT},
    store::{
        Acquired, Claim, Leased, Queue, READER, Result, Settled, Settlement,
        answer::{ANSWER_LIMIT, answer},
        batch::{Read, count, incomplete, messages, millis, no_cursor, placed, size},
        segments::json,
    },
};

/// The newest link of a partition's cursor.
pub(super) struct Tip {
    epoch: i64,
    processed_seq: i64,
    attempts: i32,
    owner: Option<Uuid>,
    last_error: Option<String>,
    is_free: bool,
    left: Duration,
    head: i64,
    is_paused: bool,
}

impl Tip {
    pub(super) fn of(row: &MySqlRow) -> Result<Self> {
        let left: i64 = row.try_get("micros_left")?;
        Ok(Self {
            epoch: row.try_get("epoch")?,
            processed_seq: row.try_get("processed_seq")?,
            attempts: row.try_get("attempts")?,
            owner: owner(row)?,
            last_error: row.try_get("last_error")?,
            is_free: row.try_get::<i64, _>("is_free")? != 0,
            left: Duration::from_micros(u64::try_from(left).unwrap_or_default()),
            head: row.try_get("head")?,
            is_paused: row.try_get::<i64, _>("is_paused")? != 0,
        })
    }

    /// What there is to take; or why nothing is.
    pub(super) fn offer(self, claim: &Claim) -> Result<Offer, Acquired> {
        if self.processed_seq >= self.head {
            return Err(Acquired::Empty);
        }
        if self.is_paused {
            return Err(Acquired::Paused);
        }
        if !self.is_free {
            return Err(Acquired::Held(self.left));
        }
        let is_mine = self.owner == Some(claim.owner);
        // A link of our own that no handler was called for was only a reply that got lost, and no try.
        let is_try = !is_mine || self.epoch == claim.handled_epoch;
        Ok(Offer {
            epoch: self.epoch,
            processed_seq: self.processed_seq,
            attempts: self.attempts.saturating_add(i32::from(is_try)),
            // Whoever had the lease died with it: the one message that may have killed it comes alone.
            most: if self.owner.is_none() { size(claim.batch_size) } else { 1 },
            last_error: self.last_error,
        })
    }
}

/// A lease that can be taken, behind the link of this epoch.
pub(super) struct Offer {
    pub(super) epoch: i64,
    pub(super) processed_seq: i64,
    pub(super) attempts: i32,
    pub(super) most: i32,
    last_error: Option<String>,
}

impl Offer {
    /// The batch under the lease, which is taken now; or the seq of the message that is missing in it.
    pub(super) fn leased(
        self,
        rows: &[MySqlRow],
        queue: &Queue,
        claim: &Claim,
    ) -> Result<Result<Leased, i64>> {
        let attempts = u32::try_from(self.attempts).unwrap_or_default();
        leased(rows, queue, claim, self.epoch + 1, self.processed_seq, attempts, self.last_error)
    }
}

/// Looks, appends to what was seen, reads. What was seen of a link stays true for as long as it is the newest.
pub(super) async fn acquire(store: &MySqlStore, queue: &Queue, claim: &Claim) -> Result<Acquired> {
    let tip = look(store, claim).await?.ok_or_else(|| no_cursor(queue, claim))?;
    let offer = match tip.offer(claim) {
        Ok(offer) => offer,
        Err(nothing) => return Ok(nothing),
    };
    let Offer { epoch, processed_seq, attempts, most, .. } = offer;
    if !work!(store, ANSWER_LIMIT, |conn| append(store, conn, claim, epoch, attempts))? {
        return not_appended(store, claim, epoch).await;
    }
    let rows = work!(store, ANSWER_LIMIT, |conn| read(store, conn, claim.partition_id, processed_seq, most))?;
    match offer.leased(&rows, queue, claim)? {
        Ok(leased) => Ok(Acquired::Batch(leased)),
        Err(missing) => Err(incomplete(queue, claim, missing, is_mine_now(store, claim, epoch + 1).await)),
    }
}

async fn look(store: &MySqlStore, claim: &Claim) -> Result<Option<Tip>> {
    let statement = || {
        query(&store.sql().look)
            .bind(bytes(claim.owner))
            .bind(claim.partition_id)
            .bind(claim.partition_id)
            .bind(READER)
            .bind(claim.partition_id)
    };
    store.fetch(statement).await?.first().map(Tip::of).transpose()
}

/// Whether the lease is taken now: the link that was looked at was still the newest, and nothing had it locked.
async fn append(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    claim: &Claim,
    epoch: i64,
    attempts: i32,
) -> Result<bool> {
    let lease = millis(claim.lease);
    let statement =
        if claim.is_transactional { &store.sql().acquire_transactional } else { &store.sql().acquire };
    let statement =
        query(statement).bind(attempts).bind(bytes(claim.owner)).bind(lease).bind(lease).bind(READER);
    was_appended(statement.bind(epoch).bind(claim.partition_id).bind(bytes(claim.owner)).execute(conn).await)
}

fn was_appended(result: Result<sqlx::mysql::MySqlQueryResult, sqlx::Error>) -> Result<bool> {
    match result {
        Err(error) if number(&error) == Some(DUPLICATE) => Ok(false),
        result => Ok(result?.rows_affected() > 0),
    }
}

/// Why nothing was appended: somebody else was faster, or has only just taken it; or nobody has, but a handler's transaction
/// has the partition locked.
async fn not_appended(store: &MySqlStore, claim: &Claim, epoch: i64) -> Result<Acquired> {
    Ok(match look(store, claim).await?.filter(|tip| tip.epoch == epoch) {
        Some(tip) if !tip.is_free => Acquired::Held(tip.left),
        Some(_) if claim.is_transactional => Acquired::Locked,
        _ => Acquired::Raced,
    })
}

/// The rows of a batch, in the order of their seqs.
async fn read(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    partition_id: i32,
    processed_seq: i64,
    most: i32,
) -> Result<Vec<MySqlRow>> {
    let last = processed_seq + i64::from(most);
    let statement = query(&store.sql().read)
        .bind(partition_id)
        .bind(processed_seq)
        .bind(last + SEGMENT)
        .bind(last)
        .bind(processed_seq + 1)
        .bind(last);
    in_order(statement.fetch_all(conn).await?)
}

pub(super) fn in_order(rows: Vec<MySqlRow>) -> Result<Vec<MySqlRow>> {
    let mut placed = rows
        .into_iter()
        .map(|row| Ok((row.try_get("seq")?, row)))
        .collect::<Result<Vec<(i64, _)>, sqlx::Error>>()?;
    placed.sort_unstable_by_key(|(seq, _)| *seq);
    Ok(placed.into_iter().map(|(_, row)| row).collect())
}

/// The batch under a lease that was just taken or renewed; or the seq of the message that is missing in it.
fn leased(
    rows: &[MySqlRow],
    queue: &Queue,
    claim: &Claim,
    epoch: i64,
    processed_seq: i64,
    attempts: u32,
    last_error: Option<String>,
) -> Result<Result<Leased, i64>> {
    if rows.is_empty() {
        return Ok(Err(processed_seq + 1));
    }
    Ok(match messages(rows.iter().map(placed), queue, claim, processed_seq, attempts.saturating_sub(1), 0)? {
        Read::Messages(messages) => Ok(Leased { epoch, processed_seq, attempts, last_error, messages }),
        Read::Missing(seq) => Err(seq),
    })
}

/// Whether the newest link of a partition's cursor is this one, and ours.
async fn is_mine_now(store: &MySqlStore, claim: &Claim, epoch: i64) -> Result<bool> {
    let tip = look(store, claim).await?;
    Ok(tip.is_some_and(|tip| tip.epoch == epoch && tip.owner == Some(claim.owner)))
}

pub(super) async fn settle(
    store: &MySqlStore,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    work!(store, ANSWER_LIMIT, |conn| settle_alone(store, conn, queue, claim, settlement))
}

/// A transaction is needed only if there is more than the link to write.
async fn settle_alone(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let next = next(store, conn, queue, claim, settlement).await?;
    if settlement.burials.is_empty() {
        return move_and_bury(store, conn, queue, claim, settlement, next).await;
    }
    let mut tx = begin(conn).await?;
    let settled = move_and_bury(store, &mut tx, queue, claim, settlement, next).await?;
    if matches!(settled, Settled::Lost) {
        tx.rollback().await?;
    } else {
        kill_point!(DeadLetterBeforeCommit);
        tx.commit().await?;
    }
    conn.execute(REST).await?;
    Ok(settled)
}

pub(super) async fn settle_within(
    store: &MySqlStore,
    mut transaction: Transaction<'_, MySql>,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let settled = answer(async {
        let next = next(store, &mut transaction, queue, claim, settlement).await?;
        move_and_bury(store, &mut transaction, queue, claim, settlement, next).await
    })
    .await?;
    match settled {
        Settled::Lost => answer(transaction.rollback()).await?,
        _ => {
            kill_point!(TransactionBeforeCommit);
            answer(transaction.commit()).await?;
        }
    }
    Ok(settled)
}

/// What comes behind a settlement, if it succeeds: the next batch, read before the cursor moves to it.
async fn next(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let (partition_id, processed_seq) = (claim.partition_id, settlement.processed_seq);
    let rows = if settlement.go_on {
        read(store, conn, partition_id, processed_seq, size(claim.batch_size)).await?
    } else {
        query(&store.sql().head).bind(partition_id).fetch_all(conn).await?
    };
    next_of(&rows, queue, claim, settlement)
}

/// The rows of the next batch, in order; or, if the lease is to be let go, that of the head.
pub(super) fn next_of(
    rows: &[MySqlRow],
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let processed_seq = settlement.processed_seq;
    if !settlement.go_on {
        let head: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
        return Ok(Settled::Released { has_more: head > processed_seq });
    }
    if rows.is_empty() {
        return Ok(Settled::Released { has_more: false });
    }
    let leased = leased(rows, queue, claim, settlement.epoch + 1, processed_seq, 1, None)?;
    // If a message is missing in the next batch, this one is settled all the same; whoever acquires will find out.
    Ok(leased.map_or(Settled::Released { has_more: true }, Settled::Next))
}

/// Moves the cursor and writes the dead letters; or neither, if the lease was taken over.
async fn move_and_bury(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
    next: Settled,
) -> Result<Settled> {
    if !move_cursor(store, conn, claim, settlement, matches!(next, Settled::Next(_))).await? {
        return Ok(Settled::Lost);
    }
    kill_point!(DeadLetterWithin if !settlement.burials.is_empty());
    // As JSON, a reason takes up to six times its length.
    let most = store.shared.max_packet / (6 * MAX_REASON + 128);
    for burials in settlement.burials.chunks(most.max(1)) {
        let rows: Vec<_> = burials.iter().map(|b| (b.id, b.seq, &b.reason, count(b.attempts))).collect();
        let bury = query(&store.sql().bury)
            .bind(claim.partition_id)
            .bind(queue.name.to_string())
            .bind(queue.number_of(claim.partition_id))
            .bind(json(&rows).into_bytes());
        let buried = bury.execute(&mut *conn).await?.rows_affected();
        if buried != u64::try_from(burials.len()).unwrap_or(u64::MAX) {
            return Err(OutboxError::Unsuitable(format!(
                "queue {:?}: {} messages were rejected, but {buried} of them are there",
                queue.name,
                burials.len()
            )));
        }
    }
    Ok(next)
}

/// Appends the link that moves the cursor; false if the lease was taken over.
async fn move_cursor(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    claim: &Claim,
    settlement: &Settlement,
    goes_on: bool,
) -> Result<bool> {
    let hold = if goes_on { Some(claim.lease) } else { settlement.backoff }.map(millis);
    let statement = query(&store.sql().settle)
        .bind(settlement.processed_seq)
        .bind(if goes_on { 1 } else { count(settlement.attempts) })
        .bind(goes_on.then(|| bytes(claim.owner)))
        .bind(hold)
        .bind(hold)
        .bind(settlement.last_error.clone().filter(|_| !goes_on).map(String::into_bytes))
        .bind(READER)
        .bind(claim.partition_id)
        .bind(settlement.epoch)
        .bind(bytes(claim.owner))
        .bind(settlement.processed_seq)
        .bind(claim.partition_id);
    was_appended(statement.execute(conn).await)
}

pub(super) async fn waiting(store: &MySqlStore, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
    let partitions = json(&partition_ids);
    let statement =
        || query(&store.sql().waiting).bind(partitions.clone()).bind(READER).bind(READER).bind(bytes(owner));
    let rows = store.fetch(statement).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

fn bytes(owner: Uuid) -> Vec<u8> {
    owner.as_bytes().to_vec()
}

pub(super) fn owner(row: &MySqlRow) -> Result<Option<Uuid>> {
    let owner: Option<Vec<u8>> = row.try_get("owner")?;
    Ok(owner.and_then(|owner| Uuid::from_slice(&owner).ok()))
}
