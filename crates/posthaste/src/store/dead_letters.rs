//! Rows into dead letters.

use std::time::{Duration, SystemTime};

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::batch::headers_of;
use crate::{DeadLetterMessage, OutboxError, OutboxMessageId};

/// A dead letter. The columns are called as in `read_dead_letters.sql` of PostgreSQL.
pub(super) fn dead_letter<R>(row: &R) -> Result<DeadLetterMessage, sqlx::Error>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let number = |name: &str| row.try_get::<i64, _>(name);
    // Not every database calls a text by that name: MySQL gives its bytes, whatever the session's character set.
    let text = |name: &str| row.try_get_unchecked::<String, _>(name);
    let headers: Option<String> = row.try_get_unchecked("headers")?;
    let (claimed, redelivered): (Option<i64>, Option<i64>) =
        (row.try_get("claimed_us")?, row.try_get("redelivered_as")?);
    let id = number("id")?;
    Ok(DeadLetterMessage {
        id: OutboxMessageId(id),
        queue: text("queue")?.into(),
        partition: u32::try_from(number("partition")?).unwrap_or_default(),
        partition_id: row.try_get("partition_id")?,
        seq: number("seq")?,
        key: row.try_get_unchecked("key")?,
        headers: headers_of(headers.as_deref(), id).map_err(undecodable)?,
        payload: row.try_get("payload")?,
        payload_type: text("payload_type")?,
        created_at: time(number("created_us")?),
        attempts: u32::try_from(number("attempts")?).unwrap_or_default(),
        reason: text("reason")?,
        rejected_at: time(number("rejected_us")?),
        status: text("status")?.parse().map_err(undecodable)?,
        changed_at: time(number("changed_us")?),
        claimed_until: claimed.map(time),
        redelivered_as: redelivered.map(OutboxMessageId),
    })
}

fn undecodable(error: OutboxError) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

fn time(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
