//! The transaction that a handler works in: savepoints, the settlement, the commit.
//!
//! It excludes all other writers from its beginning, so nobody takes over from a handler that is slow but alive. It is begun
//! through sqlx, so that a handler which begins a transaction of its own on its connection gets a savepoint.
//!
//! A constraint that is deferred is checked at the commit: SQLite has no way to ask for that before. If one fails, all messages
//! of the transaction come again, in smaller and smaller batches, until the guilty one is alone.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU8, Ordering},
    },
    time::Duration,
};

use sqlx::{AssertSqlSafe, Connection, Row, Sqlite, SqliteConnection};

use super::{
    SqliteStore,
    busy::{BUSY_LIMIT, patiently},
    cursor::look,
};
use crate::{
    OutboxError,
    store::{Begun, Claim, Handling, Kept, Result, Session},
};

/// The name of a handler's savepoint, which no handler has by chance.
const SAVEPOINT: &str = "posthaste_handler_9f2c41d07b";
/// What a handler may have set that would keep us from settling.
const UNSET: &str = "PRAGMA query_only = OFF";
/// How many steps of SQLite's machine a statement goes before it looks whether its session was ended.
const STEPS: i32 = 10_000;
/// How many milliseconds that may take.
const HEARING: u32 = 100;

/// The sessions that handlers work in, so that a statement which nobody waits for any more can be ended: until then it would
/// keep all other writers waiting.
#[derive(Default)]
pub(super) struct Sessions {
    last: AtomicI64,
    open: Mutex<HashMap<i64, Arc<AtomicU8>>>,
}

/// What the statements of a session do.
const GO_ON: u8 = 0;
const END: u8 = 1;
const ENDED: u8 = 2;

impl Sessions {
    /// From now on, the statements on this connection can be ended.
    async fn begin(&self, conn: &mut SqliteConnection) -> Result<Session> {
        let session = Session { id: self.last.fetch_add(1, Ordering::Relaxed) + 1, began: 0 };
        let order = Arc::new(AtomicU8::new(GO_ON));
        {
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody else knows of those whose connections are closed, or have another session since.
            open.retain(|_, order| Arc::strong_count(order) > 1);
            open.insert(session.id, Arc::clone(&order));
        }
        let goes_on = move || {
            order.compare_exchange(END, ENDED, Ordering::Relaxed, Ordering::Relaxed).is_err()
                && order.load(Ordering::Relaxed) == GO_ON
        };
        conn.lock_handle().await?.set_progress_handler(STEPS, goes_on);
        Ok(session)
    }

    /// Ends the statement that a session is in the middle of, if it is; and all that follow, unless its connection is `reused`.
    pub(super) async fn end(&self, session: Session, reused: bool) {
        let order = self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&session.id);
        let Some(order) = order else { return };
        order.store(END, Ordering::Relaxed);
        if !reused {
            return;
        }
        // It is heard within a millisecond, if a statement is under way.
        for _ in 0..HEARING {
            if order.load(Ordering::Relaxed) == ENDED {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        order.store(GO_ON, Ordering::Relaxed);
    }
}

/// A connection for handlers, with nothing set in its session.
pub(super) async fn handling(store: &SqliteStore) -> Result<Handling<Sqlite>> {
    let (conn, _) = patiently!(store.shared.handler_connections.take())?;
    Ok(Handling { conn, is_used: false })
}

pub(super) async fn begin<'c>(
    store: &SqliteStore,
    handling: &'c mut Handling<Sqlite>,
    claim: &Claim,
    epoch: i64,
) -> Result<Begun<'c, Sqlite>> {
    if handling.is_used {
        renew(store, handling).await?;
    }
    let begin = if store.is_in_memory() {
        // Within a shared cache, sqlx waits for whoever is in the way.
        format!("BEGIN IMMEDIATE; SAVEPOINT {SAVEPOINT}")
    } else {
        let (limit, usual) = (BUSY_LIMIT.as_millis(), store.shared.caller_timeout);
        format!(
            "PRAGMA busy_timeout = {limit}; BEGIN IMMEDIATE; PRAGMA busy_timeout = {usual}; SAVEPOINT {SAVEPOINT}"
        )
    };
    let turn = store.turn().await;
    let mut transaction = handling.conn.begin_with(AssertSqlSafe(begin)).await?;
    drop(turn);
    handling.is_used = true;
    let tip = look(store, &mut transaction, claim).await?;
    if !tip.is_some_and(|tip| tip.epoch == epoch && tip.is_mine) {
        transaction.rollback().await?;
        return Ok(Begun::Lost);
    }
    let session = store.shared.sessions.begin(&mut transaction).await?;
    Ok(Begun::Transaction { transaction, session })
}

