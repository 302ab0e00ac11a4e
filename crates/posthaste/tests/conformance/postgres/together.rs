//! Partitions whose work comes at the same moment: what is asked for them in one statement.

use posthaste::{EnqueueMessage, OutboxHandle, OutboxMessage, Partitions};
use sqlx::Postgres;

use super::{
    Db,
    cost::{calls, reset},
    fresh,
};
use crate::stage::{Memory, Step, assert_consistent, builder, eventually, quick_retries, settled};

const PARTITIONS: u32 = 16;

/// They reject what is bad.
async fn workers(db: &Db, memory: &Memory) -> OutboxHandle<Postgres> {
    let script = |_, message: &OutboxMessage| match &*message.payload {
        b"bad" => Step::Reject("bad".to_owned()),
        _ => Step::Ack,
    };
    builder(db)
        .processors(PARTITIONS as usize)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(PARTITIONS))
        .leased(memory.scripted(script))
        .start()
        .await
        .unwrap()
}

/// One message for each partition, the first of which is bad if so.
fn one_each(is_first_bad: bool) -> Vec<EnqueueMessage<'static>> {
    let payload = |n| if n == 0 && is_first_bad { "bad" } else { "good" };
    (0..PARTITIONS).map(|n| EnqueueMessage::new(payload(n)).partition(n)).collect()
}

#[tokio::test]
async fn partitions_that_a_tick_wakes_are_asked_for_together() {
    const ROUNDS: i64 = 20;
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let handle = workers(&db, &memory).await;
    reset(&db.pool).await;
    for round in 1..=ROUNDS {
        handle.outbox().enqueue_batch(&db.pool, "q", &one_each(false)).await.unwrap();
        let goal = round * i64::from(PARTITIONS);
        eventually("the round is settled", async || settled(&db.pool).await == goal).await;
    }
    let (acquires, settles) =
        (calls(&db.pool, "WITH tip%is_free%seconds_left%").await, calls(&db.pool, "WITH tip%buried%").await);
    let one_by_one = ROUNDS * i64::from(PARTITIONS);
    println!("{acquires} acquires and {settles} settlements; one by one, {one_by_one} of each");
    assert!(acquires <= one_by_one / 2 && settles <= one_by_one / 2, "{acquires} and {settles}");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

#[tokio::test]
async fn what_the_database_refuses_for_one_partition_it_does_not_refuse_for_those_asked_for_with_it() {
    let (db, memory) = (fresh().await, Memory::new());
    let handle = workers(&db, &memory).await;
    let mut tx = db.pool.begin().await.unwrap();
    handle.outbox().enqueue_batch(&mut tx, "q", &one_each(true)).await.unwrap();
    // A dead letter of the same id: the bad message cannot be buried.
    let obstacle = "INSERT INTO posthaste_dead_letter
                        (id, partition_id, seq, queue, partition, payload_type, payload, created_at, attempts, reason)
                    SELECT id, partition_id, 1, 'q', 0, payload_type, payload, created_at, 1, 'an obstacle'
                    FROM posthaste_incoming WHERE payload = 'bad'";
    sqlx::query(obstacle).execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    let all = i64::from(PARTITIONS);
    eventually("the others are settled", async || settled(&db.pool).await == all - 1).await;
    // They go on, too, while that one is tried again.
    let good: Vec<_> = one_each(false).split_off(1);
    handle.outbox().enqueue_batch(&db.pool, "q", &good).await.unwrap();
    eventually("the others go on", async || settled(&db.pool).await == 2 * (all - 1)).await;
    sqlx::query("DELETE FROM posthaste_dead_letter").execute(&db.pool).await.unwrap();
    eventually("it can be buried", async || settled(&db.pool).await == 2 * (all - 1) + 1).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}
