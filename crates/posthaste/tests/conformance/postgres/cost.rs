//! What it costs, counted by the server.

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use sqlx::PgPool;

use super::{Db, count, fresh};
use crate::stage::{Memory, builder, eventually, grows_to, insert_by_hand, millis, register, secs, settled};

/// Calls of the statements on our tables since the last reset, by what they are.
pub async fn calls(pool: &PgPool, like: &str) -> i64 {
    let sql = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query LIKE $1 AND query NOT LIKE '%pg_stat_statements%'";
    sqlx::query_scalar(sql).bind(like).fetch_one(pool).await.unwrap()
}

pub async fn reset(pool: &PgPool) {
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
    // A read that comes across rows which were deleted tidies their page up, and that is logged.
    let tidy = "VACUUM posthaste_incoming, posthaste_tick, posthaste_outgoing, posthaste_cursor";
    sqlx::raw_sql(tidy).execute(&db.pool).await.unwrap();
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

/// So many messages in each partition with their order, and as many without.
async fn gather(db: &Db, partitions: Partitions, each: u32) {
    register(db, partitions).await;
    let sequencer = builder(db).start().await.unwrap();
    insert_by_hand(&db.pool, each, "x").await;
    let head = "SELECT coalesce(sum(last_seq), 0)::bigint FROM (SELECT max(last_seq) AS last_seq FROM posthaste_outgoing GROUP BY partition_id) h";
    let goal = i64::from(each) * i64::from(partitions.count());
    grows_to(goal, "messages have their order", async || count(&db.pool, head).await).await;
    sequencer.stop().await;
    insert_by_hand(&db.pool, each, "x").await;
}

/// What a look at the lag costs: its statements, and the pages that it reads.
async fn cost_of_lag(db: &Db) -> (i64, i64) {
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    // The first one reads the catalogue too.
    outbox.lag().await.unwrap();
    reset(&db.pool).await;
    outbox.lag().await.unwrap();
    let pages = "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0)::bigint FROM pg_stat_statements s
                 JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() AND query LIKE 'WITH newest%'";
    (calls(&db.pool, "%posthaste\\_%").await, count(&db.pool, pages).await)
}

#[tokio::test]
async fn lag_is_one_statement_that_a_hundred_thousand_waiting_messages_do_not_slow() {
    let (few, many, wide) = (fresh().await, fresh().await, fresh().await);
    for db in [&few, &many, &wide] {
        sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    }
    gather(&few, Partitions::of(1), 1000).await;
    gather(&many, Partitions::of(1), 100_000).await;
    gather(&wide, Partitions::of(64), 16).await;
    let (of_few, of_many, of_wide) =
        (cost_of_lag(&few).await, cost_of_lag(&many).await, cost_of_lag(&wide).await);
    println!("(statements, pages): {of_few:?}, {of_many:?}, {of_wide:?}");
    assert_eq!((of_few.0, of_many.0, of_wide.0), (1, 1, 1), "statements");
    assert!(of_many.1 <= of_few.1 + 30, "{} pages of few messages, {} of many", of_few.1, of_many.1);
    assert!(of_wide.1 <= of_few.1 + 64 * 20, "{} pages of one partition, {} of 64", of_few.1, of_wide.1);
    for db in [few, many, wide] {
        db.remove().await;
    }
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
