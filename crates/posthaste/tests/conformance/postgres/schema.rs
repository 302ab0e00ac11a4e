//! The tables on PostgreSQL: as they are committed, in schemas, with roles.

use posthaste::{Partitions, Tables, migrate, migrate_with, migration_sql};
use sqlx::{AssertSqlSafe, Postgres};

use super::{count, unmigrated};
use crate::stage::{Memory, builder, builder_on, eventually};

#[tokio::test]
async fn the_live_schema_is_the_committed_one() {
    let db = unmigrated().await;
    migrate(&db.pool).await.unwrap();
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT format('%s.%s %s%s', table_name, column_name, data_type, CASE is_nullable WHEN 'NO' THEN ' not null' ELSE '' END)
         FROM information_schema.columns WHERE table_name LIKE 'posthaste%' ORDER BY table_name, ordinal_position",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let indexes: Vec<String> = sqlx::query_scalar(
        "SELECT replace(indexdef, 'public.', '') FROM pg_indexes WHERE tablename LIKE 'posthaste%' ORDER BY indexname",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap();
    let live = format!("{}\n\n{}\n", columns.join("\n"), indexes.join("\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/postgres/schema.snapshot");
    if std::env::var_os("POSTHASTE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &live).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(live, committed, "if this is meant, run the test with POSTHASTE_UPDATE_SNAPSHOTS=1");
    db.remove().await;
}

#[tokio::test]
async fn a_start_killed_at_any_moment_leaves_nothing_half_done() {
    let db = unmigrated().await;
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'posthaste%'";
    // Its session is killed while it waits for a lock in the middle.
    let mut blocker = db.pool.begin().await.unwrap();
    sqlx::raw_sql("CREATE TABLE posthaste_outgoing (mine INT)").execute(&mut *blocker).await.unwrap();
    let starter = tokio::spawn({
        let pool = db.pool.clone();
        async move { migrate(&pool).await }
    });
    let waiting = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%CREATE TABLE%'";
    eventually("the migration waits in the middle", async || {
        sqlx::query_scalar::<_, bool>(waiting).fetch_optional(&db.pool).await.unwrap() == Some(true)
    })
    .await;
    assert!(starter.await.unwrap().is_err());
    blocker.rollback().await.unwrap();
    assert_eq!(count(&db.pool, tables).await, 0);
    migrate(&db.pool).await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn two_outboxes_live_in_one_database_in_other_schemas() {
    let db = unmigrated().await;
    let (one, two) = (Tables::default().prefix("one_").unwrap(), Tables::default().schema("two").unwrap());
    let mut delivered = Vec::new();
    for tables in [&one, &two] {
        migrate_with(&db.pool, tables).await.unwrap();
        let memory = Memory::new();
        let handle = builder(&db)
            .tables(tables.clone())
            .queue("q", Partitions::of(1))
            .leased(memory.handler())
            .start()
            .await
            .unwrap();
        let text = tables.clone();
        let message = posthaste::EnqueueMessage::new(format!("{text:?}"));
        handle.outbox().enqueue(&db.pool, "q", message).await.unwrap();
        memory.has(1).await;
        delivered.push((handle, memory));
    }
    for (handle, memory) in delivered {
        assert_eq!(memory.all().len(), 1, "each sees its own");
        handle.stop().await;
    }
    assert_eq!(count(&db.pool, "SELECT max(processed_seq) FROM one_cursor").await, 1);
    assert_eq!(count(&db.pool, "SELECT max(processed_seq) FROM two.posthaste_cursor").await, 1);
    db.remove().await;
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables_in_another_schema() {
    let (printed, made) = (unmigrated().await, unmigrated().await);
    for tables in [Tables::default(), Tables::default().schema("elsewhere").unwrap().prefix("x_").unwrap()] {
        let sql = migration_sql::<Postgres>(&tables);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&printed.pool).await.unwrap();
        migrate_with(&made.pool, &tables).await.unwrap();
        migrate_with(&printed.pool, &tables).await.expect("it finds nothing to do");
    }
    let columns =
        "SELECT table_schema || table_name || column_name || data_type FROM information_schema.columns
                   WHERE table_schema NOT LIKE 'pg%' AND table_schema <> 'information_schema' ORDER BY 1";
    let of = async |pool| sqlx::query_scalar::<_, String>(columns).fetch_all(pool).await.unwrap();
    assert_eq!(of(&printed.pool).await, of(&made.pool).await);
    printed.remove().await;
    made.remove().await;
}

#[tokio::test]
async fn a_role_with_only_dml_rights_is_enough_once_the_tables_are_there() {
    let db = unmigrated().await;
    migrate(&db.pool).await.unwrap();
    let role = format!("dml_{}", std::process::id());
    sqlx::raw_sql(AssertSqlSafe(format!(
        "CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM PUBLIC;
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role};"
    )))
    .execute(&db.pool)
    .await
    .unwrap();
    let options = (*db.pool.connect_options()).clone().username(&role);
    let pool = sqlx::PgPool::connect_with(options).await.unwrap();
    let memory = Memory::new();
    let handle = builder_on(pool.clone())
        .queue("q", Partitions::of(2))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&pool, "q", posthaste::EnqueueMessage::new("x").partition(1)).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    pool.close().await;
    sqlx::raw_sql(AssertSqlSafe(format!("DROP OWNED BY {role}; DROP ROLE {role}")))
        .execute(&db.pool)
        .await
        .unwrap();
    db.remove().await;
}

#[tokio::test]
async fn an_identity_that_is_cached_is_refused_with_the_cure() {
    let db = unmigrated().await;
    migrate(&db.pool).await.unwrap();
    sqlx::raw_sql("ALTER TABLE posthaste_incoming ALTER COLUMN id SET CACHE 20")
        .execute(&db.pool)
        .await
        .unwrap();
    let error = builder(&db).start().await.unwrap_err().to_string();
    assert!(error.contains("SET CACHE 1") && error.contains("(20)"), "{error}");
    db.remove().await;
}
