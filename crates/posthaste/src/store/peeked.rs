//! Rows into what lies in a queue, for whoever looks from outside.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Queue, Result, Unsettled, batch::headers_of};
use crate::{OutboxMessage, OutboxMessageId, enqueued::EnqueuedMessage};

/// The columns are called as in `peek.sql`.
pub(super) fn peeked<R>(rows: &[R], queue: &Queue) -> Result<Vec<EnqueuedMessage>>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    rows.iter().map(|row| message(row, queue)).collect()
}

fn message<R>(row: &R, queue: &Queue) -> Result<EnqueuedMessage>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    // Not every database calls a text by that name: MySQL gives its bytes, whatever the session's character set.
    let headers: Option<String> = row.try_get_unchecked("headers")?;
    let id = row.try_get("id")?;
    Ok(EnqueuedMessage {
        id: OutboxMessageId(id),
        queue: Arc::clone(&queue.name),
        partition: queue.number_of(row.try_get("partition_id")?),
        key: row.try_get_unchecked("key")?,
        headers: headers_of(headers.as_deref(), id)?,
        payload: row.try_get("payload")?,
        payload_type: row.try_get_unchecked("payload_type")?,
        created_at: SystemTime::UNIX_EPOCH + micros(row.try_get("created_us")?),
    })
}

/// The column is called as in `clock.sql`, and there is one row.
pub(super) fn clock<R>(rows: &[R]) -> Result<i64>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    Ok(row.try_get("now_us")?)
}

/// The columns are called as in `browse.sql`.
pub(super) fn browsed<R>(rows: &[R], queue: &Queue) -> Result<Vec<OutboxMessage>>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let messages = rows.iter().map(|row| {
        let EnqueuedMessage { id, queue, partition, key, headers, payload, payload_type, created_at } =
            message(row, queue)?;
        let (partition_id, seq) = (row.try_get("partition_id")?, row.try_get("seq")?);
        let attempts = 0;
        Ok(OutboxMessage {
            id,
            queue,
            partition,
            partition_id,
            seq,
            key,
            headers,
            payload,
            payload_type,
            created_at,
            attempts,
        })
    });
    let mut messages = messages.collect::<Result<Vec<_>>>()?;
    // Not every database can be made to read them in their order.
    messages.sort_unstable_by_key(|message| message.seq);
    Ok(messages)
}

/// The columns are called as in `unsettled.sql`.
pub(super) fn unsettled<R>(rows: &[R], queue: &Queue) -> Result<Vec<Unsettled>>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
{
    let partitions = rows.iter().map(|row| {
        let attempts: i32 = row.try_get("attempts")?;
        Ok(Unsettled {
            partition: queue.number_of(row.try_get("partition_id")?),
            sequenced: u64::try_from(row.try_get::<i64, _>("sequenced")?).unwrap_or_default(),
            unsequenced: u64::try_from(row.try_get::<i64, _>("unsequenced")?).unwrap_or_default(),
            first_id: row.try_get("first_id")?,
            age: micros(row.try_get::<Option<i64>, _>("age_us")?.unwrap_or_default()),
            attempts: u32::try_from(attempts).unwrap_or_default(),
            last_error: row.try_get_unchecked("last_error")?,
        })
    });
    Ok(partitions.collect::<Result<_, sqlx::Error>>()?)
}

fn micros(number: i64) -> Duration {
    Duration::from_micros(u64::try_from(number).unwrap_or_default())
}
