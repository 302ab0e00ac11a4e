//! The log that is written ahead: it grows while somebody reads an old state of the database, and shrinks afterwards.

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};

use super::stage::{Memory, assert_consistent, count, eventually, fresh, settled};

/// What it may have when nobody reads from it any more; larger than the 16 MiB from which on it is made to shrink by what may
/// be written before anybody looks.
const BOUND: u64 = 20 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g15_a_reader_that_holds_a_snapshot_delays_nothing_and_the_log_shrinks_when_it_is_gone() {
    let (db, memory) = (fresh().await, Memory::new());
    let mut log = db.pool.connect_options().get_filename().as_os_str().to_owned();
    log.push("-wal");
    let log_size = || std::fs::metadata(&log).map_or(0, |log| log.len());
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::low_latency())
        .queue("q", Partitions::of(4))
        .leased(memory.clone())
        .start()
        .await
        .unwrap();
    let mut reader = db.pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM effects").fetch_one(&mut *reader).await.unwrap();
    let mut sent = 0;
    while log_size() <= 2 * BOUND {
        let messages: Vec<_> =
            (0..10).map(|n| EnqueueMessage::new(vec![7; 10_000]).partition(n % 4)).collect();
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        sent += 10;
        memory.has(sent).await;
    }
    let all = i64::try_from(sent).unwrap();
    eventually("all is settled", async || settled(&db.pool).await == all).await;
    assert_eq!(memory.all().len(), sent, "no duplicate");
    reader.rollback().await.unwrap();
    eventually("the log shrinks", async || log_size() <= BOUND).await;
    eventually("all is removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;

    // And under load without such a reader it stays small.
    let mut largest = 0;
    for _ in 0..500 {
        let messages = vec![EnqueueMessage::new(vec![7; 10_000]); 20];
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        sent += 20;
        memory.has(sent).await;
        largest = largest.max(log_size());
    }
    assert!(largest <= BOUND, "{largest} bytes");
    assert_consistent(&db.pool).await;
    handle.stop().await;
    db.remove().await;
}
