//! What goes in: queues and messages.

use std::sync::Arc;

use sqlx::{PgConnection, Row, postgres::PgRow};

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
    let stamp: i64 = rows.first().map_or(Ok(0), |row| row.try_get(1))?;
    Ok(Enqueued { ids, ticket: Ticket(stamp.cast_unsigned()) })
}
