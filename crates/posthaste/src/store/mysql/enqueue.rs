//! What goes in: queues and messages.

use futures_util::TryStreamExt;
use sqlx::{
    AssertSqlSafe, Connection, MySql, MySqlConnection, Row,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    MySqlStore, NO_SAVEPOINT, SYNTAX, Tries, number,
    pending::pend,
    query,
    text::{Value, filled, run},
    work,
};
use crate::{
    OutboxError, Partitions,
    store::{Enqueued, NewMessage, Queue, READER, Result, Ticket, answer::ANSWER_LIMIT, segments::json},
};

/// What a message takes in a packet besides its values, at most.
const OVERHEAD: usize = 128;
/// The most messages in one statement.
const MOST: usize = 50_000;
/// How many are taken back at once.
const TAKEN_BACK: usize = 500;

pub(super) async fn register_queue(store: &MySqlStore, name: &str, partitions: Partitions) -> Result<Queue> {
    let count = partitions.count();
    let find = || query(&store.sql().find_queue).bind(name.to_owned());
    let mut found = queue_of(name, &store.fetch(find).await?)?;
    if found.is_none() {
        work!(store, ANSWER_LIMIT, |conn| add_queue(store, conn, name, count))?;
        found = queue_of(name, &store.fetch(find).await?)?;
    }
    Queue::registered(found, name, partitions)
}

