//! What removes what every reader has passed, and what looks for messages that nobody will ever deliver.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Executor, MySqlConnection, Row, mysql::MySqlRow};

use super::{
    MySqlStore, REST, begin, is_locked,
    pending::first_run,
    query,
    text::{ending_with, removals, run},
    work,
};
use crate::store::{
    READER, Removed, Result, Surveyed, Suspects, Trim, Trimmed,
    remains::remains,
    segments::{array, json},
};

/// How long a chunk may take: index probes for each row, on a server that is busy with other things.
const CHUNK_LIMIT: Duration = Duration::from_secs(120);
/// How many messages are looked at in one go for such as nobody will deliver.
const WINDOW: i64 = 100;
/// How old they must be, in seconds: what is settled is removed sooner.
const GROWN_S: i64 = 30;

pub(super) async fn survey(store: &MySqlStore, known: &[Trimmed]) -> Result<Surveyed> {
    let known: Vec<_> =
        known.iter().map(|k| (k.partition_id, k.seen_epoch, k.first_epoch, k.after_seq)).collect();
    let known = json(&known);
    let statement = || query(&store.sql().survey).bind(READER).bind(known.clone()).bind(READER).bind(READER);
    let rows = store.fetch(statement).await?;
    Ok(Surveyed { remains: remains(&rows)?, server: Some(store.shared.connections.losses()) })
}

pub(super) async fn vacuum(
    store: &MySqlStore,
    trims: &[Trim],
    first_tick: i64,
    most_ticks: u32,
) -> Result<Option<Removed>> {
    work!(store, CHUNK_LIMIT, |conn| remove_and_commit(store, conn, trims, first_tick, most_ticks))
}

async fn remove_and_commit(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    trims: &[Trim],
    first_tick: i64,
    most_ticks: u32,
) -> Result<Option<Removed>> {
    let mut tx = begin(conn).await?;
    let removed = match remove(store, &mut tx, trims, first_tick, most_ticks).await {
        Err(error) if is_locked(&error) => {
            tx.rollback().await?;
            conn.execute(REST).await?;
            return Ok(None);
        }
        removed => removed?,
    };
    kill_point!(VacuumBeforeCommit);
    tx.commit().await?;
    conn.execute(REST).await?;
    Ok(Some(removed))
}

/// How far to go in a partition.
struct Bounds {
    partition_id: i32,
    first_epoch: i64,
    end_epoch: i64,
    after_seq: i64,
    to_seq: i64,
    head: i64,
}

/// Oldest first of each chain, by exact keys: what is left never has a hole.
async fn remove(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    trims: &[Trim],
    first_tick: i64,
    most_ticks: u32,
) -> Result<Removed> {
    let bounds = bounds(store, conn, trims).await?;
    remove_links(store, conn, &bounds).await?;
    let messages = remove_segments(store, conn, &bounds).await?;
    let (ticks, last_tick) = remove_ticks(store, conn, first_tick, most_ticks).await?;
    let next_tick = last_tick.map_or(first_tick, |last| last + 1);
    Ok(Removed { messages, ticks, next_tick, server: store.shared.connections.losses() })
}

/// How far a partition is settled is read here, in the transaction that removes.
async fn bounds(store: &MySqlStore, conn: &mut MySqlConnection, trims: &[Trim]) -> Result<Vec<Bounds>> {
    if trims.is_empty() {
        return Ok(Vec::new());
    }
    let trims: Vec<_> =
        trims.iter().map(|t| (t.partition_id, t.first_epoch, t.end_epoch, t.after_seq, t.to_seq)).collect();
    let rows =
        query(&store.sql().vacuum_look).bind(json(&trims)).bind(READER).bind(READER).fetch_all(conn).await?;
    let bounds = rows.iter().map(|row| {
        Ok(Bounds {
            partition_id: row.try_get("id")?,
            first_epoch: row.try_get("first_epoch")?,
            end_epoch: row.try_get("end_epoch")?,
            after_seq: row.try_get("after_seq")?,
            to_seq: row.try_get("to_seq")?,
            head: row.try_get("head")?,
        })
    });
    let mut bounds = bounds.collect::<Result<Vec<_>, sqlx::Error>>()?;
    // In the order of the keys, as everybody else goes: the vacuums of two processes would lock each other out.
    bounds.sort_unstable_by_key(|bounds| bounds.partition_id);
    Ok(bounds)
}

