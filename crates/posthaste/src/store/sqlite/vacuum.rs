//! What removes what every reader has passed, and what looks for messages that nobody will ever deliver.

use sqlx::{Connection, Row, SqliteConnection};

use super::{
    BEGIN, LOG_LIMIT, SqliteStore,
    busy::{Kind, reading, writing},
    query,
};
use crate::{
    OutboxError,
    store::{READER, Removed, Result, Surveyed, Suspects, Trim, Trimmed, remains::remains, segments},
};

/// How many messages are looked at in one go for such as nobody will deliver.
const WINDOW: usize = 100;
/// How old they must be, in seconds: what is settled is removed sooner.
const GROWN_S: i64 = 30;
/// There is no server that could be another one.
const SERVER: i64 = 0;

pub(super) async fn survey(store: &SqliteStore, known: &[Trimmed]) -> Result<Surveyed> {
    let known: Vec<_> = known
        .iter()
        .map(|known| (known.partition_id, known.seen_epoch, known.first_epoch, known.after_seq))
        .collect();
    let known = segments::json(&known);
    let rows = reading!(store, conn => async {
        Ok(query(&store.sql().survey).bind(READER).bind(&*known).fetch_all(conn).await?)
    })?;
    Ok(Surveyed { remains: remains(&rows)?, server: Some(SERVER) })
}

pub(super) async fn vacuum(
    store: &SqliteStore,
    trims: &[Trim],
    first_tick: i64,
    most_ticks: u32,
) -> Result<Option<Removed>> {
    let trims: Vec<_> = trims
        .iter()
        .map(|trim| (trim.partition_id, trim.first_epoch, trim.end_epoch, trim.after_seq, trim.to_seq))
        .collect();
    let mut removed = Removed { messages: 0, ticks: 0, next_tick: first_tick, server: SERVER };
    // Not even a moment of everybody's time if there is nothing to remove.
    if !trims.is_empty() || has_old_ticks(store, first_tick).await? {
        let trims = segments::json(&trims);
        removed =
            writing!(store, Kind::Durable, conn => remove(store, conn, &trims, first_tick, most_ticks))?;
    }
    shrink_log(store).await?;
    Ok(Some(removed))
}

async fn has_old_ticks(store: &SqliteStore, first_tick: i64) -> Result<bool> {
    reading!(store, conn => async {
        Ok(query(&store.sql().vacuum_look).bind(first_tick).fetch_one(conn).await?.try_get("is_waste")?)
    })
}

/// In one transaction, which excludes everybody who could build on any of it.
async fn remove(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    trims: &str,
    first_tick: i64,
    most_ticks: u32,
) -> Result<Removed> {
    let sql = store.sql();
    let mut tx = conn.begin_with(BEGIN).await?;
    let gone = query(&sql.vacuum_messages).bind(READER).bind(trims).execute(&mut *tx).await?;
    for statement in [&sql.vacuum_segments, &sql.vacuum_links] {
        query(statement).bind(READER).bind(trims).execute(&mut *tx).await?;
    }
    let ticks = query(&sql.vacuum_ticks).bind(first_tick).bind(most_ticks).fetch_all(&mut *tx).await?;
    kill_point!(VacuumBeforeCommit);
    tx.commit().await?;
    let ids = ticks.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
    Ok(Removed {
        messages: gone.rows_affected(),
        ticks: u64::try_from(ids.len()).unwrap_or_default(),
        next_tick: ids.iter().max().map_or(first_tick, |last| last + 1),
        server: SERVER,
    })
}

/// While somebody reads an old state of the database, the log that is written ahead cannot begin anew, and grows with all that
/// is written; nobody can help that. When the reader is gone, what is large is emptied.
async fn shrink_log(store: &SqliteStore) -> Result<()> {
    let Some(log) = &store.shared.log else { return Ok(()) };
    if std::fs::metadata(log).map_or(0, |log| log.len()) <= LOG_LIMIT {
        return Ok(());
    }
    let mut conn = store.connection(Kind::Durable).await?;
    // It does not wait: for as long as it did, nobody could write.
    let emptied = sqlx::raw_sql("PRAGMA main.wal_checkpoint(TRUNCATE)").fetch_one(&mut *conn).await;
    let emptied = emptied.map_err(OutboxError::from).and_then(|row| Ok(row.try_get::<i64, _>(0)? == 0));
    match conn.keep_if_usable(emptied) {
        Ok(true) => tracing::debug!("the log that is written ahead was large, and is empty now"),
        Ok(false) => {
            tracing::debug!("the log that is written ahead is large, and somebody still reads from it");
        }
        Err(error) if error.is_retryable() => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

pub(super) async fn suspects(store: &SqliteStore, after_id: i64) -> Result<Suspects> {
    let window = i64::try_from(WINDOW).unwrap_or(i64::MAX);
    let rows = reading!(store, conn => async {
        let statement = query(&store.sql().suspects).bind(READER).bind(after_id).bind(window).bind(GROWN_S);
        Ok(statement.fetch_all(conn).await?)
    })?;
    let (mut ids, mut suspects) = (Vec::with_capacity(rows.len()), Vec::new());
    for row in &rows {
        let id: i64 = row.try_get("id")?;
        ids.push(id);
        if row.try_get("is_suspect")? {
            suspects.push(id);
        }
    }
    Ok(Suspects {
        ids: suspects,
        window: ids.first().copied().zip(ids.last().copied()),
        is_end: rows.len() < WINDOW,
    })
}

pub(super) async fn strays(store: &SqliteStore, suspects: &[i64]) -> Result<u64> {
    let suspects = segments::array(suspects);
    let strays: i64 = reading!(store, conn => async {
        Ok(query(&store.sql().strays).bind(&*suspects).fetch_one(conn).await?.try_get("strays")?)
    })?;
    Ok(u64::try_from(strays).unwrap_or_default())
}
