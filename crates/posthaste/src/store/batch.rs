//! Rows into messages, and the check that none is missing.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Claim, Queue, Result};
use crate::{OutboxError, OutboxMessage, OutboxMessageId};

/// What a read found behind the cursor.
pub(super) enum Read {
    Messages(Vec<OutboxMessage>),
    /// The message that should have this seq is not there.
    Missing(i64),
}

/// A row that says which seq its message has; without the row if the message is not there.
pub(super) fn placed<R>(row: &R) -> Result<(i64, Option<&R>), sqlx::Error>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let (seq, id): (Option<i64>, Option<i64>) = (row.try_get("seq")?, row.try_get("id")?);
    Ok((seq.unwrap_or_default(), id.map(|_| row)))
}

/// The messages behind `processed_seq`, by their seqs, which must run on from it without a hole. Times count from `zero_us`.
pub(super) fn messages<'r, R>(
    rows: impl ExactSizeIterator<Item = Result<(i64, Option<&'r R>), sqlx::Error>>,
    queue: &Queue,
    claim: &Claim,
    processed_seq: i64,
    attempts: u32,
    zero_us: i64,
) -> Result<Read>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'d> i64: Decode<'d, R::Database> + Type<R::Database>,
    for<'d> String: Decode<'d, R::Database> + Type<R::Database>,
    for<'d> Vec<u8>: Decode<'d, R::Database> + Type<R::Database>,
{
    let mut messages = Vec::with_capacity(rows.len());
    let partition = queue.number_of(claim.partition_id);
    for (row, expected) in rows.zip(processed_seq + 1..) {
        let (seq, row) = row?;
        let Some(row) = row.filter(|_| seq == expected) else {
            return Ok(Read::Missing(expected));
        };
        let id = row.try_get("id")?;
        // Not every database calls a text by that name: MySQL gives its bytes, whatever the session's character set.
        let headers: Option<String> = row.try_get_unchecked("headers")?;
        let headers = headers_of(headers.as_deref(), id)?;
        let created_us = zero_us + row.try_get_unchecked::<i64, _>("created_us")?;
        messages.push(OutboxMessage {
            id: OutboxMessageId(id),
            queue: Arc::clone(&queue.name),
            partition,
            partition_id: claim.partition_id,
            seq,
            key: row.try_get_unchecked("key")?,
            headers,
            payload: row.try_get("payload")?,
            payload_type: row.try_get_unchecked("payload_type")?,
            created_at: SystemTime::UNIX_EPOCH
                + Duration::from_micros(u64::try_from(created_us).unwrap_or_default()),
            attempts: if messages.is_empty() { attempts } else { 0 },
        });
    }
    Ok(Read::Messages(messages))
}

/// The headers of a message. If they cannot be read, that is all that is said: what the parser says would show some of them.
pub(super) fn headers_of(json: Option<&str>, id: i64) -> Result<Vec<(String, String)>> {
    let headers = json.map_or(Ok(Vec::new()), serde_json::from_str);
    headers.map_err(|_| OutboxError::Unsuitable(format!("the headers of message {id} are no list of pairs")))
}

/// A message that should be there is not. If the lease is no longer ours, others have passed it since; if it still is,
/// something is badly wrong, and the partition stops rather than skip it.
pub(super) fn incomplete(queue: &Queue, claim: &Claim, seq: i64, is_mine: Result<bool>) -> OutboxError {
    let (queue, id) = (&queue.name, claim.partition_id);
    match is_mine {
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

pub(super) fn no_cursor(queue: &Queue, claim: &Claim) -> OutboxError {
    let (queue, id) = (&queue.name, claim.partition_id);
    OutboxError::Unsuitable(format!(
        "queue {queue:?}: partition {id} has no cursor; was a table emptied by hand?"
    ))
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// No batch is larger, whatever the tuning says: statements add places in a segment to it.
pub(super) fn size(batch: u32) -> i32 {
    const LARGEST: u32 = 1_000_000;
    batch.min(LARGEST).cast_signed()
}

pub(super) fn count(attempts: u32) -> i32 {
    i32::try_from(attempts).unwrap_or(i32::MAX)
}
