//! The transaction that a handler works in: the partition's lock, savepoints, the settlement, the commit.
//!
//! It is begun through sqlx, so that a handler which begins a transaction of its own on its connection gets a savepoint.

use std::{sync::LazyLock, time::Duration};

use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Row};
use uuid::Uuid;

use super::{PostgresStore, answer, plan_as_usual, plan_our_way, query};
use crate::{
    OutboxError,
    store::{Begun, Claim, Handling, Kept, READER, Result, Session},
};

/// Our own statements are planned as in the sessions of the other workers, a handler's as it is used to.
static PLANNED_OUR_WAY: LazyLock<String> = LazyLock::new(|| plan_our_way("SET LOCAL"));
static PLANNED_AS_USUAL: LazyLock<String> = LazyLock::new(plan_as_usual);

/// What a handler may have left behind in its session; `DISCARD ALL` would take sqlx's prepared statements away too.
const FORGET: &str = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; \
     SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";
/// What it may have set or made, which would be there for the next message of its batch, or for the settlement, too.
const UNSET: &str = "SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; CLOSE ALL; DISCARD TEMP";
/// The same where the session is not ours: what the pooler has set must stay.
const UNSET_POOLED: &str = "RESET ROLE; CLOSE ALL";

/// Fires what is deferred and takes back that it was fired: a constraint that fails blames this message, and for the next
/// one, constraints are as deferred as they were.
const CHECK: &str = "SAVEPOINT outbox_check; SET CONSTRAINTS ALL IMMEDIATE; \
     ROLLBACK TO SAVEPOINT outbox_check; RELEASE SAVEPOINT outbox_check";
/// The same where no handler follows.
const LAST_CHECK: &str = "SET CONSTRAINTS ALL IMMEDIATE";

/// No savepoint of that name; or no transaction at all.
const ENDED: [&str; 2] = ["3B001", "25P01"];

/// A connection for handlers, with nothing set in its session.
pub(super) async fn handling(store: &PostgresStore) -> Result<Handling<Postgres>> {
    let (conn, _) = store.shared.handler_connections.take().await?;
    Ok(Handling { conn, is_used: false })
}

pub(super) async fn begin<'c>(
    store: &PostgresStore,
    handling: &'c mut Handling<Postgres>,
    claim: &Claim,
    epoch: i64,
    timeout: Duration,
) -> Result<Begun<'c, Postgres>> {
    let limits = limits(store, claim, timeout);
    let forget = if handling.is_used && !store.is_pooled() { FORGET } else { "" };
    let begin =
        format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {forget}; {}; {limits}", *PLANNED_OUR_WAY);
    let mut transaction = answer(handling.conn.begin_with(AssertSqlSafe(begin))).await?;
    handling.is_used = true;
    let (lock, savepoint) = (&store.sql().lock, store.savepoint());
    let lock = lock.replace("{number}", &claim.partition_id.to_string()).replace("{reader}", READER);
    let lock = format!("{lock}; {}; SAVEPOINT {savepoint}", *PLANNED_AS_USUAL);
    let rows = answer(sqlx::raw_sql(AssertSqlSafe(lock)).fetch_all(&mut *transaction)).await?;
    let [locked, newest] = &rows[..] else {
        answer(transaction.rollback()).await?;
        return Ok(Begun::Locked);
    };
    let is_mine = newest.try_get::<i64, _>("epoch")? == epoch
        && newest.try_get::<Option<Uuid>, _>("owner")? == Some(claim.owner);
    if !is_mine {
        answer(transaction.rollback()).await?;
        return Ok(Begun::Lost);
    }
    if let Some(deallocate) =
        locked.try_get::<Option<String>, _>("deallocate")?.filter(|_| !store.is_pooled())
    {
        answer(sqlx::raw_sql(AssertSqlSafe(deallocate)).execute(&mut *transaction)).await?;
    }
    let session =
        Session { id: locked.try_get::<i32, _>("session")?.into(), began: locked.try_get("began")? };
    Ok(Begun::Transaction { transaction, session })
}

/// How long the server waits for a statement, for a process that says nothing, and for one that does not listen.
fn limits(store: &PostgresStore, claim: &Claim, timeout: Duration) -> String {
    let limit = timeout.max(claim.lease).saturating_add(store.shared.timings.session_silence);
    let limit = limit.as_millis().min(i32::MAX.cast_unsigned().into());
    format!(
        "SET LOCAL statement_timeout = {limit}; SET LOCAL idle_in_transaction_session_timeout = {limit}; \
         SET LOCAL tcp_user_timeout = {limit}"
    )
}

/// The handler is content with what it wrote; is the database?
pub(super) async fn keep(
    store: &PostgresStore,
    conn: &mut PgConnection,
    claim: &Claim,
    timeout: Duration,
    is_last: bool,
) -> Result<Kept> {
    let unset = if store.is_pooled() { UNSET_POOLED } else { UNSET };
    let (limits, savepoint) = (limits(store, claim, timeout), store.savepoint());
    let (check, then) = if is_last {
        (LAST_CHECK, PLANNED_OUR_WAY.clone())
    } else {
        (CHECK, format!("SAVEPOINT {savepoint}"))
    };
    // Whatever may fail does so while there is a savepoint to go back to.
    let keep = format!("{check}; {unset}; {limits}; RELEASE SAVEPOINT {savepoint}; {then}");
    kept(sqlx::raw_sql(AssertSqlSafe(keep)).execute(conn).await)
}

/// Takes back what the handler wrote.
pub(super) async fn undo(store: &PostgresStore, conn: &mut PgConnection, is_last: bool) -> Result<Kept> {
    let savepoint = store.savepoint();
    let then = if is_last { PLANNED_OUR_WAY.clone() } else { format!("SAVEPOINT {savepoint}") };
    let undo = format!("ROLLBACK TO SAVEPOINT {savepoint}; RELEASE SAVEPOINT {savepoint}; {then}");
    kept(sqlx::raw_sql(AssertSqlSafe(undo)).execute(conn).await)
}

fn kept<T>(result: Result<T, impl Into<OutboxError>>) -> Result<Kept> {
    let Err(error) = result else { return Ok(Kept::Yes) };
    let error = error.into();
    match error.code().as_deref() {
        Some(code) if ENDED.contains(&code) => Ok(Kept::TransactionEnded),
        Some(_) if error.leaves_connection_usable() => Ok(Kept::Refused(error.to_string())),
        _ => Err(error),
    }
}

/// Ends the session of a transaction that is lost: it may be in the middle of a statement. Only if it is still in that
/// transaction: the session may be a pooler's, and others have it by now.
pub(super) async fn end_session(store: &PostgresStore, session: Session) -> Result<()> {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE pid = $1::bigint::integer AND (extract(epoch FROM xact_start) * 1000000)::bigint = $2";
    store.fetch(query(&sql.into()).bind(session.id).bind(session.began)).await.map(drop)
}

/// Gives a connection back, as if no handler had used it.
pub(super) async fn give_back(store: &PostgresStore, mut handling: Handling<Postgres>) -> Result<()> {
    let forgotten = if store.is_pooled() || !handling.is_used {
        Ok(())
    } else {
        answer(sqlx::raw_sql(FORGET).execute(&mut *handling.conn)).await.map(drop)
    };
    handling.conn.keep_if_usable(forgotten)
}
