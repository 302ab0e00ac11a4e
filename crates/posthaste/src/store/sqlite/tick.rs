//! What gives messages their order.

use sqlx::{Connection, Row, SqliteConnection};

use super::{
    BEGIN, SqliteStore,
    busy::{Kind, reading, writing},
    query,
};
use crate::store::{
    Horizon, Result, Tick,
    segments::{partitions, segments},
};

/// The most messages that one tick takes, whatever the tuning says: nobody else writes meanwhile.
const MOST: u32 = 50_000;

/// Looks first: whoever wants to write keeps everybody else from it. If another tick was faster then, nothing is written.
pub(super) async fn tick(store: &SqliteStore, most: u32) -> Result<Tick> {
    let most = most.min(MOST);
    let Taken { tick_id, last_id, messages } = reading!(store, conn => take(store, conn, most))?;
    let Some((newest, _)) = messages.last() else {
        return Ok(Tick { horizon: horizon(store, last_id).await?, ..Tick::default() });
    };
    let segments = segments(&messages);
    if !writing!(store, Kind::Durable, conn => append(store, conn, tick_id, &segments, *newest))? {
        return Ok(Tick { is_busy: true, ..Tick::default() });
    }
    let taken = u64::try_from(messages.len()).unwrap_or(u64::MAX);
    Ok(Tick {
        taken,
        partitions: partitions(&messages),
        has_more: taken >= u64::from(most),
        horizon: behind(*newest),
        ..Tick::default()
    })
}

/// What a tick found.
struct Taken {
    /// The newest tick before it, and what that saw last.
    tick_id: i64,
    last_id: i64,
    /// What came behind, by id, with their partitions.
    messages: Vec<(i64, i32)>,
}

async fn take(store: &SqliteStore, conn: &mut SqliteConnection, most: u32) -> Result<Taken> {
    let rows = query(&store.sql().take).bind(most).fetch_all(conn).await?;
    let first = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let (tick_id, last_id) = (first.try_get("tick_id")?, first.try_get("last_id")?);
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        if let Some(id) = row.try_get("id")? {
            messages.push((id, row.try_get("partition_id")?));
        }
    }
    messages.sort_unstable();
    Ok(Taken { tick_id, last_id, messages })
}

/// Whether no other tick was faster.
async fn append(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    tick_id: i64,
    segments: &str,
    newest: i64,
) -> Result<bool> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let statement = query(&store.sql().tick).bind(tick_id).bind(segments).bind(newest);
    if statement.fetch_all(&mut *tx).await?.is_empty() {
        tx.rollback().await?;
        return Ok(false);
    }
    kill_point!(TickBeforeCommit);
    tx.commit().await?;
    Ok(true)
}

/// All messages up to this one have been taken.
fn behind(last_id: i64) -> Horizon {
    Horizon::Snapshot { next: last_id.cast_unsigned() + 1, open: Vec::new() }
}

/// Nothing is new: is that because a producer has not committed yet? If anybody is writing, it may be one.
async fn horizon(store: &SqliteStore, last_id: i64) -> Result<Horizon> {
    if store.is_in_memory() {
        // Within a shared cache nobody reads what somebody is writing: as we could, nobody was.
        return Ok(Horizon::Everything);
    }
    // The connection first, as always; it is one that nobody waits with.
    let mut conn = store.connection(Kind::Reader).await?;
    let Ok(turn) = store.shared.turn.try_lock() else {
        return conn.keep_if_usable(Ok(behind(last_id)));
    };
    let looked = async {
        let mut tx = conn.begin_with(BEGIN).await?;
        // It may have committed just before.
        let has_news = has_news(store, &mut tx).await?;
        tx.rollback().await?;
        Ok(if has_news { behind(last_id) } else { Horizon::Everything })
    };
    let looked = looked.await;
    drop(turn);
    match conn.keep_if_usable(looked) {
        Err(error) if error.is_retryable() => Ok(behind(last_id)),
        looked => looked,
    }
}

/// By id, as a tick would have; it excludes ticks, and all who write, meanwhile.
pub(super) async fn recover(store: &SqliteStore) -> Result<u64> {
    writing!(store, Kind::Durable, conn => recover_once(store, conn))
}

async fn recover_once(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<u64> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let rows = query(&store.sql().orphans).fetch_all(&mut *tx).await?;
    let orphans = rows.iter().map(|row| Ok((row.try_get("id")?, row.try_get("partition_id")?)));
    let orphans = orphans.collect::<Result<Vec<(i64, i32)>>>()?;
    query(&store.sql().segments).bind(segments(&orphans)).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(u64::try_from(orphans.len()).unwrap_or_default())
}

/// Whether there is anything for the sequencer to do.
pub(super) async fn has_news(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<bool> {
    Ok(query(&store.sql().news).fetch_one(conn).await?.try_get("is_news")?)
}
