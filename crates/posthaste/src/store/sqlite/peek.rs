//! What shows what lies in a queue, to whoever looks from outside.

use sqlx::SqliteConnection;

use super::{SqliteStore, busy::patiently, query};
use crate::{
    OutboxMessage,
    enqueued::EnqueuedMessage,
    store::{Queue, READER, Result, Unsettled, peeked, segments::json},
};

pub(super) async fn peek(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let partitions = json(&queue.partition_ids);
    let rows = patiently!(async {
        let statement = query(&store.sql().peek).bind(&*partitions).bind(after_id).bind(most);
        Ok(statement.fetch_all(&mut *conn).await?)
    })?;
    peeked::peeked(&rows, queue)
}

pub(super) async fn browse(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    partition_id: i32,
    after_seq: i64,
    most: u32,
) -> Result<Vec<OutboxMessage>> {
    let rows = patiently!(async {
        let statement = query(&store.sql().browse).bind(partition_id).bind(after_seq).bind(most);
        Ok(statement.fetch_all(&mut *conn).await?)
    })?;
    peeked::browsed(&rows, queue)
}

pub(super) async fn unsequenced(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
    partition_ids: &[i32],
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let partitions = json(&partition_ids);
    let rows = patiently!(async {
        let statement = query(&store.sql().unsequenced).bind(&*partitions).bind(after_id).bind(most);
        Ok(statement.fetch_all(&mut *conn).await?)
    })?;
    peeked::peeked(&rows, queue)
}

pub(super) async fn clock(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<i64> {
    let rows = patiently!(async { Ok(query(&store.sql().clock).fetch_all(&mut *conn).await?) })?;
    peeked::clock(&rows)
}

pub(super) async fn unsettled(
    store: &SqliteStore,
    conn: &mut SqliteConnection,
    queue: &Queue,
) -> Result<Vec<Unsettled>> {
    let partitions = json(&queue.partition_ids);
    let rows = patiently!(async {
        Ok(query(&store.sql().unsettled).bind(READER).bind(&*partitions).fetch_all(&mut *conn).await?)
    })?;
    peeked::unsettled(&rows, queue)
}
