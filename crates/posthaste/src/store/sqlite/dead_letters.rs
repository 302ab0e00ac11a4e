//! What operators do with dead letters, on their own connections.

use sqlx::{
    AssertSqlSafe, Connection, Row, SqlSafeStr, Sqlite, SqliteConnection, Transaction,
    query::Query,
    sqlite::{SqliteArguments, SqliteRow},
};
use uuid::Uuid;

use super::{BEGIN, SqliteStore};
use crate::{
    DeadLetterMessage, OutboxMessageId,
    store::{
        Change, Lock, Picked, Result, Selection,
        criteria::{Value, Values, render},
        dead_letters::dead_letter,
        segments::array,
    },
};

/// sqlx does not know of a transaction that the caller has begun by hand; in one, no other can be begun.
pub(super) async fn begin_on<'c>(conn: &'c mut SqliteConnection) -> Result<Option<Transaction<'c, Sqlite>>> {
    if conn.is_in_transaction() {
        return Ok(None);
    }
    match conn.begin_with(BEGIN.into_sql_str()).await {
        Ok(transaction) => Ok(Some(transaction)),
        Err(sqlx::Error::Database(error)) if error.message().contains("within a transaction") => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn query(sql: &str, values: &Values) -> Query<'static, Sqlite, SqliteArguments> {
    let mut bound = Vec::new();
    let text = render(sql, values, |value| match value {
        Value::Wanted => None,
        value => {
            bound.push(value.clone());
            Some(format!("?{}", bound.len()))
        }
    });
    let query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    bound.into_iter().fold(query, |query, value| match value {
        Value::Wanted => query,
        Value::Number(number) => query.bind(number),
        Value::Numbers(numbers) | Value::Array(numbers) => query.bind(array(&numbers)),
        Value::Text(text) | Value::Word(text) => query.bind(text),
        Value::Token(token) => query.bind(token.as_bytes().to_vec()),
    })
}

pub(super) async fn pick(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    if lock != Lock::None {
        query(&store.sql().begin_to_write, &Values::default()).execute(&mut *conn).await?;
    }
    let statement = query(&store.sql().pick_dead_letters, &Values::of(selection, Lock::None));
    let picked = |row: &SqliteRow| {
        let token: Option<Vec<u8>> = row.try_get(2)?;
        Ok(Picked {
            id: row.try_get(0)?,
            bytes: row.try_get(1)?,
            token: token.and_then(|token| Uuid::from_slice(&token).ok()),
        })
    };
    statement.fetch_all(conn).await?.iter().map(picked).collect()
}

pub(super) async fn read(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    ids: &[i64],
) -> Result<Vec<DeadLetterMessage>> {
    let statement = query(&store.sql().read_dead_letters, &Values::these(ids));
    Ok(statement.try_map(|row: SqliteRow| dead_letter(&row)).fetch_all(conn).await?)
}

pub(super) async fn count(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    selection: &Selection<'_>,
) -> Result<u64> {
    let statement = query(&store.sql().count_dead_letters, &Values::of(selection, Lock::None));
    let count: i64 = statement.fetch_one(conn).await?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

pub(super) async fn change(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    ids: &[i64],
    change: &Change<'_>,
) -> Result<()> {
    query(&store.sql().change_dead_letters, &Values::changing(ids, change)).execute(conn).await?;
    Ok(())
}

pub(super) async fn mark_redelivered(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    sent: &[(OutboxMessageId, OutboxMessageId)],
) -> Result<()> {
    query(&store.sql().mark_redelivered, &Values::sent(sent)).execute(conn).await?;
    Ok(())
}

pub(super) async fn delete(store: &SqliteStore, conn: &mut SqliteConnection, ids: &[i64]) -> Result<()> {
    query(&store.sql().delete_dead_letters, &Values::these(ids)).execute(conn).await?;
    Ok(())
}