/// The handler is content with what it wrote.
pub(super) async fn keep(store: &SqliteStore, conn: &mut SqliteConnection, is_last: bool) -> Result<Kept> {
    end_savepoint(store, conn, &format!("{UNSET}; RELEASE {SAVEPOINT}"), is_last).await
}

/// Takes back what the handler wrote.
pub(super) async fn undo(store: &SqliteStore, conn: &mut SqliteConnection, is_last: bool) -> Result<Kept> {
    let undo = format!("{UNSET}; ROLLBACK TO {SAVEPOINT}; RELEASE {SAVEPOINT}");
    end_savepoint(store, conn, &undo, is_last).await
}

async fn end_savepoint(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    end: &str,
    is_last: bool,
) -> Result<Kept> {
    let then = if is_last { String::new() } else { format!("; SAVEPOINT {SAVEPOINT}") };
    let Err(error) = sqlx::raw_sql(AssertSqlSafe(format!("{end}{then}"))).execute(&mut *conn).await else {
        return Ok(Kept::Yes);
    };
    let is_gone =
        matches!(&error, sqlx::Error::Database(error) if error.message().starts_with("no such savepoint"));
    if !is_gone {
        return match error {
            sqlx::Error::Database(error) => Ok(Kept::Refused(error.to_string())),
            error => Err(error.into()),
        };
    }
    if store.is_in_memory() {
        // sqlx believes that the transaction is open, and would for as long as the pool has this connection.
        sqlx::raw_sql("BEGIN").execute(conn).await.ok();
    }
    Ok(Kept::TransactionEnded)
}

/// Makes a connection as if no handler had used it.
async fn renew(store: &SqliteStore, handling: &mut Handling<Sqlite>) -> Result<()> {
    if store.is_in_memory() {
        forget(&mut handling.conn).await?;
    } else {
        // Settings, temporary tables, attached databases: it is closed with all of them.
        *handling.conn = store.shared.handler_connections.connect().await?;
    }
    handling.is_used = false;
    Ok(())
}

/// Takes away what can be of what a handler may have left behind, on a connection that is the caller's. Settings stay.
async fn forget(conn: &mut SqliteConnection) -> Result<()> {
    conn.lock_handle().await?.remove_progress_handler();
    sqlx::raw_sql(UNSET).execute(&mut *conn).await?;
    let left = "SELECT 'DROP ' || type || ' IF EXISTS temp.' || format('\"%w\"', name) FROM temp.sqlite_schema
                WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
                UNION ALL
                SELECT 'DETACH ' || format('\"%w\"', name) FROM pragma_database_list WHERE name NOT IN ('main', 'temp')";
    let left = sqlx::query(left).fetch_all(&mut *conn).await?;
    for statement in left {
        sqlx::raw_sql(AssertSqlSafe(statement.try_get::<String, _>(0)?)).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Gives a connection back, if no handler has used it; closes it otherwise. One of the caller's pool goes back in any case.
pub(super) async fn give_back(store: &SqliteStore, mut handling: Handling<Sqlite>) -> Result<()> {
    if !handling.is_used {
        return handling.conn.keep_if_usable(Ok(()));
    }
    if store.is_in_memory() {
        let forgotten: Result<(), OutboxError> = forget(&mut handling.conn).await;
        return handling.conn.keep_if_usable(forgotten);
    }
    Ok(())
}
