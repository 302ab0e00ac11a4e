//! Rows into messages, and the check that none is missing.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use sqlx::{Row, postgres::PgRow};

use crate::{
    OutboxMessage, OutboxMessageId,
    store::{Claim, Queue, Result},
};

/// What a read found behind the cursor.
pub(super) enum Read {
    Messages(Vec<OutboxMessage>),
    /// The message that should have this seq is not there.
    Missing(i64),
}

/// The messages behind `processed_seq`, whose seqs must run on from it without a hole.
pub(super) fn messages(
    rows: &[PgRow],
    queue: &Queue,
    claim: &Claim,
    processed_seq: i64,
    attempts: u32,
) -> Result<Read> {
    let mut messages = Vec::with_capacity(rows.len());
    let partition = queue.partition_ids.iter().position(|id| *id == claim.partition_id).unwrap_or_default();
    for (row, expected) in rows.iter().zip(processed_seq + 1..) {
        let (seq, id): (Option<i64>, Option<i64>) = (row.try_get("seq")?, row.try_get("id")?);
        let (Some(seq), Some(id)) = (seq.filter(|seq| *seq == expected), id) else {
            return Ok(Read::Missing(expected));
        };
        let headers: Option<&str> = row.try_get("headers")?;
        let headers = headers.map_or(Ok(Vec::new()), serde_json::from_str)?;
        let created_us: i64 = row.try_get("created_us")?;
        messages.push(OutboxMessage {
            id: OutboxMessageId(id),
            queue: Arc::clone(&queue.name),
            partition: u32::try_from(partition).unwrap_or(u32::MAX),
            partition_id: claim.partition_id,
            seq,
            key: row.try_get("key")?,
            headers,
            payload: row.try_get("payload")?,
            payload_type: row.try_get("payload_type")?,
            created_at: SystemTime::UNIX_EPOCH
                + Duration::from_micros(u64::try_from(created_us).unwrap_or_default()),
            attempts: if messages.is_empty() { attempts } else { 0 },
        });
    }
    Ok(Read::Messages(messages))
}
