//! What shows what lies in a queue, to whoever looks from outside.

use sqlx::{
    Connection, PgConnection, Postgres,
    postgres::{PgArguments, PgRow},
    query::Query,
};

use super::{PostgresStore, query};
use crate::{
    OutboxMessage,
    enqueued::EnqueuedMessage,
    store::{Queue, READER, Result, Unsettled, batch::size, peeked},
};

pub(super) async fn peek(
    store: &PostgresStore,
    conn: &mut PgConnection,
    queue: &Queue,
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let statement = query(&store.sql().peek).bind(&*queue.partition_ids).bind(after_id).bind(i64::from(most));
    peeked::peeked(&fetch(store, conn, statement).await?, queue)
}

pub(super) async fn browse(
    store: &PostgresStore,
    conn: &mut PgConnection,
    queue: &Queue,
    partition_id: i32,
    after_seq: i64,
    most: u32,
) -> Result<Vec<OutboxMessage>> {
    let statement = query(&store.sql().browse).bind(partition_id).bind(after_seq).bind(size(most));
    peeked::browsed(&fetch(store, conn, statement).await?, queue)
}

pub(super) async fn unsequenced(
    store: &PostgresStore,
    conn: &mut PgConnection,
    queue: &Queue,
    partition_ids: &[i32],
    after_id: i64,
    most: u32,
) -> Result<Vec<EnqueuedMessage>> {
    let statement = query(&store.sql().unsequenced).bind(partition_ids).bind(after_id);
    let statement = statement.bind(i64::from(most));
    peeked::peeked(&fetch(store, conn, statement).await?, queue)
}

pub(super) async fn clock(store: &PostgresStore, conn: &mut PgConnection) -> Result<i64> {
    let rows = fetch(store, conn, query(&store.sql().clock)).await?;
    peeked::clock(&rows)
}

pub(super) async fn unsettled(
    store: &PostgresStore,
    conn: &mut PgConnection,
    queue: &Queue,
) -> Result<Vec<Unsettled>> {
    let statement = query(&store.sql().unsettled).bind(READER).bind(&*queue.partition_ids);
    peeked::unsettled(&fetch(store, conn, statement).await?, queue)
}

/// On the caller's connection. Behind a pooler in a transaction, or a savepoint of the caller's: what is prepared in one
/// transaction is not there in the next.
async fn fetch(
    store: &PostgresStore,
    conn: &mut PgConnection,
    statement: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>> {
    if !store.is_pooled() {
        return Ok(statement.fetch_all(conn).await?);
    }
    let mut tx = conn.begin().await?;
    let rows = statement.persistent(false).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(rows)
}
