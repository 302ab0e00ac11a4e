//! What gives messages to processors, and settles.

use std::time::Duration;

use sqlx::{Connection, Row, Sqlite, SqliteConnection, Transaction, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    BEGIN, SqliteStore,
    busy::{Kind, reading, writing},
    query,
};
use crate::store::{
    Acquired, Claim, Leased, Queue, READER, Result, Settled, Settlement,
    batch::{Read, count, incomplete, messages, millis, no_cursor, placed, size},
    segments::json,
};

/// How long whoever takes over a lease waits for its holder, once the holder could settle.
const COURTESY: Duration = Duration::from_millis(100);

/// The newest link of a partition's cursor.
pub(super) struct Tip {
    pub(super) epoch: i64,
    pub(super) is_mine: bool,
    processed_seq: i64,
    is_owned: bool,
    is_free: bool,
    left: Duration,
    head: i64,
    is_paused: bool,
}

pub(super) async fn look(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    claim: &Claim,
) -> Result<Option<Tip>> {
    let owner = &claim.owner.as_bytes()[..];
    let statement = query(&store.sql().look).bind(READER).bind(claim.partition_id).bind(owner);
    let Some(row) = statement.fetch_optional(conn).await? else { return Ok(None) };
    let micros_left: i64 = row.try_get("micros_left")?;
    Ok(Some(Tip {
        epoch: row.try_get("epoch")?,
        is_mine: row.try_get("is_mine")?,
        processed_seq: row.try_get("processed_seq")?,
        is_owned: row.try_get("is_owned")?,
        is_free: row.try_get("is_free")?,
        left: Duration::from_micros(u64::try_from(micros_left).unwrap_or_default()),
        head: row.try_get("head")?,
        is_paused: row.try_get("is_paused")?,
    }))
}

/// Looks first, and writes only if there is something to take. What was looked at may have changed until it is our turn to
/// write, so the statement that writes looks again.
pub(super) async fn acquire(store: &SqliteStore, queue: &Queue, claim: &Claim) -> Result<Acquired> {
    let tip = reading!(store, conn => look(store, conn, claim))?;
    let tip = tip.ok_or_else(|| no_cursor(queue, claim))?;
    if tip.processed_seq >= tip.head {
        return Ok(Acquired::Empty);
    }
    if tip.is_paused {
        return Ok(Acquired::Paused);
    }
    if !tip.is_free {
        return Ok(Acquired::Held(tip.left));
    }
    if tip.is_owned && !tip.is_mine {
        let_the_holder_settle(store).await?;
    }
    // Whoever had the lease died with it: the one message that may have killed it comes alone.
    let most = if tip.is_owned { 1 } else { size(claim.batch_size) };
    let rows = writing!(store, Kind::Quick, conn => async {
        let statement = query(&store.sql().acquire)
            .bind(READER)
            .bind(claim.partition_id)
            .bind(&claim.owner.as_bytes()[..])
            .bind(millis(claim.lease))
            .bind(claim.handled_epoch)
            .bind(tip.epoch)
            .bind(most);
        Ok(statement.fetch_all(conn).await?)
    })?;
    let (Some(link), batch) = link_and_batch(rows)? else { return Ok(Acquired::Raced) };
    let lease = Lease::of(&link, link.try_get("last_error")?)?;
    match leased(queue, claim, lease, &batch)? {
        Ok(leased) => Ok(Acquired::Batch(leased)),
        Err((epoch, seq)) => Err(incomplete(queue, claim, seq, is_mine(store, claim, epoch).await)),
    }
}

/// A lease that ran out may be that of somebody who is done, and waits for its turn to settle, which a handler's transaction has
/// had all the time. Once nobody has it, the holder has a moment to come first.
async fn let_the_holder_settle(store: &SqliteStore) -> Result<()> {
    writing!(store, Kind::Quick, conn => async { Ok(conn.begin_with(BEGIN).await?.rollback().await?) })?;
    tokio::time::sleep(COURTESY).await;
    Ok(())
}

/// What was appended, if anything, and the messages behind it in their order.
fn link_and_batch(rows: Vec<SqliteRow>) -> Result<(Option<SqliteRow>, Vec<SqliteRow>)> {
    let (mut link, mut batch) = (None, Vec::with_capacity(rows.len()));
    for row in rows {
        match row.try_get::<i64, _>("seq") {
            Ok(seq) => batch.push((seq, row)),
            Err(sqlx::Error::ColumnNotFound(_)) => link = Some(row),
            Err(error) => return Err(error.into()),
        }
    }
    batch.sort_by_key(|(seq, _)| *seq);
    Ok((link, batch.into_iter().map(|(_, row)| row).collect()))
}

/// A lease that was just taken or renewed.
struct Lease {
    epoch: i64,
    processed_seq: i64,
    attempts: u32,
    last_error: Option<String>,
}

impl Lease {
    fn of(link: &SqliteRow, last_error: Option<String>) -> Result<Self> {
        let attempts: i64 = link.try_get("attempts")?;
        Ok(Self {
            epoch: link.try_get("epoch")?,
            processed_seq: link.try_get("processed_seq")?,
            attempts: u32::try_from(attempts).unwrap_or_default(),
            last_error,
        })
    }
}

