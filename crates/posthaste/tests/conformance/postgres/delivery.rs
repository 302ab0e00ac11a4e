//! Delivery, and what only PostgreSQL can do to it: transactions in two phases, databases with settings of their own, dumps,
//! a planner with statistics.

use std::collections::HashSet;

use posthaste::{EnqueueMessage, Partitions};

use super::{Db, count, fresh};
use crate::{
    cases::in_modes,
    modes::{InMode, Mode},
    stage::{Memory, PATIENCE, Step, assert_consistent, builder, builder_on, eventually, grows_to},
};

in_modes! {
    [leased, transactional, batch]:
        serializable_as_the_default_isolation_changes_nothing;
    [leased, transactional]:
        g2_a_prepared_transaction_is_delivered_when_it_commits_and_not_before;
}

async fn g2_a_prepared_transaction_is_delivered_when_it_commits_and_not_before(mode: Mode) {
    let db = fresh().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    let name = format!("prepared_{}_{}", mode.module(), std::process::id());
    let sql = |verb: &str| sqlx::AssertSqlSafe(format!("{verb} '{name}'"));
    let mut conn = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("BEGIN").execute(&mut *conn).await.unwrap();
    handle.outbox().enqueue(&mut conn, "q", EnqueueMessage::new("two-phase")).await.unwrap();
    sqlx::raw_sql(sql("PREPARE TRANSACTION")).execute(&mut *conn).await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("later")).await.unwrap();
    memory.has(1).await;
    assert_eq!(memory.payloads(), ["later"]);
    sqlx::raw_sql(sql("COMMIT PREPARED")).execute(&mut *conn).await.unwrap();
    memory.has(2).await;
    assert_eq!(memory.payloads(), ["later", "two-phase"]);
    handle.stop().await;
    drop(conn);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn serializable_as_the_default_isolation_changes_nothing(mode: Mode) {
    let db = fresh().await;
    let name: String =
        sqlx::query_scalar("SELECT current_database()::text").fetch_one(&db.pool).await.unwrap();
    let alter = format!(
        "ALTER DATABASE {name} SET default_transaction_isolation = 'serializable';
         ALTER DATABASE {name} SET statement_timeout = '2s'; ALTER DATABASE {name} SET synchronous_commit = off"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(alter)).execute(&db.pool).await.unwrap();
    let pool = sqlx::PgPool::connect_with((*db.pool.connect_options()).clone()).await.unwrap();
    // Of the workers' statements each may be tried again, of a producer's none.
    let patient = db.pool.connect_options().as_ref().clone().options([("statement_timeout", "0")]);
    let patient = sqlx::PgPool::connect_with(patient).await.unwrap();
    let memory = Memory::new();
    let handle = builder_on(pool.clone());
    let handle = handle.queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let producers: Vec<_> = (0..4)
        .map(|n| {
            let (outbox, pool) = (handle.outbox(), patient.clone());
            tokio::spawn(async move {
                for _ in 0..50 {
                    outbox.enqueue(&pool, "q", EnqueueMessage::new("x").partition(n)).await.unwrap();
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    memory.has(200).await;
    handle.stop().await;
    assert_eq!(memory.ids().into_iter().collect::<HashSet<_>>().len(), 200);
    pool.close().await;
    patient.close().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

#[tokio::test]
async fn a_dump_restored_elsewhere_delivers_what_was_pending() {
    let (db, elsewhere) = (fresh().await, Db::empty().await);
    let memory = Memory::new();
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("settled before")).await.unwrap();
    memory.has(1).await;
    let outbox = handle.outbox();
    handle.stop().await;
    for n in 0..10 {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new(format!("pending {n}"))).await.unwrap();
    }
    // Stamps that lie in the future, as they do where fewer transactions have run.
    let far =
        "UPDATE posthaste_incoming SET stamp = (stamp::text::bigint + 1000000)::text::xid8 WHERE id % 2 = 0";
    sqlx::raw_sql(far).execute(&db.pool).await.unwrap();
    copy_database(&db.pool, &elsewhere.pool).await;

    let memory = Memory::new();
    let handle =
        builder(&elsewhere).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    memory.has(10).await;
    handle.outbox().enqueue(&elsewhere.pool, "q", EnqueueMessage::new("new")).await.unwrap();
    memory.has(11).await;
    handle.stop().await;
    let expected: Vec<_> = (0..10).map(|n| format!("pending {n}")).chain(["new".to_owned()]).collect();
    assert_eq!(memory.payloads(), expected);
    assert_consistent(&elsewhere.pool).await;
    db.remove().await;
    elsewhere.remove().await;
}

/// By the tools that people use: `pg_dump` into `psql`.
async fn copy_database(from: &sqlx::PgPool, to: &sqlx::PgPool) {
    let url = |pool: &sqlx::PgPool| {
        let options = pool.connect_options();
        let name = options.get_database().unwrap_or_default().to_owned();
        format!("postgres://{}@{}:{}/{name}", options.get_username(), options.get_host(), options.get_port())
    };
    let script = "pg_dump --no-owner \"$0\" | psql --quiet --set ON_ERROR_STOP=1 \"$1\" > /dev/null";
    let mut command = tokio::process::Command::new("bash");
    command.args(["-o", "pipefail", "-c", script, &url(from), &url(to)]);
    let status = tokio::time::timeout(PATIENCE, command.status()).await.expect("in time").unwrap();
    assert!(status.success(), "{status}");
}

/// Where fewer transactions have run, and nothing was pending: nothing that is new there looks new by its stamp.
#[tokio::test]
async fn a_drained_dump_restored_where_fewer_transactions_have_run_delivers_what_is_new() {
    let (db, elsewhere) = (fresh().await, Db::empty().await);
    let memory = Memory::new();
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("settled before")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    sqlx::raw_sql("UPDATE posthaste_tick SET seen = '100000000:100000000:'").execute(&db.pool).await.unwrap();
    copy_database(&db.pool, &elsewhere.pool).await;
    let memory = Memory::new();
    let handle =
        builder(&elsewhere).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    for n in 1..=3 {
        handle.outbox().enqueue(&elsewhere.pool, "q", EnqueueMessage::new("new")).await.unwrap();
        memory.has(n).await;
    }
    handle.stop().await;
    assert_eq!(memory.payloads(), ["new", "new", "new"]);
    db.remove().await;
    elsewhere.remove().await;
}

/// The planner is told that each stamp stands for very many rows; a tick that finds nothing must not read them.
#[tokio::test]
async fn a_tick_reads_no_more_than_is_new_whatever_the_statistics_say() {
    let (db, memory) = (fresh().await, Memory::new());
    sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&db.pool).await.unwrap();
    let hang = memory.scripted(|_, _| Step::Hang);
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(hang).start().await.unwrap();
    let insert = "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
                  SELECT id, 't', '' FROM posthaste_partition, generate_series(1, 200000)";
    sqlx::raw_sql(insert).execute(&db.pool).await.unwrap();
    sqlx::raw_sql("ANALYZE").execute(&db.pool).await.unwrap();
    let sequenced = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
    grows_to(200_000, "are sequenced", async || count(&db.pool, sequenced).await).await;
    let reset = "SELECT pg_stat_statements_reset(0, (SELECT oid FROM pg_database WHERE datname = current_database()), 0)";
    sqlx::query(reset).execute(&db.pool).await.unwrap();
    for _ in 0..10 {
        let at = count(&db.pool, sequenced).await;
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        eventually("it is sequenced", async || count(&db.pool, sequenced).await > at).await;
    }
    let blocks = "SELECT (sum(shared_blks_hit + shared_blks_read) / sum(calls))::bigint FROM pg_stat_statements s
                  JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database() AND query LIKE 'WITH gate%'";
    let blocks = count(&db.pool, blocks).await;
    assert!(blocks < 200, "{blocks} blocks a tick");
    handle.stop().await;
    db.remove().await;
}
