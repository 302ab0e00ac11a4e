//! What goes in: queues and messages.

use std::sync::Arc;

use sqlx::{PgConnection, Row, ValueRef, postgres::PgRow};

use super::{PostgresStore, query};
use crate::{
    OutboxError, Partitions,
    store::{Enqueued, NewMessage, Queue, READER, Result, Ticket},
};

pub(super) async fn register_queue(
    store: &PostgresStore,
    name: &str,
    partitions: Partitions,
) -> Result<Queue> {
    let count = i32::try_from(partitions.count()).unwrap_or(i32::MAX);
    store.fetch(query(&store.sql().register_queue).bind(name).bind(count).bind(READER)).await?;
    let rows = store.fetch(query(&store.sql().find_queue).bind(name)).await?;
    let queue = queue_of(name, &rows)?.ok_or_else(|| OutboxError::QueueNotRegistered(name.to_owned()))?;
    if queue.count() == partitions.count() {
        return Ok(queue);
    }
    let (expected, found) = (partitions.count(), queue.count());
    Err(OutboxError::PartitionCountMismatch { queue: name.to_owned(), expected, found })
}

pub(super) async fn find_queue(
    store: &PostgresStore,
    conn: &mut PgConnection,
    name: &str,
) -> Result<Option<Queue>> {
    queue_of(name, &query(&store.sql().find_queue).bind(name).fetch_all(conn).await?)
}

fn queue_of(name: &str, rows: &[PgRow]) -> Result<Option<Queue>> {
    if rows.is_empty() {
        return Ok(None);
    }
    let partition_ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
    Ok(Some(Queue { name: Arc::from(name), partition_ids }))
}

pub(super) async fn enqueue(
    store: &PostgresStore,
    conn: &mut PgConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let column = |f: fn(&NewMessage<'_>) -> i32| messages.iter().map(f).collect::<Vec<_>>();
    let rows = query(&store.sql().enqueue)
        .bind(column(|message| message.partition_id))
        .bind(messages.iter().map(|message| message.payload_type).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.key).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.headers.as_deref()).collect::<Vec<_>>())
        .bind(messages.iter().map(|message| message.payload).collect::<Vec<_>>())
        .fetch_all(conn)
        .await?;
    let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    let ticket = rows.first().map_or(Ok(0), stamp)?;
    Ok(Enqueued { ids, ticket: Ticket(ticket) })
}

/// A stamp is an `xid8`, eight bytes, for which sqlx has no type.
fn stamp(row: &PgRow) -> Result<u64> {
    let value = row.try_get_raw(1)?;
    debug_assert!(!value.is_null(), "the column is NOT NULL");
    let bytes = value.as_bytes().map_err(sqlx::Error::Decode)?;
    let bytes = <[u8; 8]>::try_from(bytes).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(u64::from_be_bytes(bytes))
}
