//! Who waits for whom, and for how long.

use std::time::Instant;

use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, OutboxMessage, Partitions, TransactionalMessageHandler,
};
use sqlx::{
    Connection, Sqlite, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use super::stage::{Memory, builder, fresh, make_effects, millis, quick_retries, secs, settled, within};

/// It says so of itself: it waits whatever the pool's timeout.
#[tokio::test]
async fn an_enqueue_to_a_small_pool_waits_for_a_slow_handler_whatever_the_pools_timeout() {
    let (db, memory) = (fresh().await, Memory::slow(secs(4)));
    let options: SqliteConnectOptions = (*db.pool.connect_options()).clone();
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .acquire_timeout(secs(1))
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
        .acquire_timeout(secs(1))
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

/// Who has begun to write and enqueues to the pool waits for itself: that must end, with an error that says so.
async fn waits_for_itself(pool: SqlitePool) {
    make_effects(&pool).await;
    let queue = builder(&pool).queue("q", Partitions::of(1)).leased(Memory::new());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let mut tx = pool.begin().await.unwrap();
    outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
    let done = tokio::time::timeout(secs(45), outbox.enqueue(&pool, "q", EnqueueMessage::new("x"))).await;
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

/// "wait up to 30 s for their turn": all of them, not one after the other.
#[tokio::test]
async fn whoever_waits_for_another_process_is_told_after_half_a_minute() {
    let db = fresh().await;
    let handle = builder(&db.pool).queue("q", Partitions::of(1)).leased(Memory::new()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut other = SqliteConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let began = Instant::now();
    let enqueues: Vec<_> = (0..2)
        .map(|_| {
            let (outbox, pool) = (outbox.clone(), db.pool.clone());
            tokio::spawn(async move {
                let done = outbox.enqueue(&pool, "q", EnqueueMessage::new("x")).await;
                (done.is_err(), began.elapsed())
            })
        })
        .collect();
    let mut told = Vec::new();
    for enqueue in enqueues {
        told.push(enqueue.await.unwrap());
    }
    sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    handle.stop().await;
    assert!(told.iter().all(|(is_error, after)| *is_error && *after < secs(45)), "{told:?}");
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
    within(secs(10), "all is settled", async || settled(&pool).await == 2).await;
    handle.stop().await;
}

/// G4 without any fault: a leased handler is well within its lease, but its settlement has to wait for a transactional handler of
/// another queue for longer than the lease's headroom; and another process waits for the lease's end.
#[tokio::test]
async fn g4_a_slow_transactional_handler_makes_no_duplicates_of_leased_messages() {
    let (db, leased, slow) = (fresh().await, Memory::slow(millis(700)), Memory::slow(secs(3)));
    let lease = LeaseConfig { duration: secs(2), headroom: millis(500) };
    let mut handles = Vec::new();
    for _ in 0..2 {
        let pool = SqlitePool::connect_with((*db.pool.connect_options()).clone()).await.unwrap();
        let queue = builder(&pool).queue("leased", Partitions::of(1)).leased(leased.clone()).lease(lease);
        let queue = queue.queue("slow", Partitions::of(1)).transactional(slow.clone());
        handles.push(queue.start().await.unwrap());
    }
    let outbox = handles[0].outbox();
    for round in 1..=6 {
        outbox.enqueue(&db.pool, "leased", EnqueueMessage::new("x")).await.unwrap();
        within(secs(10), "handled", async || leased.all().len() >= round).await;
        outbox.enqueue(&db.pool, "slow", EnqueueMessage::new("x")).await.unwrap();
        let all = i64::try_from(round * 2).unwrap();
        within(secs(20), "settled", async || settled(&db.pool).await == all).await;
    }
    for handle in handles {
        handle.stop().await;
    }
    let ids: Vec<_> = leased.all().iter().map(|message| message.id.0).collect();
    assert_eq!(ids.len(), 6, "each once: {ids:?}");
    db.remove().await;
}