async fn add_queue(store: &MySqlStore, conn: &mut MySqlConnection, name: &str, count: u32) -> Result<()> {
    let mut tx = conn.begin().await?;
    let added = query(&store.sql().register_queue).bind(name).bind(count).execute(&mut *tx).await?;
    if added.rows_affected() == 1 {
        let numbers = json(&(0..count).collect::<Vec<_>>());
        query(&store.sql().register_partitions).bind(numbers).bind(name).execute(&mut *tx).await?;
        query(&store.sql().register_cursors).bind(READER).bind(name).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}

pub(super) async fn find_queue(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    name: &str,
) -> Result<Option<Queue>> {
    queue_of(name, &query(&store.sql().find_queue).bind(name).fetch_all(conn).await?)
}

fn queue_of(name: &str, rows: &[MySqlRow]) -> Result<Option<Queue>> {
    Ok(Queue::of(name, rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?))
}

pub(super) async fn pause(store: &MySqlStore, queue: &str, is_paused: bool) -> Result<()> {
    // In a transaction: a server goes on with a statement whose client is gone, but then does not commit.
    work!(store, ANSWER_LIMIT, |conn| async {
        let mut tx = conn.begin().await?;
        query(&store.sql().pause).bind(is_paused).bind(queue).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    })
}

pub(super) async fn is_paused(store: &MySqlStore, queue: &str) -> Result<bool> {
    let queue = queue.to_owned();
    let rows = store.fetch(|| query(&store.sql().is_paused).bind(queue.clone())).await?;
    let paused: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(paused > 0)
}

/// In the caller's transaction; or in one of its own, if the connection is in none.
pub(super) async fn enqueue(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    check_sizes(store, messages)?;
    if is_in_transaction(store, conn).await? {
        return write(store, conn, messages).await;
    }
    write_and_commit(store, conn, messages).await
}

/// Whether the caller has begun a transaction, with or without sqlx knowing: in one, a savepoint is still there in the next
/// statement. To begin another one would commit it.
pub(super) async fn is_in_transaction(store: &MySqlStore, conn: &mut MySqlConnection) -> Result<bool> {
    if conn.is_in_transaction() {
        return Ok(true);
    }
    let savepoint = store.savepoint();
    let probe = format!("SAVEPOINT {savepoint}; RELEASE SAVEPOINT {savepoint}");
    match sqlx::raw_sql(AssertSqlSafe(probe)).execute(conn).await {
        Ok(_) => Ok(true),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn enqueue_alone(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    check_sizes(store, messages)?;
    let mut tries = Tries::new();
    loop {
        if let Some(result) = tries.end(write_and_commit(store, conn, messages).await).await {
            return result;
        }
    }
}

async fn write_and_commit(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let mut tx = conn.begin().await?;
    let enqueued = write(store, &mut tx, messages).await?;
    tx.commit().await?;
    Ok(enqueued)
}

/// What no packet holds is refused before anything is written.
fn check_sizes(store: &MySqlStore, messages: &[NewMessage<'_>]) -> Result<()> {
    let max = store.shared.max_packet;
    let largest = messages.iter().map(bytes).max().unwrap_or_default();
    if largest <= max {
        return Ok(());
    }
    Err(OutboxError::Unsuitable(format!(
        "a message of {largest} bytes is larger than the server takes: raise its max_allowed_packet (now good for {max})"
    )))
}

/// What a message takes in a packet, at most: as JSON, its headers and their quotes take twice their length, its key up to six
/// times.
fn bytes(message: &NewMessage<'_>) -> usize {
    let NewMessage { partition_id: _, payload_type, key, headers, payload } = message;
    let (key, headers) = (key.as_ref().map_or(0, |key| key.len()), headers.as_ref().map_or(0, String::len));
    payload.len() + 2 * headers + 6 * key + 2 * payload_type.len() + OVERHEAD
}

/// Takes as many messages off as one statement can have, at least one.
fn chunk<'m, 'a>(rest: &mut &'m [NewMessage<'a>], max_packet: usize) -> &'m [NewMessage<'a>] {
    let mut left = max_packet;
    let fits = |message: &&NewMessage<'_>| {
        let fitting = left.checked_sub(bytes(message));
        left = fitting.unwrap_or_default();
        fitting.is_some()
    };
    let count = rest.iter().take(MOST).take_while(fits).count();
    let (chunk, behind) = rest.split_at(count.max(1).min(rest.len()));
    *rest = behind;
    chunk
}

/// Writes messages and makes them pending. The connection is in a transaction; all or none is written, whether or not the
/// caller goes on after an error.
async fn write(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
) -> Result<Enqueued> {
    let (mut rest, mut ids) = (messages, Vec::with_capacity(messages.len()));
    while !rest.is_empty() {
        let chunk = chunk(&mut rest, store.shared.max_packet);
        if let Err(error) = write_and_pend(store, conn, chunk, &mut ids).await {
            take_back(store, conn, &ids).await;
            return Err(error);
        }
    }
    let last = ids.last().copied().unwrap_or_default();
    Ok(Enqueued { ids, ticket: Ticket(last.cast_unsigned()) })
}

async fn write_and_pend(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
    ids: &mut Vec<i64>,
) -> Result<()> {
    if let [message] = messages
        && store.shared.is_mariadb
    {
        match write_and_pend_one(store, conn, message, ids).await {
            // Blocks are other ones in a session that is set to Oracle's ways.
            Err(OutboxError::Database(error)) if number(&error) == Some(SYNTAX) => {}
            done => return done,
        }
    }
    let before = ids.len();
    write_chunk(store, conn, messages, ids).await?;
    let written = ids.get(before..).unwrap_or_default();
    if written.len() != messages.len() {
        return Err(OutboxError::Unsuitable(format!(
            "the server gave {} ids for {} messages",
            written.len(),
            messages.len()
        )));
    }
    let messages = written.iter().zip(messages).map(|(id, message)| (*id, message.partition_id));
    sqlx::raw_sql(AssertSqlSafe(pend(&store.sql().pend, messages))).execute(conn).await?;
    Ok(())
}

/// In one statement of two, of which the second may fail.
async fn write_and_pend_one(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    message: &NewMessage<'_>,
    ids: &mut Vec<i64>,
) -> Result<()> {
    let statement = bind_message(query(&store.sql().enqueue_one_mariadb), message).bind(message.partition_id);
    let mut answers = statement.fetch(conn);
    // To the end: an error may come behind the row.
    let mut written = Err(sqlx::Error::RowNotFound.into());
    while let Some(row) = answers.try_next().await? {
        ids.push(row.try_get(0)?);
        written = Ok(());
    }
    written
}

/// A message that is not pending would not be delivered: it must not be there at all.
async fn take_back(store: &MySqlStore, conn: &mut MySqlConnection, ids: &[i64]) {
    for ids in ids.chunks(TAKEN_BACK) {
        if let Err(error) = remove(store, conn, ids).await {
            tracing::warn!(%error, "cannot take back what was enqueued: if the transaction is still there, roll it back");
            return;
        }
    }
}

/// By statements that work in whatever session the caller has, of what is known to be there.
async fn remove(store: &MySqlStore, conn: &mut MySqlConnection, ids: &[i64]) -> Result<()> {
    let pended = query(&store.sql().pended).bind(ids.first().copied()).bind(ids.last().copied());
    let runs = ids_of(&pended.fetch_all(&mut *conn).await?)?;
    let runs =
        runs.iter().filter(|id| ids.binary_search(id).is_ok()).map(|id| (&store.sql().take_back_run, id));
    let messages = ids.iter().map(|id| (&store.sql().take_back_message, id));
    let removals = runs.chain(messages).map(|(sql, id)| filled(sql, [Value::Number(*id)]));
    run(conn, removals.collect::<Vec<_>>().join("; ")).await?;
    Ok(())
}

/// Writes them, and says which ids they got, also of those before one that the server refuses.
async fn write_chunk(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
    ids: &mut Vec<i64>,
) -> Result<()> {
    if let [message] = messages {
        ids.push(write_one(store, conn, message).await?);
    } else if store.shared.is_mariadb {
        write_rows(store, conn, messages, ids).await?;
    } else {
        ids.extend(write_list(store, conn, messages).await?);
    }
    Ok(())
}

/// As rows of parameters, in statements of few sizes.
async fn write_rows(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
    ids: &mut Vec<i64>,
) -> Result<()> {
    let mut rest = messages;
    for (size, statement) in &store.shared.enqueues_mariadb {
        while let Some((rows, behind)) = rest.split_at_checked(*size) {
            let statement = rows.iter().fold(query(statement), bind_message);
            ids.extend(ids_of(&statement.fetch_all(&mut *conn).await?)?);
            rest = behind;
        }
    }
    Ok(())
}

/// As a list, and all payloads behind each other.
async fn write_list(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    messages: &[NewMessage<'_>],
) -> Result<Vec<i64>> {
    let mut payloads = Vec::with_capacity(messages.iter().map(|message| message.payload.len()).sum());
    let rows = messages.iter().map(|message| {
        // The server counts from 1.
        let begins = payloads.len() + 1;
        payloads.extend_from_slice(&message.payload);
        let NewMessage { partition_id, payload_type, key, headers, payload } = message;
        (*partition_id, &**payload_type, key.as_deref(), headers.as_deref(), begins, payload.len())
    });
    let rows = json(&rows.collect::<Vec<_>>()).into_bytes();
    let tag = Uuid::new_v4().as_u64_pair().0.cast_signed();
    let written =
        query(&store.sql().enqueue_mysql).bind(tag).bind(payloads).bind(rows).execute(&mut *conn).await?;
    let (first, count) = (written.last_insert_id(), written.rows_affected());
    ids_of(&query(&store.sql().enqueued_mysql).bind(first).bind(tag).bind(count).fetch_all(conn).await?)
}

async fn write_one(store: &MySqlStore, conn: &mut MySqlConnection, message: &NewMessage<'_>) -> Result<i64> {
    let written = bind_message(query(&store.sql().enqueue_one_mysql), message).execute(conn).await?;
    Ok(written.last_insert_id().cast_signed())
}

fn bind_message<'q>(
    statement: Query<'q, MySql, MySqlArguments>,
    message: &'q NewMessage<'_>,
) -> Query<'q, MySql, MySqlArguments> {
    statement
        .bind(message.partition_id)
        .bind(message.payload_type.as_bytes())
        .bind(message.key.as_deref().map(str::as_bytes))
        .bind(message.headers.as_deref().map(str::as_bytes))
        .bind(&*message.payload)
}

/// In the order of the messages: ids are given row by row.
fn ids_of(rows: &[MySqlRow]) -> Result<Vec<i64>> {
    let mut ids = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    ids.sort_unstable();
    Ok(ids)
}
