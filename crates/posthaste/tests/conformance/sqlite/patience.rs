//! Who waits for whom, and for how long.

use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, OutboxMessage, Partitions, TransactionalMessageHandler,
    testing::Timings,
};
use sqlx::{
    Connection, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use super::stage::{
    Memory, PATIENCE, builder, eventually, fresh, make_effects, millis, quick_retries, secs, settled,
};
use crate::stage::timings;

/// It says so of itself: it waits whatever the pool's timeout.
#[tokio::test]
async fn an_enqueue_to_a_small_pool_waits_for_a_slow_handler_whatever_the_pools_timeout() {
    let (db, memory) = (fresh().await, Memory::slow(secs(4)));
    let options: SqliteConnectOptions = (*db.pool.connect_options()).clone();
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(secs(2))
        .connect_with(options)
        .await
        .unwrap();
    let queue = builder(&pool).queue("slow", Partitions::of(1)).transactional(memory.clone());
    let handle = queue.queue("other", Partitions::of(1)).leased(Memory::new()).start().await.unwrap();
    let outbox = handle.outbox();
    outbox.enqueue(&pool, "slow", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let enqueues: Vec<_> = (0..2)
        .map(|_| {
            let (outbox, pool) = (outbox.clone(), pool.clone());
            tokio::spawn(async move { outbox.enqueue(&pool, "other", EnqueueMessage::new("x")).await })
        })
        .collect();
    for enqueue in enqueues {
        enqueue.await.unwrap().unwrap();
    }
    handle.stop().await;
    pool.close().await;
    db.remove().await;
}

/// The same in memory, where the handler has the pool's only connection.
#[tokio::test]
async fn in_memory_an_enqueue_waits_for_a_slow_handler_whatever_the_pools_timeout() {
    let memory = Memory::slow(secs(4));
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(secs(2))
        .connect("sqlite::memory:")
        .await
        .unwrap();
    make_effects(&pool).await;
    let queue = builder(&pool).queue("slow", Partitions::of(1)).transactional(memory.clone());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    outbox.enqueue(&pool, "slow", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let done = outbox.enqueue(&pool, "slow", EnqueueMessage::new("x")).await;
    handle.stop().await;
    done.unwrap();
}

/// Timings by which an enqueue gives up soon.
fn soon() -> Timings {
    Timings { sqlite_write_limit: secs(3), ..timings() }
}

/// Who has begun to write and enqueues to the pool waits for itself: that must end, with an error that says so.
async fn waits_for_itself(pool: SqlitePool) {
    make_effects(&pool).await;
    let queue = builder(&pool).timings(soon()).queue("q", Partitions::of(1)).leased(Memory::new());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let mut tx = pool.begin().await.unwrap();
    outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
    let done = tokio::time::timeout(PATIENCE, outbox.enqueue(&pool, "q", EnqueueMessage::new("x"))).await;
    tx.rollback().await.unwrap();
    handle.stop().await;
    assert!(done.is_ok(), "it hangs");
    let error = done.unwrap().unwrap_err();
    assert!(error.to_string().contains("another writer was in the way"), "{error}");
}

#[tokio::test]
async fn in_memory_who_waits_for_itself_is_told() {
    waits_for_itself(SqlitePoolOptions::new().max_connections(5).connect("sqlite::memory:").await.unwrap())
        .await;
}

#[tokio::test]
async fn whoever_waits_for_another_process_is_told_when_the_limit_is_over() {
    let db = fresh().await;
    let queue = builder(&db.pool).timings(soon()).queue("q", Partitions::of(1));
    let handle = queue.leased(Memory::new()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut other = SqliteConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let enqueues: Vec<_> = (0..2)
        .map(|_| {
            let (outbox, pool) = (outbox.clone(), db.pool.clone());
            tokio::spawn(async move {
                tokio::time::timeout(PATIENCE, outbox.enqueue(&pool, "q", EnqueueMessage::new("x"))).await
            })
        })
        .collect();
    let mut told = Vec::new();
    for enqueue in enqueues {
        told.push(enqueue.await.unwrap());
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    handle.stop().await;
    assert!(told.iter().all(|told| matches!(told, Ok(Err(_)))), "{told:?}");
    db.remove().await;
}

/// A handler that sets something, and hangs.
struct Spoiler(Memory);

impl TransactionalMessageHandler<Sqlite> for Spoiler {
    async fn handle(&self, conn: &mut SqliteConnection, msg: &OutboxMessage) -> HandlerResult {
        if msg.payload == b"spoil" {
            sqlx::raw_sql("PRAGMA query_only = ON").execute(&mut *conn).await.unwrap();
            std::future::pending::<()>().await;
        }
        TransactionalMessageHandler::handle(&self.0, conn, msg).await
    }
}

#[tokio::test]
async fn in_memory_a_handler_that_sets_something_and_hangs_stops_nobody() {
    let pool = SqlitePoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    make_effects(&pool).await;
    let queue = builder(&pool).processor_tuning(quick_retries()).handler_timeout(millis(300));
    let queue = queue.queue("q", Partitions::of(1)).transactional(Spoiler(Memory::new())).max_attempts(1);
    let handle = queue.start().await.unwrap();
    for payload in ["spoil", "fine"] {
        handle.outbox().enqueue(&pool, "q", EnqueueMessage::new(payload)).await.unwrap();
    }
    eventually("all is settled", async || settled(&pool).await == 2).await;
    handle.stop().await;
}

/// G4 without any fault: a leased handler is well within its lease, but its settlement has to wait for a transactional handler of
/// another queue for longer than the lease's headroom; and another process waits for the lease's end.
#[tokio::test]
async fn g4_a_slow_transactional_handler_makes_no_duplicates_of_leased_messages() {
    let (db, leased, slow) = (fresh().await, Memory::slow(millis(500)), Memory::slow(millis(4500)));
    let lease = LeaseConfig { duration: secs(4), headroom: millis(500) };
    let mut handles = Vec::new();
    for _ in 0..2 {
        let pool = SqlitePool::connect_with((*db.pool.connect_options()).clone()).await.unwrap();
        let queue = builder(&pool).queue("leased", Partitions::of(1)).leased(leased.clone()).lease(lease);
        let queue = queue.queue("slow", Partitions::of(1)).transactional(slow.clone());
        handles.push(queue.start().await.unwrap());
    }
    let outbox = handles[0].outbox();
    for round in 1..=3 {
        outbox.enqueue(&db.pool, "leased", EnqueueMessage::new("x")).await.unwrap();
        eventually("handled", async || leased.all().len() >= round).await;
        outbox.enqueue(&db.pool, "slow", EnqueueMessage::new("x")).await.unwrap();
        let all = i64::try_from(round * 2).unwrap();
        eventually("settled", async || settled(&db.pool).await == all).await;
    }
    for handle in handles {
        handle.stop().await;
    }
    let ids: Vec<_> = leased.all().iter().map(|message| message.id.0).collect();
    assert_eq!(ids.len(), 3, "each once: {ids:?}");
    db.remove().await;
}
