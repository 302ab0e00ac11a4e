//! What operators do with dead letters, on their own connections.

use sqlx::{
    AssertSqlSafe, MySql, MySqlConnection, Row,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};
use uuid::Uuid;

use super::MySqlStore;
use crate::{
    DeadLetterMessage, OutboxMessageId,
    store::{
        Change, Lock, Picked, Result, Selection,
        criteria::{Value, Values, render},
        dead_letters::dead_letter,
    },
};

/// How many are marked at once.
const MARKED: usize = 500;

/// A statement of this text with these values. Lists of ids are written out: no parameter can be a list, and a join with one could not be
/// locked.
fn query(sql: &str, values: &Values) -> Query<'static, MySql, MySqlArguments> {
    let mut bound = Vec::new();
    let text = render(sql, values, |value| match value {
        Value::Wanted => None,
        Value::Numbers(numbers) if numbers.is_empty() => Some("NULL".to_owned()),
        Value::Numbers(numbers) => Some(numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
        value => {
            bound.push(value.clone());
            Some("?".to_owned())
        }
    });
    let query = sqlx::query(AssertSqlSafe(text)).persistent(false);
    bound.into_iter().fold(query, |query, value| match value {
        Value::Wanted | Value::Numbers(_) => query,
        Value::Number(number) => query.bind(number),
        // As bytes: the caller's session may be set to any character set.
        Value::Text(text) => query.bind(text.into_bytes()),
        Value::Token(token) => query.bind(token.as_bytes().to_vec()),
    })
}

fn picked(row: &MySqlRow) -> Result<Picked> {
    let token: Option<Vec<u8>> = row.try_get(2)?;
    Ok(Picked {
        id: row.try_get(0)?,
        bytes: row.try_get(1)?,
        token: token.and_then(|token| Uuid::from_slice(&token).ok()),
    })
}

/// To lock, finds first and then locks what was found and is still what was looked for; and looks further, until there are
/// enough or no more.
pub(super) async fn pick(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    let Selection { scope, mut after, states, limit } = *selection;
    let mut locked = Vec::new();
    loop {
        let left = limit - length(&locked);
        let next = Selection { scope, after, states, limit: left };
        let found = query(&store.sql().pick_dead_letters, &Values::of(&next, Lock::None));
        let found = found.fetch_all(&mut *conn).await?.iter().map(picked).collect::<Result<Vec<_>>>()?;
        if lock == Lock::None {
            return Ok(found);
        }
        let Some(last) = found.last() else { return Ok(locked) };
        after = Some(OutboxMessageId(last.id));
        let ids = found.iter().map(|picked| OutboxMessageId(picked.id));
        let these = scope.clone().ids(ids);
        let these = Selection { scope: &these, after: None, states, limit };
        let rows =
            query(&store.sql().lock_dead_letters, &Values::of(&these, lock)).fetch_all(&mut *conn).await?;
        locked.extend(rows.iter().map(picked).collect::<Result<Vec<_>>>()?);
        if length(&found) < left || length(&locked) >= limit {
            return Ok(locked);
        }
    }
}

fn length(picked: &[Picked]) -> i64 {
    i64::try_from(picked.len()).unwrap_or(i64::MAX)
}

pub(super) async fn read(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    ids: &[i64],
    lock: Lock,
) -> Result<Vec<DeadLetterMessage>> {
    let values = Values::these(ids);
    let values = if lock == Lock::None { values } else { values.with("is_locked", Value::Wanted) };
    let statement = query(&store.sql().read_dead_letters, &values);
    Ok(statement.try_map(|row: MySqlRow| dead_letter(&row)).fetch_all(conn).await?)
}

pub(super) async fn count(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    selection: &Selection<'_>,
) -> Result<u64> {
    let statement = query(&store.sql().count_dead_letters, &Values::of(selection, Lock::None));
    let count: i64 = statement.fetch_one(conn).await?.try_get(0)?;
    Ok(u64::try_from(count).unwrap_or_default())
}

pub(super) async fn change(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    ids: &[i64],
    change: &Change<'_>,
) -> Result<()> {
    query(&store.sql().change_dead_letters, &Values::changing(ids, change)).execute(conn).await?;
    Ok(())
}

pub(super) async fn mark_redelivered(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    sent: &[(OutboxMessageId, OutboxMessageId)],
) -> Result<()> {
    for sent in sent.chunks(MARKED) {
        query(&store.sql().mark_redelivered, &Values::sent(sent)).execute(&mut *conn).await?;
    }
    Ok(())
}

pub(super) async fn delete(store: &MySqlStore, conn: &mut MySqlConnection, ids: &[i64]) -> Result<()> {
    query(&store.sql().delete_dead_letters, &Values::these(ids)).execute(conn).await?;
    Ok(())
}