/// The batch under a lease; or its epoch, and the seq of the message that is missing in it.
fn leased(
    queue: &Queue,
    claim: &Claim,
    lease: Lease,
    batch: &[SqliteRow],
) -> Result<Result<Leased, (i64, i64)>> {
    let Lease { epoch, processed_seq, attempts, last_error } = lease;
    if batch.is_empty() {
        return Ok(Err((epoch, processed_seq + 1)));
    }
    Ok(
        match messages(batch.iter().map(placed), queue, claim, processed_seq, attempts.saturating_sub(1), 0)?
        {
            Read::Messages(messages) => Ok(Leased { epoch, processed_seq, attempts, last_error, messages }),
            Read::Missing(seq) => Err((epoch, seq)),
        },
    )
}

/// Whether the newest link of a partition's cursor is this one, and ours.
async fn is_mine(store: &SqliteStore, claim: &Claim, epoch: i64) -> Result<bool> {
    let tip = reading!(store, conn => look(store, conn, claim))?;
    Ok(tip.is_some_and(|tip| tip.epoch == epoch && tip.is_mine))
}

/// In one go; with dead letters, in a transaction. The next batch is read when others may write again.
pub(super) async fn settle(
    store: &SqliteStore,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let rows = writing!(store, Kind::Quick, conn => async {
        if settlement.burials.is_empty() {
            return append(store, conn, claim, settlement).await;
        }
        let mut tx = conn.begin_with(BEGIN).await?;
        let rows = append_and_bury(store, &mut tx, queue, claim, settlement).await?;
        kill_point!(DeadLetterBeforeCommit);
        tx.commit().await?;
        Ok(rows)
    })?;
    match settled(queue, claim, settlement, rows)? {
        Ok(settled) => Ok(settled),
        Err((epoch, seq)) => Err(incomplete(queue, claim, seq, is_mine(store, claim, epoch).await)),
    }
}

pub(super) async fn settle_within(
    store: &SqliteStore,
    mut transaction: Transaction<'_, Sqlite>,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let rows = append_and_bury(store, &mut transaction, queue, claim, settlement).await?;
    // If a message is missing in the next batch, this one is settled all the same; whoever acquires will find out.
    let settled = settled(queue, claim, settlement, rows)?.unwrap_or(Settled::Released { has_more: true });
    match settled {
        Settled::Lost => transaction.rollback().await?,
        _ => {
            kill_point!(TransactionBeforeCommit);
            transaction.commit().await?;
        }
    }
    Ok(settled)
}

async fn append(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Vec<SqliteRow>> {
    let statement = query(&store.sql().settle)
        .bind(READER)
        .bind(claim.partition_id)
        .bind(&claim.owner.as_bytes()[..])
        .bind(settlement.epoch)
        .bind(settlement.processed_seq)
        .bind(millis(claim.lease))
        .bind(settlement.go_on)
        .bind(count(settlement.attempts))
        .bind(settlement.last_error.as_deref())
        .bind(size(claim.batch_size))
        .bind(settlement.backoff.map(millis));
    Ok(statement.fetch_all(conn).await?)
}

/// No dead letters without a link.
async fn append_and_bury(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Vec<SqliteRow>> {
    let rows = append(store, conn, claim, settlement).await?;
    // A batch without a link is that of an earlier try whose answer was lost.
    let has_link = rows.first().is_some_and(|row| row.try_get::<i64, _>("epoch").is_ok());
    if has_link && !settlement.burials.is_empty() {
        kill_point!(DeadLetterWithin);
        let burials = settlement.burials.iter();
        let burials = burials.map(|burial| (burial.id, burial.seq, &burial.reason, count(burial.attempts)));
        query(&store.sql().bury)
            .bind(claim.partition_id)
            .bind(&*queue.name)
            .bind(queue.number_of(claim.partition_id))
            .bind(json(&burials.collect::<Vec<_>>()))
            .execute(conn)
            .await?;
    }
    Ok(rows)
}

/// What came of settling; or the epoch of the lease under which a message is missing, and its seq.
fn settled(
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
    rows: Vec<SqliteRow>,
) -> Result<Result<Settled, (i64, i64)>> {
    let (Some(link), batch) = link_and_batch(rows)? else { return Ok(Ok(Settled::Lost)) };
    if link.try_get("goes_on")? {
        return Ok(leased(queue, claim, Lease::of(&link, None)?, &batch)?.map(Settled::Next));
    }
    let has_more = link.try_get::<i64, _>("head")? > settlement.processed_seq;
    Ok(Ok(Settled::Released { has_more }))
}

pub(super) async fn waiting(store: &SqliteStore, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
    let partition_ids = json(&partition_ids);
    let owner = &owner.as_bytes()[..];
    let rows = reading!(store, conn => async {
        let statement = query(&store.sql().waiting).bind(READER).bind(&*partition_ids).bind(owner);
        Ok(statement.fetch_all(conn).await?)
    })?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}
