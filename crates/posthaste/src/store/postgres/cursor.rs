//! What gives messages to processors, and settles.

use std::time::Duration;

use sqlx::{
    Postgres, Row, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{PostgresStore, answer, query};
use crate::store::{
    Acquired, Burial, Claim, Leased, Queue, READER, Result, Settled, Settlement,
    batch::{Read, count, incomplete, messages, millis, no_cursor, size},
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
        Err(missing) => Err(incomplete(queue, claim, missing, is_mine(store, claim, epoch).await)),
    }
}

fn not_acquired(row: &PgRow) -> Result<Acquired> {
    let (processed, head): (i64, i64) = (row.try_get("processed_seq")?, row.try_get("head")?);
    if processed >= head {
        return Ok(Acquired::Empty);
    }
    if row.try_get("is_paused")? {
        return Ok(Acquired::Paused);
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
        Err((epoch, missing)) => Err(incomplete(queue, claim, missing, is_mine(store, claim, epoch).await)),
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
    let number = queue.number_of(claim.partition_id);
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
        .bind(number.cast_signed())
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

/// Whether the newest link of a partition's cursor is this one, and ours.
async fn is_mine(store: &PostgresStore, claim: &Claim, epoch: i64) -> Result<bool> {
    let statement = query(&store.sql().look).bind(READER).bind(claim.partition_id).bind(claim.owner);
    let rows = store.fetch(statement).await?;
    let Some(row) = rows.first() else { return Ok(false) };
    let newest: i64 = row.try_get("epoch")?;
    Ok(newest == epoch && row.try_get::<Option<bool>, _>("is_mine")? == Some(true))
}

pub(super) async fn waiting(store: &PostgresStore, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
    let rows = store.fetch(query(&store.sql().waiting).bind(READER).bind(partition_ids).bind(owner)).await?;
    Ok(rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?)
}
