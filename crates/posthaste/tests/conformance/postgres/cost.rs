//! What it costs, counted by the server.

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use sqlx::PgPool;

use super::{count, fresh};
use crate::stage::{Memory, eventually, millis, register, secs, settled};

/// Calls of the statements on our tables since the last reset, by what they are.
async fn calls(pool: &PgPool, like: &str) -> i64 {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query LIKE $1 AND query NOT LIKE '%pg_stat_statements%'";
    sqlx::query_scalar(sql).bind(like).fetch_one(pool).await.unwrap()
}

async fn reset(pool: &PgPool) {
    let sql = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    sqlx::query(sql).execute(pool).await.unwrap();
}

#[tokio::test]
async fn an_enqueue_is_one_statement_a_batch_in_steady_state_is_one_statement() {
    const MESSAGES: usize = 20_000;
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(1))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    reset(&db.pool).await;
    for _ in 0..20 {
        handle
            .outbox()
            .enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); MESSAGES / 20])
            .await
            .unwrap();
    }
    memory.has(MESSAGES).await;
    eventually("all is settled", async || settled(&db.pool).await == 20_000).await;
    assert_eq!(calls(&db.pool, "INSERT INTO %posthaste_incoming%").await, 20, "an enqueue is one statement");
    let settles = calls(&db.pool, "WITH tip%buried%").await;
    let acquires = calls(&db.pool, "WITH tip%is_free%seconds_left%").await;
    let batches = i64::try_from(memory.calls()).unwrap();
    assert_eq!(settles, batches, "a batch is settled, and the next one read, by one statement");
    assert!(acquires < batches / 4, "{acquires} acquires for {batches} batches");
    let ticks = calls(&db.pool, "WITH gate%").await;
    let links = count(&db.pool, "SELECT max(id) FROM posthaste_tick").await;
    assert!(links <= 20 && ticks < 200, "{links} ticks that found something, {ticks} in all");
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn an_idle_process_reads_little_and_writes_nothing() {
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let handle = Outbox::builder(db.pool.clone())
        .queue("a", Partitions::of(64))
        .leased(memory.handler())
        .queue("b", Partitions::of(64))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "a", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let left = "SELECT (SELECT count(*) FROM posthaste_incoming) + (SELECT count(*) - 1 FROM posthaste_tick)
                + (SELECT count(*) - 128 FROM posthaste_cursor)";
    eventually("all is removed", async || count(&db.pool, left).await == 0).await;
    tokio::time::sleep(secs(1)).await;
    reset(&db.pool).await;
    tokio::time::sleep(secs(6)).await;
    let statements = calls(&db.pool, "WITH %").await + calls(&db.pool, "SELECT p.id%").await;
    assert!(statements <= 6 * 20, "{statements} statements in 6 s");
    let rows = "SELECT coalesce(sum(wal_records), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
                WHERE d.datname = current_database() AND query LIKE 'WITH %'";
    assert_eq!(count(&db.pool, rows).await, 0, "nothing is written");
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn a_producer_announces_on_one_connection() {
    let db = fresh().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    // Who announced may be told by the name of its sessions; each has its process.
    let processes = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%posthaste'";
    let mut seen = std::collections::HashSet::new();
    for _ in 0..100 {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        seen.extend(sqlx::query_scalar::<_, i32>(processes).fetch_all(&db.pool).await.unwrap());
        tokio::time::sleep(millis(15)).await;
    }
    assert!(seen.len() <= 3, "{} sessions for 100 announcements", seen.len());
    drop(outbox);
    eventually("it is closed with the outbox", async || {
        sqlx::query_scalar::<_, i32>(processes).fetch_all(&db.pool).await.unwrap().is_empty()
    })
    .await;
    db.remove().await;
}
