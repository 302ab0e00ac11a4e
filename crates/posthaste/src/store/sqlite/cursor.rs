//! What gives messages to processors, and settles.

use std::time::Duration;

use sqlx::{
    Connection, Row, Sqlite, SqliteConnection, Transaction,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use super::{
    BEGIN, SqliteStore,
    busy::{Kind, reading, writing},
    query,
};
use crate::store::{
    Acquired, Claim, Leased, Queue, READER, Result, Settled, Settlement,
    batch::{Read, count, incomplete, messages, millis, no_cursor, size},
    segments::json,
};

/// The newest link of a partition's cursor.
pub(super) struct Tip {
    pub(super) epoch: i64,
    pub(super) is_mine: bool,
    processed_seq: i64,
    is_owned: bool,
    is_free: bool,
    left: Duration,
    head: i64,
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
    if !tip.is_free {
        return Ok(Acquired::Held(tip.left));
    }
    // Whoever had the lease died with it: the one message that may have killed it comes alone.
    let most = if tip.is_owned { 1 } else { size(claim.batch_size) };
    let acquired = writing!(store, Kind::Quick, conn => async {
        let append = query(&store.sql().acquire)
            .bind(READER)
            .bind(claim.partition_id)
            .bind(&claim.owner.as_bytes()[..])
            .bind(millis(claim.lease))
            .bind(claim.handled_epoch)
            .bind(tip.epoch);
        written(append, conn).await
    })?;
    let Some(link) = acquired else { return Ok(Acquired::Raced) };
    let lease = Lease::of(&link, link.try_get("last_error")?)?;
    Ok(Acquired::Batch(read_next(store, queue, claim, lease, most).await?))
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

    fn with(self, messages: Vec<crate::OutboxMessage>) -> Leased {
        let Self { epoch, processed_seq, attempts, last_error } = self;
        Leased { epoch, processed_seq, attempts, last_error, messages }
    }
}

/// The batch under a lease.
async fn read_next(
    store: &SqliteStore,
    queue: &Queue,
    claim: &Claim,
    lease: Lease,
    most: i32,
) -> Result<Leased> {
    let batch = reading!(store, conn => read(store, conn, queue, claim, &lease, most))?;
    match batch {
        Read::Messages(messages) => Ok(lease.with(messages)),
        Read::Missing(seq) => Err(incomplete(queue, claim, seq, is_mine(store, claim, lease.epoch).await)),
    }
}

async fn read(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    claim: &Claim,
    lease: &Lease,
    most: i32,
) -> Result<Read> {
    let statement = query(&store.sql().read).bind(claim.partition_id).bind(lease.processed_seq).bind(most);
    let rows = statement.fetch_all(conn).await?;
    let rows = rows.into_iter().map(|row| Ok((row.try_get("seq")?, row)));
    let mut rows = rows.collect::<Result<Vec<(i64, SqliteRow)>, sqlx::Error>>()?;
    if rows.is_empty() {
        return Ok(Read::Missing(lease.processed_seq + 1));
    }
    rows.sort_by_key(|(seq, _)| *seq);
    let rows: Vec<_> = rows.into_iter().map(|(_, row)| row).collect();
    messages(&rows, queue, claim, lease.processed_seq, lease.attempts.saturating_sub(1))
}

/// Whether the newest link of a partition's cursor is this one, and ours.
async fn is_mine(store: &SqliteStore, claim: &Claim, epoch: i64) -> Result<bool> {
    let tip = reading!(store, conn => look(store, conn, claim))?;
    Ok(tip.is_some_and(|tip| tip.epoch == epoch && tip.is_mine))
}

/// One statement; with dead letters, a transaction. The next batch is read when others may write again.
pub(super) async fn settle(
    store: &SqliteStore,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let link = writing!(store, Kind::Quick, conn => async {
        if settlement.burials.is_empty() {
            return append(store, conn, claim, settlement).await;
        }
        let mut tx = conn.begin_with(BEGIN).await?;
        let link = append_and_bury(store, &mut tx, queue, claim, settlement).await?;
        tx.commit().await?;
        Ok(link)
    });
    match after(settlement, link?)? {
        After::GoesOn(lease) => {
            Ok(Settled::Next(read_next(store, queue, claim, lease, size(claim.batch_size)).await?))
        }
        After::Ended(settled) => Ok(settled),
    }
}

/// In the handler's transaction, which also reads the next batch: a pool may have no other connection.
pub(super) async fn settle_within(
    store: &SqliteStore,
    mut transaction: Transaction<'_, Sqlite>,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let link = append_and_bury(store, &mut transaction, queue, claim, settlement).await?;
    let settled = match after(settlement, link)? {
        After::Ended(settled) => settled,
        After::GoesOn(lease) => {
            match read(store, &mut transaction, queue, claim, &lease, size(claim.batch_size)).await? {
                Read::Messages(messages) => Settled::Next(lease.with(messages)),
                // This batch is settled all the same; whoever acquires will find out.
                Read::Missing(_) => Settled::Released { has_more: true },
            }
        }
    };
    match settled {
        Settled::Lost => transaction.rollback().await?,
        _ => transaction.commit().await?,
    }
    Ok(settled)
}

async fn append(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Option<SqliteRow>> {
    let append = query(&store.sql().settle)
        .bind(READER)
        .bind(claim.partition_id)
        .bind(&claim.owner.as_bytes()[..])
        .bind(settlement.epoch)
        .bind(settlement.processed_seq)
        .bind(millis(claim.lease))
        .bind(settlement.go_on)
        .bind(count(settlement.attempts))
        .bind(settlement.last_error.as_deref());
    written(append, conn).await
}

/// The row that a statement has written, if any. It is run to its end, where it commits: whoever stops at the first row is not
/// told if that fails.
async fn written(
    statement: Query<'_, Sqlite, SqliteArguments>,
    conn: &mut SqliteConnection,
) -> Result<Option<SqliteRow>> {
    Ok(statement.fetch_all(conn).await?.pop())
}

/// No dead letters without a link.
async fn append_and_bury(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Option<SqliteRow>> {
    let link = append(store, conn, claim, settlement).await?;
    if link.is_some() && !settlement.burials.is_empty() {
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
    Ok(link)
}

/// What comes after a settlement.
enum After {
    GoesOn(Lease),
    Ended(Settled),
}

fn after(settlement: &Settlement, link: Option<SqliteRow>) -> Result<After> {
    let Some(link) = link else { return Ok(After::Ended(Settled::Lost)) };
    if link.try_get("goes_on")? {
        return Ok(After::GoesOn(Lease::of(&link, None)?));
    }
    let has_more = link.try_get::<i64, _>("head")? > settlement.processed_seq;
    Ok(After::Ended(Settled::Released { has_more }))
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
