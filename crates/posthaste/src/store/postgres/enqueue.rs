//! What goes in: queues and messages.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, postgres::PgRow};

use super::{PostgresStore, query};
use crate::{
    Partitions,
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
    Queue::registered(queue_of(name, &rows)?, name, partitions)
}

pub(super) async fn find_queue(
    store: &PostgresStore,
    conn: &mut PgConnection,
    name: &str,
) -> Result<Option<Queue>> {
    let statement = query(&store.sql().find_queue).bind(name);
    if !store.is_pooled() {
        return queue_of(name, &statement.fetch_all(conn).await?);
    }
    // By the simple protocol, in which nothing is prepared. A queue's name has no character that could do harm.
    let sql = store.sql().find_queue.replace("$1", &format!("'{name}'"));
    queue_of(name, &sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(conn).await?)
}

fn queue_of(name: &str, rows: &[PgRow]) -> Result<Option<Queue>> {
    Ok(Queue::of(name, rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?))
}

pub(super) async fn pause(store: &PostgresStore, queue: &str, is_paused: bool) -> Result<()> {
    store.fetch(query(&store.sql().pause).bind(queue).bind(is_paused)).await.map(drop)
}

pub(super) async fn is_paused(store: &PostgresStore, queue: &str) -> Result<bool> {
    let rows = store.fetch(query(&store.sql().is_paused).bind(queue)).await?;
    let paused: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(paused > 0)
}

/// The most bytes of payload and headers in one statement: far from the gigabyte that a parameter can have.
const CHUNK: usize = 128 * 1024 * 1024;

/// One statement, or as many as it takes: then in a transaction, or a savepoint of the caller's. So behind a pooler, where
/// what is prepared in one transaction is not there in the next.
pub(super) async fn enqueue(
    store: &PostgresStore,
    conn: &mut PgConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let mut rest = messages;
    if chunk(&mut rest).len() == messages.len() && !store.is_pooled() {
        return enqueue_chunk(store, conn, messages).await;
    }
    let mut tx = conn.begin().await?;
    let (mut rest, mut ids, mut ticket) = (messages, Vec::with_capacity(messages.len()), Ticket(0));
    while !rest.is_empty() {
        let enqueued = enqueue_chunk(store, &mut tx, chunk(&mut rest)).await?;
        ids.extend(enqueued.ids);
        ticket = enqueued.ticket;
    }
    tx.commit().await?;
    Ok(Enqueued { ids, ticket })
}

/// Takes messages of at most [`CHUNK`] bytes off, but at least one.
fn chunk<'m, 'a>(rest: &mut &'m [NewMessage<'a>]) -> &'m [NewMessage<'a>] {
    let mut bytes = 0;
    let fits = |message: &&NewMessage<'_>| {
        bytes += message.payload.len() + message.headers.as_ref().map_or(0, String::len);
        bytes <= CHUNK
    };
    let count = rest.iter().take_while(fits).count().max(1).min(rest.len());
    let (chunk, behind) = rest.split_at(count);
    *rest = behind;
    chunk
}

async fn enqueue_chunk(
    store: &PostgresStore,
    conn: &mut PgConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let statement = match messages {
        [one] => query(&store.sql().enqueue_one)
            .bind(one.partition_id)
            .bind(&*one.payload_type)
            .bind(one.key.as_deref())
            .bind(one.headers.as_deref())
            .bind(&*one.payload),
        many => query(&store.sql().enqueue)
            .bind(many.iter().map(|message| message.partition_id).collect::<Vec<_>>())
            .bind(many.iter().map(|message| &*message.payload_type).collect::<Vec<_>>())
            .bind(many.iter().map(|message| message.key.as_deref()).collect::<Vec<_>>())
            .bind(many.iter().map(|message| message.headers.as_deref()).collect::<Vec<_>>())
            .bind(many.iter().map(|message| &*message.payload).collect::<Vec<_>>()),
    };
    let rows = statement.persistent(!store.is_pooled()).fetch_all(conn).await?;
    let ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    let stamp: i64 = rows.first().map_or(Ok(0), |row| row.try_get(1))?;
    Ok(Enqueued { ids, ticket: Ticket(stamp.cast_unsigned()) })
}
