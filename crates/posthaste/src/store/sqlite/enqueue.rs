//! What goes in: queues and messages.

use sqlx::{Connection, Pool, Row, SqlSafeStr, Sqlite, SqliteConnection, Transaction, sqlite::SqliteRow};

use super::{
    BEGIN, SqliteStore,
    busy::{Kind, patiently, reading, writing},
    query,
};
use crate::{
    Partitions,
    store::{Enqueued, NewMessage, Queue, READER, Result, Ticket, segments::json},
};

pub(super) async fn register_queue(store: &SqliteStore, name: &str, partitions: Partitions) -> Result<Queue> {
    let mut found = reading!(store, conn => find_queue(store, conn, name))?;
    if found.is_none() {
        writing!(store, Kind::Durable, conn => add_queue(store, conn, name, partitions))?;
        found = reading!(store, conn => find_queue(store, conn, name))?;
    }
    Queue::registered(found, name, partitions)
}

async fn add_queue(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    name: &str,
    partitions: Partitions,
) -> Result<()> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let add = query(&store.sql().register_queue).bind(name).bind(partitions.count());
    if let Some(row) = add.fetch_optional(&mut *tx).await? {
        let id: i64 = row.try_get(0)?;
        query(&store.sql().register_partitions).bind(id).bind(partitions.count()).execute(&mut *tx).await?;
        query(&store.sql().register_cursors).bind(id).bind(READER).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

pub(super) async fn find_queue(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    name: &str,
) -> Result<Option<Queue>> {
    queue_of(name, &query(&store.sql().find_queue).bind(name).fetch_all(conn).await?)
}

fn queue_of(name: &str, rows: &[SqliteRow]) -> Result<Option<Queue>> {
    Ok(Queue::of(name, rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?))
}

pub(super) async fn pause(store: &SqliteStore, queue: &str, is_paused: bool) -> Result<()> {
    writing!(store, Kind::Durable, conn => async {
        query(&store.sql().pause).bind(queue).bind(is_paused).execute(conn).await?;
        Ok(())
    })
}

/// In memory, others may have all connections, a handler's transaction for one: then nobody can say, and it is not waited for.
pub(super) async fn is_paused(store: &SqliteStore, queue: &str) -> Result<bool> {
    let look = async |conn: &mut SqliteConnection| -> Result<bool> {
        let row = query(&store.sql().is_paused).bind(queue).fetch_one(conn).await?;
        Ok(row.try_get::<i64, _>(0)? > 0)
    };
    if !store.is_in_memory() {
        return reading!(store, conn => look(conn));
    }
    match store.shared.readers.spare() {
        Some(mut conn) => look(&mut conn).await,
        None => Ok(false),
    }
}

/// The most bytes of payload in one statement: far from the billion that a value can have.
const CHUNK: usize = 128 * 1024 * 1024;
/// The most messages in one statement.
const CHUNK_MESSAGES: usize = 250_000;

/// One statement; or as many as it takes: then in a transaction, or a savepoint of the caller's.
pub(super) async fn enqueue(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    if is_one_chunk(messages) {
        return enqueue_chunk(store, conn, messages).await;
    }
    let refused = match conn.begin().await {
        Ok(mut tx) => {
            let enqueued = enqueue_chunks(store, &mut tx, messages).await?;
            tx.commit().await?;
            return Ok(enqueued);
        }
        Err(error) => error,
    };
    tracing::debug!(%refused, "the caller began its transaction by hand");
    sqlx::raw_sql("SAVEPOINT posthaste_enqueue").execute(&mut *conn).await?;
    let enqueued = enqueue_chunks(store, conn, messages).await;
    let end = match &enqueued {
        Ok(_) => "RELEASE posthaste_enqueue",
        Err(_) => "ROLLBACK TO posthaste_enqueue; RELEASE posthaste_enqueue",
    };
    let ended = sqlx::raw_sql(end).execute(conn).await;
    let enqueued = enqueued?;
    ended?;
    Ok(enqueued)
}

/// The same when it is this process's turn to write, and as often as it takes while others are in the way.
pub(super) async fn enqueue_alone(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    in_time(store, async {
        let _turn = store.turn().await;
        patiently!(enqueue(store, conn, messages))
    })
    .await
}

/// What takes longer than others may be in the way has failed: while it waits for its turn, or, in memory, for a lock that SQLite
/// itself waits for.
async fn in_time<T>(store: &SqliteStore, done: impl Future<Output = Result<T>>) -> Result<T> {
    let limit = store.shared.timings.sqlite_write_limit;
    tokio::time::timeout(limit, done).await.unwrap_or_else(|_| {
        let why = format!(
            "another writer was in the way for {limit:?}: does the caller have a transaction open that has written? Then enqueue in it"
        );
        Err(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, why)).into())
    })
}

/// Begins to write at once, and waits until it may: then nothing in the transaction has to. The connection comes first, then
/// the turn, for which [`enqueue_alone`] waits with a connection in its hand.
pub(super) async fn begin_for_caller(
    store: &SqliteStore,
    pool: &Pool<Sqlite>,
) -> Result<Transaction<'static, Sqlite>> {
    in_time(store, async {
        patiently!(async {
            let conn = pool.acquire().await?;
            let _turn = store.turn().await;
            Ok(Transaction::begin(conn, Some(BEGIN.into_sql_str())).await?)
        })
    })
    .await
}

fn is_one_chunk(messages: &[NewMessage<'_>]) -> bool {
    let mut rest = messages;
    chunk(&mut rest).len() == messages.len()
}

/// Takes messages of at most [`CHUNK`] bytes off, but at least one.
fn chunk<'m, 'a>(rest: &mut &'m [NewMessage<'a>]) -> &'m [NewMessage<'a>] {
    let mut bytes = 0;
    let fits = |message: &&NewMessage<'_>| {
        bytes += message.payload.len() + message.headers.as_ref().map_or(0, String::len);
        bytes <= CHUNK
    };
    let count = rest.iter().take(CHUNK_MESSAGES).take_while(fits).count().max(1).min(rest.len());
    let (chunk, behind) = rest.split_at(count);
    *rest = behind;
    chunk
}

async fn enqueue_chunks(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let (mut rest, mut ids, mut ticket) = (messages, Vec::with_capacity(messages.len()), Ticket(0));
    while !rest.is_empty() {
        let enqueued = enqueue_chunk(store, conn, chunk(&mut rest)).await?;
        ids.extend(enqueued.ids);
        ticket = enqueued.ticket;
    }
    Ok(Enqueued { ids, ticket })
}

async fn enqueue_chunk(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let mut payloads = Vec::with_capacity(messages.iter().map(|message| message.payload.len()).sum());
    let rows = messages.iter().map(|message| {
        // SQLite counts from 1.
        let begin = payloads.len() + 1;
        payloads.extend_from_slice(&message.payload);
        let NewMessage { partition_id, payload_type, key, headers, payload } = message;
        (*partition_id, &**payload_type, key.as_deref(), headers.as_deref(), begin, payload.len())
    });
    let rows = json(&rows.collect::<Vec<_>>());
    let rows = query(&store.sql().enqueue).bind(rows).bind(payloads).fetch_all(conn).await?;
    let mut ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    // They ascend in the order of the messages; in which order they are returned is not promised.
    ids.sort_unstable();
    let last = ids.last().copied().unwrap_or_default();
    Ok(Enqueued { ids, ticket: Ticket(last.cast_unsigned()) })
}
