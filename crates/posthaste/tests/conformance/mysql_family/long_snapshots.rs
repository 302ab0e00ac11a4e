//! A session that keeps an old snapshot: nothing that is removed is purged, and whoever looks at the old end of a table walks
//! over it.

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use sqlx::{Connection, MySql, MySqlConnection};
use tokio::time::Instant;

use super::{Family, on_both};
use crate::{
    dialect::Dialect,
    stage::{Memory, assert_consistent, eventually, fresh, settled},
};

on_both! {
    []: delivery_goes_on_while_a_long_snapshot_keeps_what_was_removed (flavor = "multi_thread");
}

/// How many messages flow.
const MESSAGES: &str = "POSTHASTE_TEST_SNAPSHOT_MESSAGES";
const ROUNDS: usize = 10;

async fn delivery_goes_on_while_a_long_snapshot_keeps_what_was_removed<S: Family>() {
    let total: usize =
        std::env::var(MESSAGES).ok().map_or(20_000, |number| number.parse().expect("a number"));
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(4))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    let mut old = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    let snapshot =
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT";
    MySql::run(&mut old, snapshot).await.unwrap();
    let mut looker = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    for round in 1..=ROUNDS {
        let began = Instant::now();
        let batch: Vec<_> = (0..200).map(|n| EnqueueMessage::new("x").partition(n % 4)).collect();
        for _ in 0..total / ROUNDS / 200 {
            handle.outbox().enqueue_batch(&db.pool, "q", &batch).await.unwrap();
        }
        let sent = i64::try_from(round * total / ROUNDS).unwrap();
        eventually("all is settled", async || settled(&db.pool).await == sent).await;
        let flow = began.elapsed();
        let began = Instant::now();
        MySql::number(&mut looker, "SELECT EXISTS (SELECT 1 FROM posthaste_pending)").await.unwrap();
        println!(
            "after {sent}: {flow:?} for the round, {:?} for a look whether anything is pending",
            began.elapsed()
        );
    }
    MySql::run(&mut old, "ROLLBACK").await.unwrap();
    old.close().await.unwrap();
    looker.close().await.unwrap();
    handle.stop().await;
    assert_eq!(memory.all().len(), total);
    assert_consistent(&db.pool).await;
    db.remove().await;
}
