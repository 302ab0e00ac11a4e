//! Vacuum on PostgreSQL: killed in the middle of its statement, beside locks, and what it costs.

use posthaste::{EnqueueMessage, Partitions, WorkerTuning, testing::Timings};

use super::{count, fresh};
use crate::stage::{
    Memory, assert_consistent, builder, eventually, grows_to, millis, register, secs, settled,
};

const MESSAGES: &str = "SELECT count(*) FROM posthaste_incoming";
/// The links, segments and ticks beyond the newest of each chain.
const OLD_ROWS: &str = "SELECT (SELECT count(*) FROM posthaste_tick WHERE id < (SELECT max(id) FROM posthaste_tick))
    + (SELECT count(*) FROM posthaste_cursor c WHERE epoch < (SELECT max(epoch) FROM posthaste_cursor n
       WHERE n.partition_id = c.partition_id))
    + (SELECT count(*) FROM posthaste_outgoing o WHERE last_seq < (SELECT max(last_seq) FROM posthaste_outgoing n
       WHERE n.partition_id = o.partition_id))";

/// Each session that vacuums is killed as soon as it is seen doing so, in the middle of removing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn g16_vacuum_in_four_processes_killed_at_any_point_removes_what_is_settled_and_nothing_else() {
    const ROUNDS: i64 = 40;
    let (db, memory) = (fresh().await, Memory::new());
    let often = WorkerTuning::vacuum().batch_size(50).min_interval(millis(5)).active_interval(millis(5));
    let mut handles = Vec::new();
    for _ in 0..4 {
        let outbox = builder(&db).vacuum_tuning(often).queue("q", Partitions::of(2)).leased(memory.handler());
        handles.push(outbox.start().await.unwrap());
    }
    // So that a kill finds it in the middle: between the rows of a table, and between the tables.
    for table in ["incoming", "outgoing", "cursor", "tick"] {
        let slow = format!(
            "CREATE FUNCTION slow_{table}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_sleep(0.001); RETURN OLD; END $$;
             CREATE TRIGGER slow BEFORE DELETE ON posthaste_{table} FOR EACH ROW EXECUTE FUNCTION slow_{table}()"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(slow)).execute(&db.pool).await.unwrap();
    }
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND state = 'active' AND query LIKE '%p.end_epoch%'
                  AND application_name LIKE '%posthaste'";
    let mut kills = 0;
    for round in 1..=ROUNDS {
        let messages: Vec<_> = (0..100).map(|n| EnqueueMessage::new("x").partition(n % 2)).collect();
        let handle = &handles[usize::try_from(round % 4).unwrap()];
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        eventually("the round is settled", async || {
            kills += count(&db.pool, kill).await;
            settled(&db.pool).await == round * 100
        })
        .await;
    }
    assert!(kills > 10, "vacuum was met {kills} times");
    let mut seqs: Vec<_> =
        memory.all().iter().map(|seen| (seen.message.partition, seen.message.seq, seen.message.id)).collect();
    seqs.sort_unstable();
    let expected: Vec<_> =
        (0..2).flat_map(|partition| (1..=ROUNDS * 50).map(move |seq| (partition, seq))).collect();
    let mut distinct: Vec<_> = seqs.iter().map(|(partition, seq, _)| (*partition, *seq)).collect();
    distinct.dedup();
    assert_eq!(distinct, expected, "nothing was removed before it was delivered");
    eventually("all is removed", async || {
        count(&db.pool, MESSAGES).await + count(&db.pool, OLD_ROWS).await == 0
    })
    .await;
    for handle in handles {
        handle.stop().await;
    }
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Old links that somebody builds on, and what lies behind them, stay until it is done.
#[tokio::test]
async fn vacuum_gives_up_for_now_where_somebody_builds_on_an_old_link() {
    let (db, memory) = (fresh().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let mut builds = db.pool.begin().await.unwrap();
    let lock = "SELECT epoch FROM posthaste_cursor ORDER BY epoch LIMIT 1 FOR KEY SHARE";
    let held: i64 = sqlx::query_scalar(lock).fetch_one(&mut *builds).await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(2).await;
    eventually("it is settled", async || settled(&db.pool).await == 2).await;
    sqlx::raw_sql("CREATE TABLE settled_at AS SELECT clock_timestamp() AS settled_at")
        .execute(&db.pool)
        .await
        .unwrap();
    let tried = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%p.end_epoch%'
                 AND application_name LIKE '%posthaste' AND query_start > (SELECT max(settled_at) FROM settled_at)";
    eventually("vacuum has tried", async || count(&db.pool, tried).await > 0).await;
    let first: i64 =
        sqlx::query_scalar("SELECT min(epoch) FROM posthaste_cursor").fetch_one(&db.pool).await.unwrap();
    assert_eq!(first, held, "it is still there, and so is all that follows it");
    assert_eq!(handle.stats().vacuum.failures, 0, "which is no failure");
    assert_consistent(&db.pool).await;
    builds.commit().await.unwrap();
    eventually("all is removed", async || {
        count(&db.pool, MESSAGES).await + count(&db.pool, OLD_ROWS).await == 0
    })
    .await;
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn vacuum_costs_few_statements_a_message_and_none_that_write_when_there_is_nothing() {
    const MESSAGES: i64 = 20_000;
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let handle = builder(&db)
        .timings(Timings::default())
        .vacuum_tuning(WorkerTuning::vacuum().idle_interval(secs(1)))
        .queue("q", Partitions::of(4))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    for round in 0..200_u32 {
        let messages = vec![EnqueueMessage::new("x").partition(round % 4); 100];
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    grows_to(MESSAGES, "are settled", async || settled(&db.pool).await).await;
    eventually("all is removed", async || handle.stats().vacuum.messages == u64::try_from(MESSAGES).unwrap())
        .await;
    let calls = "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
                 WHERE d.datname = current_database() AND (query LIKE '%gone_messages%' OR query LIKE '%seen_epoch%')
                   AND query NOT LIKE '%pg_stat_statements%'";
    let used = count(&db.pool, calls).await;
    assert!(used * 20 <= MESSAGES, "{used} statements for {MESSAGES} messages");
    // Until the last look of all has come to the same end.
    eventually("nothing is left", async || count(&db.pool, OLD_ROWS).await == 0).await;
    let wal = "SELECT coalesce(sum(wal_records), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
               WHERE d.datname = current_database() AND query LIKE '%gone_messages%' AND query NOT LIKE '%pg_stat_statements%'";
    let (written, used) = (count(&db.pool, wal).await, count(&db.pool, calls).await);
    eventually("it looks again", async || count(&db.pool, calls).await >= used + 4).await;
    assert_eq!(count(&db.pool, wal).await, written, "and writes nothing");
    handle.stop().await;
    db.remove().await;
}

/// The batch size bounds a chunk.
#[tokio::test]
async fn a_chunk_of_vacuum_is_bounded_by_its_batch_size() {
    let (db, memory) = (fresh().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let bounded = "CREATE TABLE chunks (removed BIGINT);
        CREATE FUNCTION note_chunk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO chunks SELECT count(*) FROM gone; RETURN NULL; END $$;
        CREATE TRIGGER note AFTER DELETE ON posthaste_incoming REFERENCING OLD TABLE AS gone
            FOR EACH STATEMENT EXECUTE FUNCTION note_chunk()";
    sqlx::raw_sql(bounded).execute(&db.pool).await.unwrap();
    let handle = builder(&db)
        .vacuum_tuning(WorkerTuning::vacuum().batch_size(300))
        .queue("q", Partitions::of(1))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    for _ in 0..30 {
        handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap();
    }
    eventually("all is settled", async || settled(&db.pool).await == 3000).await;
    eventually("all is removed", async || count(&db.pool, MESSAGES).await == 0).await;
    handle.stop().await;
    assert!(count(&db.pool, "SELECT max(removed) FROM chunks").await <= 300 + 256);
    assert_eq!(count(&db.pool, "SELECT sum(removed)::bigint FROM chunks").await, 3000);
    db.remove().await;
}
