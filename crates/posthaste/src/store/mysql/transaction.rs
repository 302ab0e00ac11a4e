//! The transaction that a handler works in: the partition's lock, savepoints, the settlement, the commit.
//!
//! It is begun through sqlx, so that a handler which begins a transaction of its own on its connection gets a savepoint. The
//! session does not commit by itself: after a deadlock the server rolls all of it back, and what a handler writes then, not
//! knowing, is in a transaction that nobody commits.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, Row};

use super::{MySqlStore, NO_SAVEPOINT, cursor::owner, number, statements::NOW, work};
use crate::store::{
    Begun, Claim, Handling, Kept, READER, Result, Session,
    answer::{ANSWER_LIMIT, answer},
};

/// There is no such session any more.
const NO_SESSION: u16 = 1094;

/// A connection for handlers, with nothing set in its session.
pub(super) async fn handling(store: &MySqlStore) -> Result<Handling<MySql>> {
    let (conn, _) = store.shared.handler_connections.take().await?;
    Ok(Handling { conn, is_used: false })
}

pub(super) async fn begin<'c>(
    store: &MySqlStore,
    handling: &'c mut Handling<MySql>,
    claim: &Claim,
    epoch: i64,
    timeout: Duration,
) -> Result<Begun<'c, MySql>> {
    let begin = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION TRANSACTION READ WRITE; \
         SET SESSION autocommit = 0; {}; START TRANSACTION",
        limits(store, claim, timeout)
    );
    handling.is_used = true;
    let mut transaction = answer(handling.conn.begin_with(AssertSqlSafe(begin))).await?;
    let lock = store
        .sql()
        .lock
        .replace("{number}", &claim.partition_id.to_string())
        .replace("{reader}", READER)
        .replace("{savepoint}", &store.savepoint());
    let rows = answer(sqlx::raw_sql(AssertSqlSafe(lock)).fetch_all(&mut *transaction)).await?;
    let [locked, newest] = &rows[..] else {
        answer(transaction.rollback()).await?;
        return Ok(Begun::Locked);
    };
    let is_mine = newest.try_get::<i64, _>("epoch")? == epoch && owner(newest)? == Some(claim.owner);
    if !is_mine {
        answer(transaction.rollback()).await?;
        return Ok(Begun::Lost);
    }
    let session: u64 = locked.try_get("session")?;
    let session = Session { id: session.cast_signed(), began: locked.try_get("began")? };
    Ok(Begun::Transaction { transaction, session })
}

/// How long the server waits for a process that says nothing, in seconds, and for one that does not listen.
fn limits(store: &MySqlStore, claim: &Claim, timeout: Duration) -> String {
    let limit = timeout.max(claim.lease).saturating_add(store.shared.timings.session_silence);
    let limit = limit.as_millis().div_ceil(1000).min(i32::MAX.cast_unsigned().into());
    format!("SET SESSION wait_timeout = {limit}, net_write_timeout = {limit}")
}

/// The handler is content with what it wrote; is the transaction still there?
pub(super) async fn keep(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    claim: &Claim,
    timeout: Duration,
    is_last: bool,
) -> Result<Kept> {
    let (limits, savepoint) = (limits(store, claim, timeout), store.savepoint());
    let then = if is_last { String::new() } else { format!("; SAVEPOINT {savepoint}") };
    let keep = format!("RELEASE SAVEPOINT {savepoint}; {limits}{then}");
    kept(sqlx::raw_sql(AssertSqlSafe(keep)).execute(conn).await)
}

/// Takes back what the handler wrote.
pub(super) async fn undo(store: &MySqlStore, conn: &mut MySqlConnection, is_last: bool) -> Result<Kept> {
    let savepoint = store.savepoint();
    let then = if is_last { format!("; RELEASE SAVEPOINT {savepoint}") } else { String::new() };
    let undo = format!("ROLLBACK TO SAVEPOINT {savepoint}{then}");
    kept(sqlx::raw_sql(AssertSqlSafe(undo)).execute(conn).await)
}

fn kept<T>(result: Result<T, sqlx::Error>) -> Result<Kept> {
    match result {
        Ok(_) => Ok(Kept::Yes),
        Err(error) if number(&error) == Some(NO_SAVEPOINT) => Ok(Kept::TransactionEnded),
        Err(error) => Err(error.into()),
    }
}

/// Ends the session of a transaction that is lost: it may be in the middle of a statement. Not if the server has started
/// since: then the session has ended with it, and the number may be somebody else's.
pub(super) async fn end_session(store: &MySqlStore, session: Session) -> Result<()> {
    work!(store, ANSWER_LIMIT, |conn| kill(conn, session))
}

async fn kill(conn: &mut MySqlConnection, session: Session) -> Result<()> {
    let now = sqlx::raw_sql(AssertSqlSafe(format!("SELECT {NOW} AS now"))).fetch_one(&mut *conn).await?;
    let elapsed = now.try_get::<i64, _>("now")?.saturating_sub(session.began) / 1_000_000;
    let uptime = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Uptime'").fetch_one(&mut *conn).await?;
    let uptime: i64 = uptime.try_get::<String, _>(1)?.parse().unwrap_or_default();
    if uptime <= elapsed {
        return Ok(());
    }
    let kill = AssertSqlSafe(format!("KILL CONNECTION {}", session.id));
    match sqlx::raw_sql(kill).execute(conn).await {
        Err(error) if number(&error) == Some(NO_SESSION) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// Closes a connection that a handler has used: nothing else takes back all that it may have set in its session.
pub(super) fn give_back(handling: Handling<MySql>) -> Result<()> {
    if handling.is_used {
        return Ok(());
    }
    handling.conn.keep_if_usable(Ok(()))
}
