//! What shows what lies in a queue, to whoever looks from outside.

use sqlx::MySqlConnection;

use super::{MySqlStore, pending::first_run, query};
use crate::{
    OutboxMessage,
    enqueued::EnqueuedMessage,
    store::{Queue, READER, Result, Unsettled, batch::size, peeked, segments::json},
};

pub(super) async fn peek(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let statement = query(&store.sql().peek).bind(after_id).bind(json(&queue.partition_ids)).bind(most);
    peeked::peeked(&statement.fetch_all(conn).await?, queue)
}

pub(super) async fn browse(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    partition_id: i32,
    after_seq: i64,
    most: u32,
) -> Result<Vec<OutboxMessage>> {
    let statement = query(&store.sql().browse).bind(after_seq).bind(partition_id).bind(after_seq);
    let statement = statement.bind(size(most)).bind(size(most)).bind(size(most));
    peeked::browsed(&statement.fetch_all(conn).await?, queue)
}

pub(super) async fn unsequenced(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
    partition_ids: &[i32],
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let statement = query(&store.sql().unsequenced).bind(first_run(after_id)).bind(after_id);
    let statement = statement.bind(json(&partition_ids)).bind(most);
    peeked::peeked(&statement.fetch_all(conn).await?, queue)
}

pub(super) async fn clock(store: &MySqlStore, conn: &mut MySqlConnection) -> Result<i64> {
    peeked::clock(&query(&store.sql().clock).fetch_all(conn).await?)
}

pub(super) async fn unsettled(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
) -> Result<Vec<Unsettled>> {
    let statement = query(&store.sql().unsettled).bind(json(&queue.partition_ids)).bind(READER).bind(READER);
    peeked::unsettled(&statement.fetch_all(conn).await?, queue)
}
