//! What gives messages to processors, and settles.

use std::time::Duration;

use sqlx::{
    Postgres, Row, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    PostgresStore, answer,
    batch::{Read, messages},
    query,
};
use crate::{
    OutboxError,
    store::{Acquired, Burial, Claim, Leased, Queue, READER, Result, Settled, Settlement},
};

pub(super) async fn acquire(store: &PostgresStore, queue: &Queue, claim: &Claim) -> Result<Acquired> {
    let statement = query(&store.sql().acquire)
        .bind(READER)
        .bind(claim.partition_id)
        .bind(claim.owner)
        .bind(millis(claim.lease))
        .bind(size(claim.batch_size))
        .bind(claim.handled_epoch)
        .bind(claim.is_transactional);
    let rows = store.fetch(statement).await?;
    let first = rows.first().ok_or_else(|| no_cursor(queue, claim))?;
    let Some(epoch) = first.try_get::<Option<i64>, _>("epoch")? else {
        return not_acquired(first);
    };
    match leased(&rows, queue, claim, epoch, first.try_get("last_error")?)? {
        Ok(leased) => Ok(Acquired::Batch(leased)),
        Err(missing) => Err(incomplete(store, queue, claim, epoch, missing).await),
    }
}

fn not_acquired(row: &PgRow) -> Result<Acquired> {
    let (processed, head): (i64, i64) = (row.try_get("processed_seq")?, row.try_get("head")?);
    if processed >= head {
        return Ok(Acquired::Empty);
    }
    if !row.try_get::<bool, _>("is_held")? {
        let is_locked: bool = row.try_get("is_locked")?;
        return Ok(if is_locked { Acquired::Locked } else { Acquired::Raced });
    }
    let left: Option<f64> = row.try_get("seconds_left")?;
    Ok(Acquired::Held(Duration::try_from_secs_f64(left.unwrap_or_default()).unwrap_or_default()))
}

pub(super) async fn settle(
    store: &PostgresStore,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let rows = store.fetch(settle_statement(store, queue, claim, settlement)).await?;
    match settled(queue, claim, settlement, &rows)? {
        Ok(settled) => Ok(settled),
        Err((epoch, missing)) => Err(incomplete(store, queue, claim, epoch, missing).await),
    }
}

pub(super) async fn settle_within(
    store: &PostgresStore,
    mut transaction: Transaction<'_, Postgres>,
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
) -> Result<Settled> {
    let statement = settle_statement(store, queue, claim, settlement).persistent(!store.is_pooled());
    let rows = answer(statement.fetch_all(&mut *transaction)).await?;
    // If a message is missing in the next batch, this one is settled all the same; whoever acquires will find out.
    let settled = settled(queue, claim, settlement, &rows)?.unwrap_or(Settled::Released { has_more: true });
    match settled {
        Settled::Lost => answer(transaction.rollback()).await?,
        _ => answer(transaction.commit()).await?,
    }
    Ok(settled)
}

fn settle_statement<'q>(
    store: &PostgresStore,
    queue: &'q Queue,
    claim: &Claim,
    settlement: &'q Settlement,
) -> Query<'q, Postgres, PgArguments> {
    let burials = &settlement.burials;
    let number = queue.partition_ids.iter().position(|id| *id == claim.partition_id).unwrap_or_default();
    query(&store.sql().settle)
        .bind(READER)
        .bind(claim.partition_id)
        .bind(claim.owner)
        .bind(settlement.epoch)
        .bind(settlement.processed_seq)
        .bind(millis(claim.lease))
        .bind(if settlement.go_on { size(claim.batch_size) } else { 0 })
        .bind(count(settlement.attempts))
        .bind(settlement.last_error.as_deref())
        .bind(burials.iter().map(|burial| burial.id).collect::<Vec<_>>())
        .bind(burials.iter().map(|burial| burial.seq).collect::<Vec<_>>())
        .bind(burials.iter().map(|burial| burial.reason.as_str()).collect::<Vec<_>>())
        .bind(burials.iter().map(|Burial { attempts, .. }| count(*attempts)).collect::<Vec<_>>())
        .bind(&*queue.name)
        .bind(i32::try_from(number).unwrap_or(i32::MAX))
        .bind(!claim.is_transactional)
}

