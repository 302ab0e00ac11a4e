//! G15: what it costs does not grow with dead versions that an old snapshot keeps.

use posthaste::{
    EnqueueMessage, Outbox, OutboxHandle, OutboxProfile, Partitions, WorkerTuning, testing::Timings,
};
use sqlx::{Connection, PgConnection, PgPool, Postgres};

use super::fresh;
use crate::{
    bounds::Count,
    stage::{eventually, millis, without_clocks},
};

/// Statements of the workers and blocks that they touched, since the last reset.
async fn cost(pool: &PgPool) -> (f64, f64) {
    let sql = "SELECT coalesce(sum(calls), 0)::float8, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::float8
               FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query LIKE '%posthaste\\_%' AND query NOT LIKE 'INSERT%'
                 AND query NOT LIKE 'SELECT count%'";
    sqlx::query_as(sql).fetch_one(pool).await.unwrap()
}

async fn reset(pool: &PgPool) {
    let sql = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    sqlx::query(sql).execute(pool).await.unwrap();
}

/// Lets messages flow, in rounds that are delivered before the next begins, until they are removed; returns the cost of a
/// message in statements and blocks.
async fn flow(pool: &PgPool, handle: &OutboxHandle<Postgres>, seen: &Count, rounds: usize) -> (f64, f64) {
    const ROUND: usize = 2000;
    reset(pool).await;
    let before = *seen.seen.borrow();
    for round in 1..=rounds {
        let messages: Vec<_> =
            (0..ROUND).map(|n| EnqueueMessage::new("x").partition(u32::try_from(n % 4).unwrap())).collect();
        handle.outbox().enqueue_batch(pool, "q", &messages).await.unwrap();
        seen.has(before + round * ROUND).await;
    }
    let removed = u64::try_from(before + rounds * ROUND).unwrap();
    eventually("all are removed", async || handle.stats().vacuum.messages == removed).await;
    let (statements, blocks) = cost(pool).await;
    let messages = f64::from(u32::try_from(rounds * ROUND).unwrap());
    (statements / messages, blocks / messages)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g15_a_session_that_pins_the_snapshot_horizon_makes_no_message_dearer() {
    let (db, seen) = (fresh().await, Count::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(4))
        .leased(seen.clone())
        .start()
        .await
        .unwrap();
    // What autovacuum does, and when, is not what is looked at.
    for table in ["incoming", "outgoing", "cursor", "tick"] {
        let sql = format!("ALTER TABLE posthaste_{table} SET (autovacuum_enabled = off)");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&db.pool).await.unwrap();
    }
    // Until the indexes are as high as they will be: the next level is far.
    flow(&db.pool, &handle, &seen, 120).await;
    let free = flow(&db.pool, &handle, &seen, 50).await;
    let mut pin = PgConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM posthaste_incoming")
        .execute(&mut pin)
        .await
        .unwrap();
    let pinned = flow(&db.pool, &handle, &seen, 100).await;
    sqlx::raw_sql("COMMIT").execute(&mut pin).await.unwrap();
    println!("statements and blocks a message: free {free:?}, pinned {pinned:?}");
    assert!(pinned.0 <= free.0 * 1.1 + 0.001, "statements a message: {} against {}", pinned.0, free.0);
    assert!(pinned.1 <= free.1 * 1.1, "blocks a message: {} against {}", pinned.1, free.1);
    handle.stop().await;
    pin.close().await.unwrap();
    db.remove().await;
}

/// Many small segments, many passes of vacuum: what is gone is not read again by any statement, although its versions cannot
/// go.
#[tokio::test]
async fn g15_no_statement_reads_what_is_gone_while_a_session_pins_it() {
    const ROUND: usize = 150;
    let (db, seen) = (fresh().await, Count::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let often = WorkerTuning::vacuum().batch_size(50).min_interval(millis(10)).active_interval(millis(10));
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::low_latency())
        .timings(Timings { vacuum_linger: millis(300), ..without_clocks() })
        .vacuum_tuning(often)
        .queue("q", Partitions::of(1))
        .leased(seen.clone())
        .start()
        .await
        .unwrap();
    let mut pin = PgConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM posthaste_incoming")
        .execute(&mut pin)
        .await
        .unwrap();
    let mut blocks = Vec::new();
    for round in 0..8 {
        reset(&db.pool).await;
        for n in 1..=ROUND {
            handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
            seen.has(round * ROUND + n).await;
        }
        let removed = u64::try_from((round + 1) * ROUND).unwrap();
        eventually("all are removed", async || handle.stats().vacuum.messages == removed).await;
        blocks.push(cost(&db.pool).await.1);
    }
    // The first rounds are cheaper: indexes of one page, then of two levels.
    assert!(blocks[7] < blocks[3] * 1.25, "blocks a round: {blocks:?}");
    handle.stop().await;
    pin.close().await.unwrap();
    db.remove().await;
}
