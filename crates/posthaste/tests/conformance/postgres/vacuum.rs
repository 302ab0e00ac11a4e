//! G15 and G16: what is settled goes, soon, and nothing else does.

use posthaste::{EnqueueMessage, HandlerResult, Outbox, Partitions, WorkerTuning};
use sqlx::{Connection, PgPool};

use super::stage::{
    Memory, Step, assert_consistent, builder, count, eventually, fresh, millis, quick_retries, secs, settled,
    within,
};

/// The rows of all messages, the links, segments and ticks beyond the newest of each chain.
const MESSAGES: &str = "SELECT count(*) FROM posthaste_incoming";
const OLD_ROWS: &str = "SELECT (SELECT count(*) FROM posthaste_tick WHERE id < (SELECT max(id) FROM posthaste_tick))
    + (SELECT count(*) FROM posthaste_cursor c WHERE epoch < (SELECT max(epoch) FROM posthaste_cursor n
       WHERE n.partition_id = c.partition_id))
    + (SELECT count(*) FROM posthaste_outgoing o WHERE last_seq < (SELECT max(last_seq) FROM posthaste_outgoing n
       WHERE n.partition_id = o.partition_id))";

#[tokio::test]
async fn g15_ten_seconds_after_the_last_message_is_settled_no_message_rows_are_left() {
    let (db, memory) = (fresh().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    // Many segments in one partition, few in another, a single message in a third, none in the last.
    for round in 0..30 {
        let messages: Vec<_> = (0..100)
            .map(|n| EnqueueMessage::new("x").partition(u32::from(n == 0 && round % 7 == 0)))
            .collect();
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(2)).await.unwrap();
    eventually("all is settled", async || settled(&db.pool).await == 3001).await;
    within(secs(10), "no message is left", async || count(&db.pool, MESSAGES).await == 0).await;
    within(secs(10), "nor anything else", async || count(&db.pool, OLD_ROWS).await == 0).await;
    assert_eq!(handle.stats().vacuum.messages, 3001);
    // Seqs go on where they were.
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("last").partition(2)).await.unwrap();
    memory.has(3002).await;
    assert_eq!(memory.all()[3001].message.seq, 2);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A handler that never gets past one message: what is before it goes, it and everything behind it stays.
#[tokio::test]
async fn g16_nothing_unsettled_is_removed() {
    let (db, memory) = (fresh().await, Memory::new());
    let script = |_: usize, message: &posthaste::OutboxMessage| match message.seq {
        700 => Step::Return(HandlerResult::Retry { reason: "not yet".to_owned() }),
        _ => Step::Ack,
    };
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .vacuum_tuning(
            WorkerTuning::vacuum().batch_size(100).min_interval(millis(50)).active_interval(millis(50)),
        )
        .queue("q", Partitions::of(1))
        .leased(memory.scripted(script))
        .start()
        .await
        .unwrap();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(
            handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap(),
        );
    }
    eventually("it is stuck", async || settled(&db.pool).await == 699).await;
    let unsettled =
        "SELECT count(*) FROM posthaste_incoming WHERE id >= (SELECT ids[1] FROM posthaste_outgoing
                     WHERE last_seq >= 700 ORDER BY last_seq LIMIT 1)";
    // Whole segments go; the one that message 700 is in stays with all its messages.
    within(secs(10), "the settled segments are removed", async || count(&db.pool, MESSAGES).await < 600)
        .await;
    assert!(count(&db.pool, unsettled).await >= 301);
    let left: Vec<i64> = sqlx::query_scalar("SELECT id FROM posthaste_incoming ORDER BY id")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    let expected: Vec<i64> = ids[699..].iter().map(|id| id.0).collect();
    assert!(left.ends_with(&expected), "nothing at or behind the cursor is gone");
    assert_eq!(settled(&db.pool).await, 699);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}
