//! Databases in memory, where the workers share the caller's pool.

use posthaste::{EnqueueMessage, Outbox, OutboxError, Partitions};
use sqlx::{SqlitePool, sqlite::SqlitePoolOptions};

use super::stage::{
    Memory, SOON, assert_consistent, builder, count, eventually, make_effects, millis, secs, settled,
};

/// The pool of a database in memory; the options decide who shares it.
async fn pool(url: &str, most: u32) -> SqlitePool {
    tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init().ok();
    let pool = SqlitePoolOptions::new().max_connections(most).min_connections(1).connect(url).await.unwrap();
    make_effects(&pool).await;
    pool
}

async fn everything_works(pool: SqlitePool) {
    let (leased, each, whole) = (Memory::new(), Memory::new(), Memory::new());
    let handle = builder(&pool)
        .queue("leased", Partitions::of(2))
        .leased(leased.clone())
        .queue("each", Partitions::of(2))
        .transactional(each.clone())
        .queue("whole", Partitions::of(1))
        .batch_transactional(whole.clone())
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    for round in 1..=10_u32 {
        for queue in ["leased", "each", "whole"] {
            outbox.enqueue(&pool, queue, EnqueueMessage::new("pool")).await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            outbox.enqueue(&mut tx, queue, EnqueueMessage::new("plain")).await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = pool.begin().await.unwrap();
            outbox.enqueue(&mut tx, queue, EnqueueMessage::new("phantom")).await.unwrap();
            tx.rollback().await.unwrap();
            outbox
                .transaction(async |tx| {
                    let many = vec![
                        EnqueueMessage::new("many")
                            .partition(round % 2 * u32::from(queue != "whole"));
                        8
                    ];
                    outbox.enqueue_batch(&mut *tx, queue, &many).await
                })
                .await
                .unwrap();
        }
    }
    for memory in [&leased, &each, &whole] {
        memory.has(100).await;
        assert!(memory.all().iter().all(|message| message.payload != b"phantom"));
    }
    eventually("all is settled", async || settled(&pool).await == 300).await;
    for memory in [&leased, &each, &whole] {
        assert_eq!(memory.all().len(), 100);
        for partition in 0..2 {
            let seqs: Vec<_> =
                memory.all().iter().filter(|m| m.partition == partition).map(|m| m.seq).collect();
            assert!(seqs.iter().zip(1..).all(|(seq, n)| *seq == n), "{seqs:?}");
        }
    }
    assert_eq!(count(&pool, "SELECT count(DISTINCT id) FROM effects").await, 200);
    assert_eq!(count(&pool, "SELECT count(*) FROM effects").await, 200);
    eventually("what is settled is removed", async || {
        count(&pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    assert_consistent(&pool).await;
    tokio::time::timeout(SOON, handle.stop()).await.expect("it stops");
    assert_eq!(
        count(&pool, "SELECT count(*) FROM effects").await,
        200,
        "the pool is the caller's, and lives on"
    );
    pool.close().await;
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    everything_works(pool("sqlite::memory:", 1).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_share_their_cache_wait_for_each_other() {
    everything_works(pool("sqlite::memory:", 10).await).await;
}

#[tokio::test]
async fn a_pool_of_two_is_no_trap() {
    everything_works(pool("sqlite::memory:", 2).await).await;
}

#[tokio::test]
async fn a_private_database_needs_no_shared_cache() {
    everything_works(pool("sqlite::memory:?cache=private", 1).await).await;
}

#[tokio::test]
async fn a_private_database_for_each_connection_is_refused_with_the_cure() {
    let pool =
        SqlitePoolOptions::new().max_connections(5).connect("sqlite::memory:?cache=private").await.unwrap();
    let error = builder(&pool).queue("q", Partitions::of(1)).leased(Memory::new()).start().await.unwrap_err();
    assert!(
        matches!(&error, OutboxError::Unsuitable(text) if text.contains("max_connections(1)") && text.contains("sqlite::memory:")),
        "{error}"
    );
}

/// A handler that ends its transaction, or hangs, leaves the caller's connection as it was.
#[tokio::test]
async fn what_a_handler_does_to_the_only_connection_is_repaired() {
    let pool = pool("sqlite::memory:", 1).await;
    let handler = super::traps::Trap::default();
    let handle = builder(&pool)
        .processor_tuning(super::stage::quick_retries())
        .handler_timeout(millis(800))
        .queue("q", Partitions::of(1))
        .transactional(handler)
        .max_attempts(2)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    for trap in
        ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "CREATE TEMP TABLE leftover (n INT)", "hang", "endless"]
    {
        outbox.enqueue(&pool, "q", EnqueueMessage::new(trap)).await.unwrap();
        outbox.enqueue(&pool, "q", EnqueueMessage::new("fine")).await.unwrap();
    }
    eventually("all is settled", async || settled(&pool).await == 12).await;
    assert_eq!(count(&pool, "SELECT count(*) FROM posthaste_dead_letter").await, 5);
    assert_eq!(
        count(&pool, "SELECT count(*) FROM effects WHERE seq % 2 = 0").await,
        6,
        "the others are done once"
    );
    assert_eq!(count(&pool, "SELECT count(*) FROM temp.sqlite_schema").await, 0);
    let tx =
        outbox.transaction(async |tx| outbox.enqueue(&mut *tx, "q", EnqueueMessage::new("fine")).await).await;
    tx.unwrap();
    eventually("the connection is good for more", async || settled(&pool).await == 13).await;
    handle.stop().await;
    pool.close().await;
}

/// Whoever pauses it, in the one process that there is.
#[tokio::test]
async fn a_pause_stops_a_batch_that_is_at_work() {
    let pool = pool("sqlite::memory:", 4).await;
    let slow = Memory::slow(millis(200));
    let handle = builder(&pool)
        .processor_tuning(posthaste::WorkerTuning::processor_high_throughput())
        .queue("q", Partitions::of(1))
        .leased(slow.clone())
        .start()
        .await
        .unwrap();
    let elsewhere = Outbox::connect(pool.clone()).await.unwrap();
    elsewhere.enqueue_batch(&pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap();
    slow.has(1).await;
    elsewhere.pause("q").await.unwrap();
    let mut begun = 0;
    while slow.all().len() > begun {
        begun = slow.all().len();
        tokio::time::sleep(secs(1)).await;
    }
    assert!(begun < 100, "it ends in the middle of the batch");
    elsewhere.resume("q").await.unwrap();
    slow.has(begun + 1).await;
    handle.stop().await;
}
