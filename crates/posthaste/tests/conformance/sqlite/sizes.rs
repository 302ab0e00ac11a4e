//! The smallest and the largest.

use posthaste::{EnqueueMessage, Partitions};

use super::stage::{Memory, assert_consistent, builder, count, eventually, fresh, settled};

#[tokio::test]
async fn g9_payloads_of_every_size_arrive_as_they_are() {
    let (db, memory) = (fresh().await, Memory::new());
    let queue = builder(&db.pool).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    let sizes = [0, 1, 255, 4096, 65_536, 1 << 20];
    let payload = |size: usize| (0..size).map(|n| u8::try_from(n % 251).unwrap()).collect::<Vec<_>>();
    for size in sizes {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new(payload(size))).await.unwrap();
    }
    let together: Vec<_> = sizes.iter().rev().map(|size| EnqueueMessage::new(payload(*size))).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &together).await.unwrap();
    memory.has(12).await;
    let found: Vec<_> = memory.all().into_iter().map(|message| message.payload).collect();
    let expected: Vec<_> = sizes.iter().chain(sizes.iter().rev()).map(|size| payload(*size)).collect();
    assert!(found == expected);
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn a_hundred_thousand_messages_go_in_with_one_call() {
    const MESSAGES: usize = 100_000;
    let (db, memory) = (fresh().await, Memory::new());
    let queue =
        builder(&db.pool).profile(posthaste::OutboxProfile::high_throughput()).queue("q", Partitions::of(4));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    let messages: Vec<_> = (0..MESSAGES)
        .map(|n| EnqueueMessage::new(n.to_string()).partition(u32::try_from(n % 4).unwrap()))
        .collect();
    let ids = handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    assert_eq!(ids.len(), MESSAGES);
    assert!(ids.is_sorted());
    memory.has(MESSAGES).await;
    eventually("all is settled", async || settled(&db.pool).await == 100_000).await;
    let mut last = [0_i64; 4];
    let place: std::collections::HashMap<_, _> =
        ids.iter().enumerate().map(|(place, id)| (*id, place)).collect();
    for message in memory.all() {
        let place = place[&message.id];
        assert_eq!(message.payload, place.to_string().into_bytes());
        let last = &mut last[place % 4];
        assert_eq!(message.seq, *last + 1);
        *last += 1;
    }
    eventually("all is removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    assert_consistent(&db.pool).await;
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn a_call_too_large_for_one_statement_is_still_all_or_none() {
    let (db, memory) = (fresh().await, Memory::new());
    let queue = builder(&db.pool).max_payload(100 << 20).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    let outbox = handle.outbox();
    let large = || [7, 9].map(|byte| EnqueueMessage::new(vec![byte; 65 << 20]));
    // A transaction that was begun by hand, of which sqlx does not know.
    let mut conn = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    outbox.enqueue_batch(&mut *conn, "q", &large()).await.unwrap();
    sqlx::raw_sql("ROLLBACK").execute(&mut *conn).await.unwrap();
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await, 0);
    // Half of it is refused.
    sqlx::raw_sql(
        "CREATE TRIGGER refuse BEFORE INSERT ON posthaste_incoming WHEN substr(NEW.payload, 1, 1) = x'09'
         BEGIN SELECT raise(ABORT, 'no'); END",
    )
    .execute(&db.pool)
    .await
    .unwrap();
    outbox.enqueue_batch(&mut *conn, "q", &large()).await.unwrap_err();
    let mut tx = db.pool.begin().await.unwrap();
    outbox.enqueue_batch(&mut tx, "q", &large()).await.unwrap_err();
    tx.commit().await.unwrap();
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await, 0);
    sqlx::raw_sql("DROP TRIGGER refuse").execute(&db.pool).await.unwrap();
    outbox.enqueue_batch(&db.pool, "q", &large()).await.unwrap();
    memory.has(2).await;
    let firsts: Vec<_> = memory.all().iter().map(|message| message.payload[0]).collect();
    assert_eq!(firsts, [7, 9]);
    drop(conn);
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn g9_names_that_differ_only_in_case_are_different_queues() {
    let (db, lower, upper) = (fresh().await, Memory::new(), Memory::new());
    let handle = builder(&db.pool)
        .queue("orders", Partitions::of(1))
        .leased(lower.clone())
        .queue("Orders", Partitions::of(2))
        .transactional(upper.clone())
        .start()
        .await
        .unwrap();
    for queue in ["orders", "Orders"] {
        handle.outbox().enqueue(&db.pool, queue, EnqueueMessage::new(queue)).await.unwrap();
    }
    lower.has(1).await;
    upper.has(1).await;
    assert_eq!((&lower.all()[0].payload[..], &upper.all()[0].payload[..]), (&b"orders"[..], &b"Orders"[..]));
    assert_eq!((lower.all().len(), upper.all().len()), (1, 1));
    handle.stop().await;
    db.remove().await;
}
