//! What operators do with dead letters, on their own connections.

use sqlx::{
    AssertSqlSafe, Connection, MySql, MySqlConnection, Row, SqlSafeStr, Transaction,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};
use uuid::Uuid;

use super::{BEGIN_TO_WRITE, MySqlStore, enqueue::is_in_transaction};
use crate::{
    DeadLetterMessage, OutboxMessageId,
    limits::MAX_DEAD_LETTER_LIMIT,
    store::{
        Change, Lock, Picked, Result, Selection,
        criteria::{Value, Values, render},
        dead_letters::dead_letter,
        segments::array,
    },
};

/// How many are marked at once.
const MARKED: usize = 512;
/// How many are looked at, at least, to find some that nobody else has locked.
const LOOKED_AT: i64 = 1000;
/// How many ids the lists in statements have. A list is filled up to the next of them with its last id, so that there are few statements,
/// which stay prepared: to take one back costs a wait for the server.
const LENGTHS: [usize; 6] = [1, 8, 64, MARKED, 4096, 10_000];

pub(super) async fn begin_on<'c>(
    store: &MySqlStore,
    conn: &'c mut MySqlConnection,
) -> Result<Option<Transaction<'c, MySql>>> {
    if is_in_transaction(store, conn).await? {
        return Ok(None);
    }
    Ok(Some(conn.begin_with(BEGIN_TO_WRITE.into_sql_str()).await?))
}

/// A statement of this text with these values.
fn query(sql: &str, values: &Values) -> Query<'static, MySql, MySqlArguments> {
    let mut bound = Vec::new();
    let text = render(sql, values, |value| match value {
        Value::Wanted => None,
        Value::Numbers(numbers) => {
            let length = LENGTHS.into_iter().find(|length| *length >= numbers.len()).unwrap_or(numbers.len());
            let last = numbers.last().copied();
            let filled = numbers.iter().copied().map(Some).chain(std::iter::repeat(last)).take(length);
            bound.extend(filled.map(|number| number.map_or(Bound::Nothing, Bound::Number)));
            Some(vec!["?"; length].join(","))
        }
        value => {
            bound.push(match value.clone() {
                Value::Number(number) => Bound::Number(number),
                Value::Array(numbers) => Bound::Word(array(&numbers)),
                Value::Word(word) => Bound::Word(word),
                // As bytes: the caller's session may be set to any character set.
                Value::Text(text) => Bound::Bytes(text.into_bytes()),
                Value::Token(token) => Bound::Bytes(token.as_bytes().to_vec()),
                Value::Wanted | Value::Numbers(_) => Bound::Nothing,
            });
            Some("?".to_owned())
        }
    });
    bound.into_iter().fold(sqlx::query(AssertSqlSafe(text)), |query, bound| match bound {
        Bound::Nothing => query.bind(None::<i64>),
        Bound::Number(number) => query.bind(number),
        Bound::Word(word) => query.bind(word),
        Bound::Bytes(bytes) => query.bind(bytes),
    })
}

/// What stands for one question mark.
enum Bound {
    Nothing,
    Number(i64),
    Word(String),
    Bytes(Vec<u8>),
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
/// enough or no more. Those that are named are locked at once: whoever looks in a transaction may look at an old state.
pub(super) async fn pick(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    if lock == Lock::None {
        return find(&store.sql().pick_dead_letters, conn, selection, lock).await;
    }
    if selection.scope.ids.is_some() {
        return find(&store.sql().lock_dead_letters, conn, selection, lock).await;
    }
    let Selection { scope, mut after, state, limit } = *selection;
    let (mut locked, mut look_at) = (Vec::new(), limit.max(LOOKED_AT));
    loop {
        let next = Selection { scope, after, state, limit: look_at };
        let found = find(&store.sql().pick_dead_letters, conn, &next, Lock::None).await?;
        let Some(last) = found.last() else { return Ok(locked) };
        after = Some(OutboxMessageId(last.id));
        let these = scope.clone().ids(found.iter().map(|picked| OutboxMessageId(picked.id)));
        let these = Selection { scope: &these, after: None, state, limit: limit - length(&locked) };
        locked.extend(find(&store.sql().lock_dead_letters, conn, &these, lock).await?);
        if length(&found) < look_at || length(&locked) >= limit {
            return Ok(locked);
        }
        look_at = (2 * look_at).min(MAX_DEAD_LETTER_LIMIT.into());
    }
}

async fn find(
    sql: &str,
    conn: &mut MySqlConnection,
    selection: &Selection<'_>,
    lock: Lock,
) -> Result<Vec<Picked>> {
    let rows = query(sql, &Values::of(selection, lock)).fetch_all(conn).await?;
    rows.iter().map(picked).collect()
}

fn length(picked: &[Picked]) -> i64 {
    i64::try_from(picked.len()).unwrap_or(i64::MAX)
}

pub(super) async fn read(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    ids: &[i64],
    is_locked: bool,
) -> Result<Vec<DeadLetterMessage>> {
    let values = if is_locked { Values::locked(ids) } else { Values::these(ids) };
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
