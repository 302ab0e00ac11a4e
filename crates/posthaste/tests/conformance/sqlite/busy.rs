//! One writer at a time: who waits, and who does not.

use std::time::Instant;

use posthaste::{EnqueueMessage, Outbox, Partitions, testing::Timings};
use sqlx::{SqlitePool, sqlite::SqliteConnectOptions};

use super::stage::{
    Memory, assert_consistent, builder, count, eventually, fresh, millis, quick_retries, secs, settled,
};
use crate::stage::{idle_for_ever, timings};

/// A pool whose connections wait for no lock at all.
async fn impatient(pool: &SqlitePool) -> SqlitePool {
    let options: SqliteConnectOptions = (*pool.connect_options()).clone();
    SqlitePool::connect_with(options.busy_timeout(millis(0))).await.unwrap()
}

#[tokio::test]
async fn a_slow_transactional_handler_makes_enqueue_and_transactions_wait_not_fail() {
    let (db, memory) = (fresh().await, Memory::slow(secs(3)));
    let pool = impatient(&db.pool).await;
    let queue = builder(&pool).queue("slow", Partitions::of(1)).transactional(memory.clone());
    let handle = queue.queue("other", Partitions::of(1)).leased(Memory::new()).start().await.unwrap();
    let outbox = handle.outbox();
    // A process that only enqueues has the same patience.
    let producer = Outbox::connect(pool.clone()).await.unwrap();
    let began = Instant::now();
    outbox.enqueue(&pool, "slow", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let error = sqlx::query("INSERT INTO effects VALUES (0, 0, 0)").execute(&pool).await.unwrap_err();
    assert!(error.to_string().contains("locked"), "{error}");
    let enqueues = (0..4).map(|n| {
        let (pool, outbox) = (pool.clone(), if n < 2 { outbox.clone() } else { producer.clone() });
        tokio::spawn(async move {
            if n % 2 == 0 {
                return outbox.enqueue(&pool, "other", EnqueueMessage::new("x")).await;
            }
            outbox
                .transaction(async |tx| outbox.enqueue(&mut *tx, "other", EnqueueMessage::new("x")).await)
                .await
        })
    });
    for enqueue in enqueues.collect::<Vec<_>>() {
        enqueue.await.unwrap().unwrap();
    }
    // As long as the handler took, which began later than that.
    assert!(began.elapsed() >= secs(3), "{:?}", began.elapsed());
    eventually("all is settled", async || settled(&pool).await == 5).await;
    handle.stop().await;
    pool.close().await;
    db.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g11_producers_and_workers_share_the_database_without_an_error() {
    let (db, leased, transactional) = (fresh().await, Memory::new(), Memory::new());
    let pool = impatient(&db.pool).await;
    let handle = builder(&pool)
        .processor_tuning(quick_retries())
        .queue("leased", Partitions::of(4))
        .leased(leased.clone())
        .queue("transactional", Partitions::of(4))
        .transactional(transactional.clone())
        .start()
        .await
        .unwrap();
    let producers = (0..8).map(|producer: u32| {
        let (pool, outbox) = (pool.clone(), handle.outbox().clone());
        tokio::spawn(async move {
            for n in 0..50 {
                let message = EnqueueMessage::new(format!("{producer} {n}")).partition(producer % 4);
                let queue = if producer < 4 { "leased" } else { "transactional" };
                if n % 2 == 0 {
                    outbox.enqueue(&pool, queue, message).await.unwrap();
                } else {
                    outbox
                        .transaction(async |tx| outbox.enqueue(&mut *tx, queue, message).await)
                        .await
                        .unwrap();
                }
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await.unwrap();
    }
    eventually("all is settled", async || settled(&pool).await == 400).await;
    for memory in [leased, transactional] {
        assert_eq!(memory.all().len(), 200, "no duplicate");
        for producer in 0..8 {
            let begin = format!("{producer} ");
            let payloads =
                memory.all().into_iter().map(|message| String::from_utf8(message.payload).unwrap());
            let seen: Vec<u32> =
                payloads.filter_map(|text| text.strip_prefix(&begin).map(|n| n.parse().unwrap())).collect();
            assert!(seen.is_sorted(), "{producer}: {seen:?}");
        }
    }
    assert_eq!(count(&pool, "SELECT count(*) FROM effects").await, 200);
    assert_consistent(&pool).await;
    handle.stop().await;
    pool.close().await;
    db.remove().await;
}

/// However long it was open, its end triggers the delivery: no timer is left that could.
#[tokio::test]
async fn g13_the_end_of_a_transaction_that_stays_open_triggers_its_delivery() {
    let (db, memory) = (fresh().await, Memory::new());
    let timings = Timings { open_for_long: timings().open_for_long, ..Timings::without_timers() };
    let queue = idle_for_ever(builder(&db.pool)).timings(timings).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    for n in 0..16_usize {
        let open_for = [millis(0), millis(5), timings.open_for_long / 2, timings.open_for_long * 2][n % 4];
        let mut tx = db.pool.begin().await.unwrap();
        handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
        tokio::time::sleep(open_for).await;
        tx.commit().await.unwrap();
        memory.has(n + 1).await;
        eventually("it is settled", async || settled(&db.pool).await == i64::try_from(n + 1).unwrap()).await;
    }
    handle.stop().await;
    db.remove().await;
}

/// A transaction that is rolled back leaves nothing to wait for: its id is given out again, to a message that counts.
#[tokio::test]
async fn g2_a_message_that_is_rolled_back_is_no_message_and_its_id_is_free() {
    let (db, memory) = (fresh().await, Memory::new());
    let queue = builder(&db.pool).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    for n in 0..20_usize {
        let mut tx = db.pool.begin().await.unwrap();
        let phantom = handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("phantom")).await.unwrap();
        tokio::time::sleep(millis(u64::try_from(n % 5).unwrap() * 4)).await;
        tx.rollback().await.unwrap();
        let id = handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        assert_eq!(id, phantom);
        memory.has(n + 1).await;
    }
    assert!(memory.all().iter().all(|message| message.payload == b"x"));
    handle.stop().await;
    db.remove().await;
}
