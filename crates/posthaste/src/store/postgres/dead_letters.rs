//! What operators do with dead letters, on their own connections.

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Row, SqlSafeStr, Transaction,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{BEGIN_TO_WRITE, PostgresStore};
use crate::{
    DeadLetterMessage, OutboxMessageId,
    store::{
        Change, Lock, Picked, Result, Selection,
        criteria::{Value, Values, render},
        dead_letters::dead_letter,
    },
};

pub(super) async fn begin_on<'c>(conn: &'c mut PgConnection) -> Result<Option<Transaction<'c, Postgres>>> {
    if is_in_transaction(conn).await? {
        return Ok(None);
    }
    Ok(Some(conn.begin_with(BEGIN_TO_WRITE.into_sql_str()).await?))
}

/// sqlx does not know of a transaction that the caller has begun by hand. In one, this statement began later than it; asked by the
/// simple protocol, where a statement is one message.
async fn is_in_transaction(conn: &mut PgConnection) -> Result<bool> {
    if conn.is_in_transaction() {
        return Ok(true);
    }
    let row = sqlx::raw_sql("SELECT now() <> statement_timestamp()").fetch_one(conn).await?;
    Ok(row.try_get(0)?)
}

/// Reads. Behind a pooler that needs a transaction, in which the statement is prepared and run in the same session: one is begun, if
/// there is none.
macro_rules! reading {
    ($store:expr, $conn:ident, $work:expr) => {{
        if $store.is_pooled() && !is_in_transaction($conn).await? {
            let mut transaction = $conn.begin().await?;
            let done = {
                let $conn = &mut *transaction;
                $work.await?
            };
            transaction.commit().await?;
            Ok(done)
        } else {
            Ok($work.await?)
        }
    }};
}

/// A statement of this text with these values, whose plan is made for them.
fn query(sql: &str, values: &Values) -> Query<'static, Postgres, PgArguments> {
    let mut bound = Vec::new();
    let text = render(sql, values, |value| match value {
        Value::Wanted => None,
        value => {
            bound.push(value.clone());
            Some(format!("${}", bound.len()))
        }
    });
    let query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    bound.into_iter().fold(query, |query, value| match value {
        Value::Wanted => query,
        Value::Number(number) => query.bind(number),
        Value::Numbers(numbers) | Value::Array(numbers) => query.bind(numbers),
        Value::Text(text) | Value::Word(text) => query.bind(text),
        Value::Token(token) => query.bind(token),
    })
}

pub(super) async fn pick(
    store: &PostgresStore,
    conn: &mut PgConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    let picked =
        |row: PgRow| Ok(Picked { id: row.try_get(0)?, bytes: row.try_get(1)?, token: row.try_get(2)? });
    let statement = query(&store.sql().pick_dead_letters, &Values::of(selection, lock)).try_map(picked);
    reading!(store, conn, statement.fetch_all(&mut *conn))
}

pub(super) async fn read(
    store: &PostgresStore,
    conn: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<DeadLetterMessage>> {
    let statement =
        query(&store.sql().read_dead_letters, &Values::these(ids)).try_map(|row: PgRow| dead_letter(&row));
    reading!(store, conn, statement.fetch_all(&mut *conn))
}

pub(super) async fn count(
    store: &PostgresStore,
    conn: &mut PgConnection,
    selection: &Selection<'_>,
) -> Result<u64> {
    let statement = query(&store.sql().count_dead_letters, &Values::of(selection, Lock::None));
    let row: Result<PgRow> = reading!(store, conn, statement.fetch_one(&mut *conn));
    let count: i64 = row?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

pub(super) async fn change(
    store: &PostgresStore,
    conn: &mut PgConnection,
    ids: &[i64],
    change: &Change<'_>,
) -> Result<()> {
    let statement = query(&store.sql().change_dead_letters, &Values::changing(ids, change));
    statement.execute(conn).await?;
    Ok(())
}

pub(super) async fn mark_redelivered(
    store: &PostgresStore,
    conn: &mut PgConnection,
    sent: &[(OutboxMessageId, OutboxMessageId)],
) -> Result<()> {
    let statement = query(&store.sql().mark_redelivered, &Values::sent(sent));
    statement.execute(conn).await?;
    Ok(())
}

pub(super) async fn delete(store: &PostgresStore, conn: &mut PgConnection, ids: &[i64]) -> Result<()> {
    let statement = query(&store.sql().delete_dead_letters, &Values::these(ids));
    statement.execute(conn).await?;
    Ok(())
}
