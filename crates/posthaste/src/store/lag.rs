//! Rows into how far the partitions are.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sqlx::{ColumnIndex, Decode, Row, Type};
use uuid::Uuid;

use super::Result;
use crate::{PartitionLag, WorkerId};

/// How many of the messages without a seq are looked at: a sequencer that is alive leaves no more than that for long.
pub(super) const WINDOW: i64 = 1000;

/// How far all partitions are, at one moment.
#[derive(Debug)]
pub(crate) struct Lagging {
    /// By the database's clock, in microseconds since 1970; none if there are no queues.
    pub(crate) now_us: Option<i64>,
    /// In the order of their queues' names, and of their numbers.
    pub(crate) partitions: Vec<PartitionLag>,
    /// The first message that has no seq, among those that were looked at.
    pub(crate) unsequenced_id: Option<i64>,
}

/// The columns are called as in `lag.sql` of PostgreSQL. A row has a queue and says how far a partition is, and when the message
/// behind its cursor was written; or it has none and says only when a message of the partition was written that is not settled,
/// and its id if it has no seq.
pub(super) fn lagging<R>(rows: &[R]) -> Result<Lagging>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let (mut now_us, mut unsequenced_id) = (None::<i64>, None::<i64>);
    let (mut partitions, mut oldest_us) = (Vec::new(), HashMap::<i32, i64>::new());
    let mut last_queue: Arc<str> = Arc::from("");
    for row in rows {
        now_us = now_us.max(row.try_get("now_us")?);
        let partition_id = i32::try_from(row.try_get::<i64, _>("partition_id")?).unwrap_or_default();
        if let Some(created_us) = row.try_get::<Option<i64>, _>("created_us")? {
            let oldest = oldest_us.entry(partition_id).or_insert(created_us);
            *oldest = created_us.min(*oldest);
        }
        if let Some(id) = row.try_get::<Option<i64>, _>("unsequenced_id")? {
            unsequenced_id = Some(unsequenced_id.map_or(id, |first| first.min(id)));
        }
        // Not every database calls a text by that name: MySQL gives its bytes.
        let Some(queue) = row.try_get_unchecked::<Option<String>, _>("queue")? else { continue };
        if *last_queue != *queue {
            last_queue = queue.into();
        }
        partitions.push(partition(row, Arc::clone(&last_queue), partition_id)?);
    }
    for lag in &mut partitions {
        let written = oldest_us.get(&lag.partition_id).zip(now_us);
        lag.oldest = written.map(|(written, now)| micros(now.saturating_sub(*written)));
    }
    partitions.sort_by(|a, b| (&a.queue, a.partition).cmp(&(&b.queue, b.partition)));
    Ok(Lagging { now_us, partitions, unsequenced_id })
}

fn partition<R>(row: &R, queue: Arc<str>, partition_id: i32) -> Result<PartitionLag>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let number =
        |column| -> Result<u32> { Ok(u32::try_from(row.try_get::<i64, _>(column)?).unwrap_or_default()) };
    let (head_seq, cursor_seq): (i64, i64) = (row.try_get("head")?, row.try_get("processed_seq")?);
    let owner: Option<Vec<u8>> = row.try_get("owner")?;
    let owner = owner.and_then(|owner| Uuid::from_slice(&owner).ok()).map(WorkerId);
    let left: Option<i64> = row.try_get("micros_left")?;
    Ok(PartitionLag {
        queue,
        partition: number("number")?,
        partition_id,
        head_seq,
        cursor_seq,
        depth: u64::try_from(head_seq.saturating_sub(cursor_seq)).unwrap_or_default(),
        oldest: None,
        owner,
        lease_left: owner.and(left).map(micros),
        attempts: number("attempts")?,
        last_error: row.try_get_unchecked("last_error")?,
        is_paused: row.try_get::<i64, _>("is_paused")? != 0,
    })
}

fn micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}
