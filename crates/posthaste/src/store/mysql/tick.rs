//! What gives messages their order.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};

use super::{BEGIN, MySqlStore, REST, begin, is_locked, query, work};
use crate::{
    OutboxError,
    store::{
        Horizon, Result, Tick,
        segments::{array, partitions, segments},
    },
};

/// How long a tick may take.
const TICK_LIMIT: Duration = Duration::from_secs(120);
/// The most messages that one tick takes, whatever the tuning says: the ids travel as one text.
const MOST: u32 = 50_000;

pub(super) async fn tick(store: &MySqlStore, most: u32) -> Result<Tick> {
    // Most looks find nothing, and cost one read.
    let anything = store.fetch(|| query(&store.sql().news)).await?;
    let row = anything.first().ok_or(sqlx::Error::RowNotFound)?;
    if row.try_get::<i64, _>("is_pending")? == 0 {
        return Ok(Tick::default());
    }
    let most = most.min(MOST).min(u32::try_from(store.most_keys()).unwrap_or(u32::MAX));
    let taken = work!(store, TICK_LIMIT, |conn| take(store, conn, most))?;
    let Some(taken) = taken else { return Ok(Tick { is_busy: true, ..Tick::default() }) };
    let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
    Ok(Tick {
        taken: count.into(),
        partitions: partitions(&taken),
        has_more: count >= most,
        horizon: Horizon::Seen(taken.iter().map(|(id, _)| id.cast_unsigned()).collect()),
        ..Tick::default()
    })
}

/// What a tick took, in the order of the ids; none if another process is at it.
async fn take(store: &MySqlStore, conn: &mut MySqlConnection, most: u32) -> Result<Option<Vec<(i64, i32)>>> {
    let taken = take_and_commit(store, conn, most).await;
    if !taken.as_ref().is_ok_and(|taken| !taken.is_empty()) {
        sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK; {REST}"))).execute(conn).await?;
    }
    match taken {
        Err(error) if is_locked(&error) => Ok(None),
        taken => taken.map(Some),
    }
}

async fn take_and_commit(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    most: u32,
) -> Result<Vec<(i64, i32)>> {
    let (append, pending) = (&store.sql().tick, store.sql().take.replace("{most}", &most.to_string()));
    let rows =
        sqlx::raw_sql(AssertSqlSafe(format!("{BEGIN}; {append}; {pending}"))).fetch_all(&mut *conn).await?;
    let taken = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?)));
    let taken = taken.collect::<Result<Vec<(i64, i32)>, sqlx::Error>>()?;
    if taken.is_empty() {
        // Another tick was faster.
        return Ok(taken);
    }
    query(&store.sql().segments).bind(segments(&taken)).execute(&mut *conn).await?;
    let ids: Vec<_> = taken.iter().map(|(id, _)| *id).collect();
    let removed = query(&store.sql().taken).bind(array(&ids)).execute(&mut *conn).await?.rows_affected();
    if removed != u64::try_from(taken.len()).unwrap_or(u64::MAX) {
        return Err(OutboxError::Unsuitable(format!(
            "a tick took {} messages, but {removed} of them were pending: is anybody else removing them?",
            taken.len()
        )));
    }
    sqlx::raw_sql(AssertSqlSafe(format!("COMMIT; {REST}"))).execute(conn).await?;
    Ok(taken)
}

pub(super) async fn recover(store: &MySqlStore) -> Result<u64> {
    work!(store, TICK_LIMIT, |conn| recover_and_commit(store, conn))
}

async fn recover_and_commit(store: &MySqlStore, conn: &mut MySqlConnection) -> Result<u64> {
    let mut tx = begin(conn).await?;
    // Nobody ticks meanwhile: what is pending stays so, and what is in no segment too.
    query(&store.sql().tick).execute(&mut *tx).await?;
    let recovered = query(&store.sql().recover).execute(&mut *tx).await?.rows_affected();
    tx.commit().await?;
    conn.execute(REST).await?;
    Ok(recovered)
}
