//! What operators do with dead letters, on their own connections.

use sqlx::{
    AssertSqlSafe, Connection, PgConnection, Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::PostgresStore;
use crate::{
    DeadLetterMessage, OutboxMessageId,
    store::{
        Change, Lock, Picked, Result, Selection,
        criteria::{Value, Values, render},
        dead_letters::dead_letter,
    },
};

/// There is no transaction in which a savepoint could be set.
const NO_TRANSACTION: &str = "25P01";

/// sqlx does not know of a transaction that the caller has begun by hand; in one, a savepoint can be set.
pub(super) async fn is_in_transaction(store: &PostgresStore, conn: &mut PgConnection) -> Result<bool> {
    if conn.is_in_transaction() {
        return Ok(true);
    }
    let savepoint = store.savepoint();
    match sqlx::raw_sql(AssertSqlSafe(format!("SAVEPOINT {savepoint}"))).execute(&mut *conn).await {
        Ok(_) => {
            let release = format!("RELEASE SAVEPOINT {savepoint}");
            sqlx::raw_sql(AssertSqlSafe(release)).execute(conn).await?;
            Ok(true)
        }
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some(NO_TRANSACTION) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Runs a statement of this text with these values, whose plan is made for them. Behind a pooler it needs a transaction, in which
/// it is prepared and run in the same session.
async fn fetch(
    store: &PostgresStore,
    conn: &mut PgConnection,
    sql: &str,
    values: &Values,
) -> Result<Vec<PgRow>> {
    if !store.is_pooled() {
        return Ok(query(sql, values).fetch_all(conn).await?);
    }
    if is_in_transaction(store, conn).await? {
        return Ok(query(sql, values).fetch_all(conn).await?);
    }
    let mut transaction = conn.begin().await?;
    let rows = query(sql, values).fetch_all(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(rows)
}

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
        Value::Numbers(numbers) => query.bind(numbers),
        Value::Text(text) => query.bind(text),
        Value::Token(token) => query.bind(token),
    })
}

pub(super) async fn pick(
    store: &PostgresStore,
    conn: &mut PgConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    let rows = fetch(store, conn, &store.sql().pick_dead_letters, &Values::of(selection, lock)).await?;
    let picked =
        |row: &PgRow| Ok(Picked { id: row.try_get(0)?, bytes: row.try_get(1)?, token: row.try_get(2)? });
    rows.iter().map(picked).collect()
}

pub(super) async fn read(
    store: &PostgresStore,
    conn: &mut PgConnection,
    ids: &[i64],
) -> Result<Vec<DeadLetterMessage>> {
    let rows = fetch(store, conn, &store.sql().read_dead_letters, &Values::these(ids)).await?;
    rows.iter().map(dead_letter).collect()
}

pub(super) async fn count(
    store: &PostgresStore,
    conn: &mut PgConnection,
    selection: &Selection<'_>,
) -> Result<u64> {
    let rows =
        fetch(store, conn, &store.sql().count_dead_letters, &Values::of(selection, Lock::None)).await?;
    let count: i64 = rows.first().map_or(Ok(0), |row| row.try_get(0))?;
    Ok(u64::try_from(count).unwrap_or_default())
}

pub(super) async fn change(
    store: &PostgresStore,
    conn: &mut PgConnection,
    ids: &[i64],
    change: &Change<'_>,
) -> Result<()> {
    fetch(store, conn, &store.sql().change_dead_letters, &Values::changing(ids, change)).await.map(drop)
}

pub(super) async fn mark_redelivered(
    store: &PostgresStore,
    conn: &mut PgConnection,
    sent: &[(OutboxMessageId, OutboxMessageId)],
) -> Result<()> {
    fetch(store, conn, &store.sql().mark_redelivered, &Values::sent(sent)).await.map(drop)
}

pub(super) async fn delete(store: &PostgresStore, conn: &mut PgConnection, ids: &[i64]) -> Result<()> {
    fetch(store, conn, &store.sql().delete_dead_letters, &Values::these(ids)).await.map(drop)
}
