//! What gives messages their order.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row};

use super::{
    BEGIN, MySqlStore, REST, begin, is_locked,
    pending::{Run, pend},
    query,
    text::{Value, ending_with, filled, removals, run},
    work,
};
use crate::{
    OutboxError,
    store::{
        Horizon, Result, Tick,
        segments::{partitions, segments},
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
    let Some(Taken { messages, has_more }) = taken else {
        return Ok(Tick { is_busy: true, ..Tick::default() });
    };
    Ok(Tick {
        taken: u64::try_from(messages.len()).unwrap_or(u64::MAX),
        partitions: partitions(&messages),
        has_more,
        horizon: Horizon::Seen(messages.iter().map(|(id, _)| id.cast_unsigned()).collect()),
        ..Tick::default()
    })
}

/// What a tick took, in the order of the ids.
struct Taken {
    messages: Vec<(i64, i32)>,
    has_more: bool,
}

/// None if another process is at it.
async fn take(store: &MySqlStore, conn: &mut MySqlConnection, most: u32) -> Result<Option<Taken>> {
    let taken = take_and_commit(store, conn, most).await;
    if !taken.as_ref().is_ok_and(|taken| !taken.messages.is_empty()) {
        sqlx::raw_sql(AssertSqlSafe(format!("ROLLBACK; {REST}"))).execute(conn).await?;
    }
    match taken {
        Err(error) if is_locked(&error) => Ok(None),
        taken => taken.map(Some),
    }
}

async fn take_and_commit(store: &MySqlStore, conn: &mut MySqlConnection, most: u32) -> Result<Taken> {
    // As many runs as it takes, if they are as long as those of the last tick were.
    let limit = (most / store.shared.run_length.load(Relaxed)).max(1);
    let (append, pending) = (&store.sql().tick, ending_with(&store.sql().take, "{most}", &limit.to_string()));
    let rows =
        sqlx::raw_sql(AssertSqlSafe(format!("{BEGIN}; {append}; {pending}"))).fetch_all(&mut *conn).await?;
    let (most, mut runs, mut messages) = (count(most), Vec::new(), Vec::new());
    for row in &rows {
        if messages.len() >= most {
            break;
        }
        let run = Run::of(row)?;
        messages.extend(run.messages());
        runs.push(run);
    }
    if messages.is_empty() {
        // Another tick was faster.
        return Ok(Taken { messages, has_more: false });
    }
    let length = u32::try_from(messages.len() / runs.len().max(1)).unwrap_or(u32::MAX);
    store.shared.run_length.store(length.max(1), Relaxed);
    let rest = messages.split_off(messages.len().min(most));
    let has_more = !rest.is_empty() || runs.len() < rows.len() || rows.len() >= count(limit);
    write(store, conn, &runs, &messages, rest).await?;
    kill_point!(TickBeforeCommit);
    sqlx::raw_sql(AssertSqlSafe(format!("COMMIT; {REST}"))).execute(conn).await?;
    Ok(Taken { messages, has_more })
}

fn count(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// Writes the segments of what is taken, and removes its runs from what is pending; the rest of the last one stays so.
async fn write(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    runs: &[Run],
    taken: &[(i64, i32)],
    rest: Vec<(i64, i32)>,
) -> Result<()> {
    let segments = filled(&store.sql().segments, [Value::Array(&segments(taken))]);
    let rows: Vec<_> = runs.iter().map(Run::bounds).collect();
    let removals = removals(&store.sql().taken_run, &store.sql().taken, &rows);
    let removing = removals.len();
    let rest = (!rest.is_empty()).then(|| pend(&store.sql().pend, rest));
    let statements = [vec![segments], removals, rest.into_iter().collect()].concat();
    let done = run(conn, statements.join("; ")).await?;
    let removed: u64 = done.iter().skip(1).take(removing).map(|done| done.affected).sum();
    if removed == u64::try_from(runs.len()).unwrap_or(u64::MAX) {
        return Ok(());
    }
    Err(OutboxError::Unsuitable(format!(
        "a tick took {} runs of messages, but {removed} of them were pending: is anybody else removing them?",
        runs.len()
    )))
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
