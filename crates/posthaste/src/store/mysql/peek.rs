//! What shows what lies in a queue, to whoever looks from outside.

use sqlx::MySqlConnection;

use super::{MySqlStore, query};
use crate::{
    enqueued::EnqueuedMessage,
    store::{Queue, READER, Result, Unsettled, peeked, segments::json},
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

pub(super) async fn unsettled(
    store: &MySqlStore,
    conn: &mut MySqlConnection,
    queue: &Queue,
) -> Result<Vec<Unsettled>> {
    let statement = query(&store.sql().unsettled).bind(json(&queue.partition_ids)).bind(READER).bind(READER);
    peeked::unsettled(&statement.fetch_all(conn).await?, queue)
}