/// What came of settling; or the epoch of the lease under which a message is missing, and its seq.
fn settled(
    queue: &Queue,
    claim: &Claim,
    settlement: &Settlement,
    rows: &[PgRow],
) -> Result<Result<Settled, (i64, i64)>> {
    let Some(first) = rows.first() else { return Ok(Ok(Settled::Lost)) };
    if !first.try_get::<bool, _>("goes_on")? {
        let has_more = first.try_get::<i64, _>("head")? > settlement.processed_seq;
        return Ok(Ok(Settled::Released { has_more }));
    }
    let epoch = first.try_get("epoch")?;
    Ok(leased(rows, queue, claim, epoch, None)?.map(Settled::Next).map_err(|missing| (epoch, missing)))
}

/// The batch under a lease that was just taken or renewed; or the seq of the message that is missing in it.
fn leased(
    rows: &[PgRow],
    queue: &Queue,
    claim: &Claim,
    epoch: i64,
    last_error: Option<String>,
) -> Result<Result<Leased, i64>> {
    let Some(first) = rows.first() else { return Ok(Err(0)) };
    let processed_seq = first.try_get("processed_seq")?;
    let attempts: i32 = first.try_get("attempts")?;
    let attempts = u32::try_from(attempts).unwrap_or_default();
    Ok(match messages(rows, queue, claim, processed_seq, attempts.saturating_sub(1))? {
        Read::Messages(messages) => Ok(Leased { epoch, processed_seq, attempts, last_error, messages }),
        Read::Missing(seq) => Err(seq),
    })
}

/// A message that should be there is not. If the lease is no longer ours, others have passed it since; if it still is,
/// something is badly wrong, and the partition stops rather than skip it.
async fn incomplete(
    store: &PostgresStore,
    queue: &Queue,
    claim: &Claim,
    epoch: i64,
    seq: i64,
) -> OutboxError {
    let statement = query(&store.sql().look).bind(READER).bind(claim.partition_id).bind(claim.owner);
    let is_mine = async {
        let rows = store.fetch(statement).await?;
        let Some(row) = rows.first() else { return Ok(false) };
        let newest: i64 = row.try_get("epoch")?;
        Ok::<_, OutboxError>(newest == epoch && row.try_get::<Option<bool>, _>("is_mine")? == Some(true))
    };
    let (queue, id) = (&queue.name, claim.partition_id);
    match is_mine.await {
        Err(error) => error,
        Ok(false) => {
            OutboxError::Unsuitable(format!("queue {queue:?}: the lease of partition {id} was taken over"))
        }
        Ok(true) => {
            let text = format!(
                "queue {queue:?}: message {seq} of partition {id} is missing; delivery stops before it"
            );
            tracing::error!("{text}");
            OutboxError::Unsuitable(text)
        }
    }
}

pub(super) async fn waiting(store: &PostgresStore, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
    let rows = store.fetch(query(&store.sql().waiting).bind(READER).bind(partition_ids).bind(owner)).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}

fn no_cursor(queue: &Queue, claim: &Claim) -> OutboxError {
    let (queue, id) = (&queue.name, claim.partition_id);
    OutboxError::Unsuitable(format!(
        "queue {queue:?}: partition {id} has no cursor; was a table emptied by hand?"
    ))
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// No batch is larger, whatever the tuning says: the statement adds places in a segment to it.
fn size(batch: u32) -> i32 {
    const LARGEST: u32 = 1_000_000;
    batch.min(LARGEST).cast_signed()
}

fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}