async fn remove_links(store: &MySqlStore, conn: &mut MySqlConnection, bounds: &[Bounds]) -> Result<()> {
    // A chain has no holes, so the keys are known.
    let links: Vec<_> = bounds
        .iter()
        .flat_map(|b| (b.first_epoch..b.end_epoch).map(move |epoch| (b.partition_id, epoch)))
        .collect();
    for links in links.chunks(store.most_keys()) {
        query(&store.sql().vacuum_links).bind(json(&links)).bind(READER).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Segments that are settled go with their messages; of a partition's newest segment, the messages alone.
async fn remove_segments(store: &MySqlStore, conn: &mut MySqlConnection, bounds: &[Bounds]) -> Result<u64> {
    // The newest stays, so it may lie before what is remembered to be gone.
    let ranges = bounds.iter().map(|b| (b.partition_id, b.after_seq.min(b.head - 1), b.to_seq));
    let ranges: Vec<_> = ranges
        .filter(|(_, after, to)| after < to)
        .map(|(id, after, to)| {
            format!("(o.partition_id = {id} AND o.last_seq > {after} AND o.last_seq <= {to})")
        })
        .collect();
    if ranges.is_empty() {
        return Ok(0);
    }
    let read = ending_with(&store.sql().vacuum_read, "{ranges}", &ranges.join(" OR "));
    let rows = sqlx::raw_sql(AssertSqlSafe(read)).fetch_all(&mut *conn).await?;
    let mut read = rows.iter().map(Segment::of).collect::<Result<Vec<_>>>()?;
    read.sort_unstable_by_key(Segment::key);
    let is_newest = |segment: &Segment| bounds.iter().any(|b| (b.partition_id, b.head) == segment.key());
    let segments: Vec<_> = read.iter().filter(|segment| !is_newest(segment)).map(Segment::key).collect();
    let mut gone = 0;
    for segments in segments.chunks(store.most_keys()) {
        gone += query(&store.sql().vacuum_segments)
            .bind(json(&segments))
            .execute(&mut *conn)
            .await?
            .rows_affected();
    }
    // Where another vacuum was faster, it has removed the messages too. What goes with a segment of ours is there; unless another
    // vacuum is just about to remove it from what was the newest, and then this one gives up for now if a producer is behind it.
    let is_ours = gone == u64::try_from(segments.len()).unwrap_or(u64::MAX);
    let messages = read.iter().filter(|segment| segment.is_there).flat_map(|segment| {
        let is_sure = is_ours && !is_newest(segment);
        segment.ids.iter().map(move |id| (*id, is_sure.then_some(id + 1)))
    });
    // In the order of the ids, as everybody else goes.
    let mut messages: Vec<_> = messages.collect();
    messages.sort_unstable();
    let mut removed = 0;
    for messages in messages.chunks(store.most_keys()) {
        let removals = removals(&store.sql().vacuum_message_run, &store.sql().vacuum_messages, messages);
        removed += run(conn, removals.join("; ")).await?.iter().map(|done| done.affected).sum::<u64>();
    }
    Ok(removed)
}

struct Segment {
    partition_id: i32,
    last_seq: i64,
    ids: Vec<i64>,
    /// Its messages are.
    is_there: bool,
}

impl Segment {
    fn of(row: &MySqlRow) -> Result<Self> {
        Ok(Self {
            partition_id: row.try_get("partition_id")?,
            last_seq: row.try_get("last_seq")?,
            ids: serde_json::from_str(row.try_get("ids")?)?,
            is_there: row.try_get::<i64, _>("is_there")? != 0,
        })
    }

    const fn key(&self) -> (i32, i64) {
        (self.partition_id, self.last_seq)
    }
}

/// How many, and the last.
async fn remove_ticks(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    first: i64,
    most: u32,
) -> Result<(u64, Option<i64>)> {
    let ends = query(&store.sql().vacuum_tick_ends).bind(first).fetch_one(&mut *conn).await?;
    let (oldest, newest): (Option<i64>, Option<i64>) = (ends.try_get("oldest")?, ends.try_get("newest")?);
    let (Some(oldest), Some(newest)) = (oldest, newest) else { return Ok((0, None)) };
    let most = i64::from(most).min(i64::try_from(store.most_keys()).unwrap_or(i64::MAX));
    let end = newest.min(oldest + most);
    if oldest >= end {
        return Ok((0, None));
    }
    let ticks: Vec<_> = (oldest..end).collect();
    let removed = query(&store.sql().vacuum_ticks).bind(array(&ticks)).execute(conn).await?;
    Ok((removed.rows_affected(), Some(end - 1)))
}

pub(super) async fn suspects(store: &MySqlStore, after_id: i64) -> Result<Suspects> {
    let statement = || {
        let statement =
            query(&store.sql().suspects).bind(GROWN_S).bind(first_run(after_id)).bind(after_id).bind(WINDOW);
        statement.bind(READER).bind(after_id).bind(WINDOW)
    };
    let rows = store.fetch(statement).await?;
    let looked_at = rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get::<i64, _>(1)? != 0)));
    let looked_at = looked_at.collect::<Result<Vec<(i64, bool)>, sqlx::Error>>()?;
    let window = looked_at.first().zip(looked_at.last()).map(|(first, last)| (first.0, last.0));
    let is_end = i64::try_from(looked_at.len()).unwrap_or(i64::MAX) < WINDOW;
    let ids = looked_at.into_iter().filter(|(_, is_suspect)| *is_suspect).map(|(id, _)| id).collect();
    Ok(Suspects { ids, window, is_end })
}

pub(super) async fn strays(store: &MySqlStore, suspects: &[i64]) -> Result<u64> {
    let ids = array(suspects);
    let (first, last) = (suspects.iter().min().copied(), suspects.iter().max().copied());
    let (first, last) = (first_run(first.unwrap_or_default()), last.unwrap_or_default());
    let statement = || query(&store.sql().strays).bind(ids.clone()).bind(first).bind(last);
    let rows = store.fetch(statement).await?;
    let strays: i64 = rows.first().ok_or(sqlx::Error::RowNotFound)?.try_get("strays")?;
    Ok(u64::try_from(strays).unwrap_or_default())
}
