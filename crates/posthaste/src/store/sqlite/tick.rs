//! What gives messages their order.

use sqlx::{Connection, Row, SqliteConnection, sqlite::SqliteRow};

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

/// Looks first: whoever wants to write keeps everybody else from it.
pub(super) async fn tick(store: &SqliteStore, most: u32) -> Result<Tick> {
    let news = reading!(store, conn => look_for_news(store, conn))?;
    if !news.is_there {
        return Ok(Tick { horizon: horizon(store, news.last_id).await?, ..Tick::default() });
    }
    writing!(store, Kind::Durable, conn => tick_once(store, conn, most.min(MOST)))
}

struct News {
    /// What the newest tick saw last.
    last_id: i64,
    /// There is something behind it.
    is_there: bool,
}

async fn look_for_news(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<News> {
    let row = query(&store.sql().news).fetch_one(conn).await?;
    Ok(News { last_id: row.try_get("last_id")?, is_there: row.try_get("is_news")? })
}

async fn tick_once(store: &SqliteStore, conn: &mut SqliteConnection, most: u32) -> Result<Tick> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let rows = query(&store.sql().take).bind(most).fetch_all(&mut *tx).await?;
    let Some(first) = rows.first() else {
        tx.rollback().await?;
        // Another process has ticked since; and nobody was writing.
        return Ok(Tick { horizon: Horizon::Everything, ..Tick::default() });
    };
    let previous: i64 = first.try_get("tick_id")?;
    let taken = ids(&rows)?;
    let last_id = taken.last().map_or(0, |(id, _)| *id);
    query(&store.sql().tick).bind(previous).bind(last_id).execute(&mut *tx).await?;
    query(&store.sql().segments).bind(segments(&taken)).execute(&mut *tx).await?;
    tx.commit().await?;
    let count = u64::try_from(taken.len()).unwrap_or(u64::MAX);
    let has_more = count >= u64::from(most);
    Ok(Tick {
        taken: count,
        partitions: partitions(&taken),
        has_more,
        // Who had begun to write before had ended when it was our turn, and what it wrote was there to be taken.
        horizon: if has_more { behind(last_id) } else { Horizon::Everything },
        ..Tick::default()
    })
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
        let news = look_for_news(store, &mut tx).await?;
        tx.rollback().await?;
        Ok(if news.is_there { behind(last_id) } else { Horizon::Everything })
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
    let orphans = ids(&query(&store.sql().orphans).fetch_all(&mut *tx).await?)?;
    query(&store.sql().segments).bind(segments(&orphans)).execute(&mut *tx).await?;
    tx.commit().await?;
    Ok(u64::try_from(orphans.len()).unwrap_or_default())
}

/// Messages, with their partitions.
fn ids(rows: &[SqliteRow]) -> Result<Vec<(i64, i32)>> {
    let ids = rows.iter().map(|row| Ok((row.try_get("id")?, row.try_get("partition_id")?)));
    ids.collect()
}
