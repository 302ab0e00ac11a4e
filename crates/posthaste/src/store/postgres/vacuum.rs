//! What removes what every reader has passed, and what looks for messages that nobody will ever deliver.

use std::time::Duration;

use sqlx::Row;

use super::{PostgresStore, query};
use crate::{
    OutboxError,
    store::{READER, Removed, Result, Surveyed, Suspects, Trim, Trimmed, remains::remains},
};

/// How long a chunk may take: index probes for each row, on a server that is busy with other things.
const CHUNK_LIMIT: Duration = Duration::from_secs(120);
/// `lock_not_available`: somebody builds on what is to be removed.
const LOCKED: &str = "55P03";
/// Keeps the lock apart from the sequencer's, which is made of the same name.
const VACUUM: i64 = 0x7661_6375_756d;
/// How many messages are looked at in one go for such as nobody will deliver.
const WINDOW: i64 = 100;
/// How old they must be, in seconds: what is settled is removed sooner.
const GROWN_S: i64 = 30;

pub(super) async fn survey(store: &PostgresStore, known: &[Trimmed]) -> Result<Surveyed> {
    let column = |of: fn(&Trimmed) -> i64| known.iter().map(of).collect::<Vec<_>>();
    let statement = query(&store.sql().survey)
        .bind(READER)
        .bind(known.iter().map(|known| known.partition_id).collect::<Vec<_>>())
        .bind(column(|known| known.seen_epoch))
        .bind(column(|known| known.first_epoch))
        .bind(column(|known| known.after_seq));
    let rows = store.fetch(statement).await?;
    let server = rows.first().map(|row| row.try_get("server")).transpose()?;
    Ok(Surveyed { remains: remains(&rows)?, server })
}

pub(super) async fn vacuum(
    store: &PostgresStore,
    trims: &[Trim],
    first_tick: i64,
    most_ticks: u32,
) -> Result<Option<Removed>> {
    let column = |of: fn(&Trim) -> i64| trims.iter().map(of).collect::<Vec<_>>();
    let statement = query(&store.sql().vacuum)
        .bind(store.lock_key() ^ VACUUM)
        .bind(READER)
        .bind(trims.iter().map(|trim| trim.partition_id).collect::<Vec<_>>())
        .bind(column(|trim| trim.first_epoch))
        .bind(column(|trim| trim.end_epoch))
        .bind(column(|trim| trim.after_seq))
        .bind(column(|trim| trim.to_seq))
        .bind(first_tick)
        .bind(i64::from(most_ticks));
    let rows = match store.fetch_within(CHUNK_LIMIT, statement).await {
        Err(error) if error.code().as_deref() == Some(LOCKED) => return Ok(None),
        rows => rows?,
    };
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    if !row.try_get::<bool, _>("mine")? {
        return Ok(None);
    }
    let count = |name| Ok::<_, OutboxError>(u64::try_from(row.try_get::<i64, _>(name)?).unwrap_or_default());
    Ok(Some(Removed {
        messages: count("messages")?,
        ticks: count("ticks")?,
        next_tick: row.try_get::<Option<i64>, _>("last_tick")?.map_or(first_tick, |last| last + 1),
        server: row.try_get("server")?,
    }))
}

pub(super) async fn suspects(store: &PostgresStore, after_id: i64) -> Result<Suspects> {
    let statement = query(&store.sql().suspects).bind(READER).bind(after_id).bind(WINDOW).bind(GROWN_S);
    let rows = store.fetch(statement).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let window: (Option<i64>, Option<i64>) = (row.try_get("first_id")?, row.try_get("last_id")?);
    Ok(Suspects {
        ids: row.try_get("suspects")?,
        window: window.0.zip(window.1),
        is_end: row.try_get::<i64, _>("looked_at")? < WINDOW,
    })
}

pub(super) async fn strays(store: &PostgresStore, suspects: &[i64]) -> Result<u64> {
    let rows = store.fetch(query(&store.sql().strays).bind(suspects)).await?;
    let strays: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("strays")?;
    Ok(u64::try_from(strays).unwrap_or_default())
}
