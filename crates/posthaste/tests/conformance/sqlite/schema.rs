//! The tables: made once, by whoever is first, and refused when they do not fit.

use std::process::{Command, Stdio};

use posthaste::{
    EnqueueMessage, Outbox, OutboxError, Partitions, Tables, migrate, migrate_with, migration_sql,
};
use sqlx::{AssertSqlSafe, Sqlite, SqlitePool, sqlite::SqliteConnectOptions};

use super::stage::{Memory, builder, count, eventually, millis, settled, unmigrated};

/// In the environment of a process that only migrates: the file.
const MIGRATES: &str = "POSTHASTE_TEST_MIGRATES";

#[tokio::test]
async fn eight_tasks_at_once_make_the_tables_once() {
    let db = unmigrated().await;
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let pool = db.pool.clone();
            tokio::spawn(async move { migrate(&pool).await })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap().unwrap();
    }
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_meta").await, 1);
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_tick").await, 1);
    migrate(&db.pool).await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn four_processes_at_once_make_the_tables_once() {
    if let Ok(file) = std::env::var(MIGRATES) {
        // No journal mode is given, and locks are not waited for: it is the migration that does.
        let options =
            SqliteConnectOptions::new().filename(file).create_if_missing(true).busy_timeout(millis(0));
        let pool = SqlitePool::connect_with(options).await.unwrap();
        migrate(&pool).await.unwrap();
        builder(&pool)
            .queue("q", Partitions::of(2))
            .leased(Memory::new())
            .start()
            .await
            .unwrap()
            .stop()
            .await;
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.db");
    let test = "sqlite::schema::four_processes_at_once_make_the_tables_once";
    let starters: Vec<_> = (0..4)
        .map(|_| {
            Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture"])
                .env(MIGRATES, &file)
                .stdin(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut starter in starters {
        assert!(starter.wait().unwrap().success());
    }
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&file)).await.unwrap();
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&pool).await.unwrap();
    assert_eq!(mode, "wal");
    for (table, rows) in [("meta", 1), ("tick", 1), ("queue", 1), ("partition", 2), ("cursor", 2)] {
        assert_eq!(count(&pool, &format!("SELECT count(*) FROM posthaste_{table}")).await, rows, "{table}");
    }
    pool.close().await;
}

/// What SQLite says that it has: columns and indexes, without how they were written down.
async fn schema_of(pool: &SqlitePool) -> String {
    let columns =
        "SELECT s.name || '.' || c.name || ' ' || lower(c.type) || iif(c.\"notnull\", ' not null', '')
             || iif(c.pk > 0, ' key ' || c.pk, '')
         FROM sqlite_schema s JOIN pragma_table_xinfo(s.name) c
         WHERE s.type = 'table' AND s.name LIKE '%posthaste%' ORDER BY s.name, c.cid";
    let tables = "SELECT l.name || iif(l.strict, ' strict', '') || iif(l.wr, ' without rowid', '')
             || iif(s.sql LIKE '%AUTOINCREMENT%', ' autoincrement', '')
         FROM sqlite_schema s JOIN pragma_table_list(s.name) l
         WHERE s.type = 'table' AND s.name LIKE '%posthaste%' ORDER BY l.name";
    let indexes = "SELECT s.name || ' (' || group_concat(i.name || ' ' || i.coll, ', ') || ')'
             || iif(l.\"unique\", ' unique', '')
         FROM sqlite_schema s JOIN pragma_index_list(s.name) l JOIN pragma_index_xinfo(l.name) i
         WHERE s.type = 'table' AND s.name LIKE '%posthaste%' AND i.key GROUP BY s.name, l.name ORDER BY s.name, l.name";
    let mut text = String::new();
    for sql in [columns, tables, indexes] {
        let lines: Vec<String> = sqlx::query_scalar(sql).fetch_all(pool).await.unwrap();
        text.push_str(&format!("{}\n\n", lines.join("\n")));
    }
    text
}

#[tokio::test]
async fn the_live_schema_is_the_committed_one() {
    let db = unmigrated().await;
    migrate(&db.pool).await.unwrap();
    let live = schema_of(&db.pool).await;
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/sqlite/schema.snapshot");
    if std::env::var_os("POSTHASTE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &live).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert_eq!(live, committed, "if this is meant, run the test with POSTHASTE_UPDATE_SNAPSHOTS=1");
    db.remove().await;
}

#[tokio::test]
async fn the_printed_sql_makes_the_same_tables() {
    let (printed, made) = (unmigrated().await, unmigrated().await);
    for tables in [Tables::default(), Tables::default().prefix("x_posthaste_").unwrap()] {
        let sql = migration_sql::<Sqlite>(&tables);
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&printed.pool).await.unwrap();
        migrate_with(&made.pool, &tables).await.unwrap();
        migrate_with(&printed.pool, &tables).await.expect("it finds nothing to do");
    }
    assert_eq!(schema_of(&printed.pool).await, schema_of(&made.pool).await);
    printed.remove().await;
    made.remove().await;
}

#[tokio::test]
async fn a_migration_that_fails_leaves_nothing_half_done() {
    let db = unmigrated().await;
    // It cannot finish: the last table's name is taken.
    sqlx::raw_sql("CREATE TABLE posthaste_dead_letter (mine INT)").execute(&db.pool).await.unwrap();
    assert!(matches!(migrate(&db.pool).await.unwrap_err(), OutboxError::Database(_)));
    let tables = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name LIKE 'posthaste%'";
    assert_eq!(count(&db.pool, tables).await, 1, "only the one that was there");
    sqlx::raw_sql("DROP TABLE posthaste_dead_letter").execute(&db.pool).await.unwrap();
    migrate(&db.pool).await.unwrap();
    db.remove().await;
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_says_that_it_is_compatible() {
    let db = unmigrated().await;
    migrate(&db.pool).await.unwrap();
    let set = async |sql| sqlx::raw_sql(sql).execute(&db.pool).await.unwrap();
    set("UPDATE posthaste_meta SET schema_version = 7, least_library = 1").await;
    migrate(&db.pool).await.unwrap();
    builder(&db.pool).start().await.unwrap().stop().await;
    set("UPDATE posthaste_meta SET least_library = 6").await;
    for error in [
        migrate(&db.pool).await.unwrap_err(),
        builder(&db.pool).start().await.unwrap_err(),
        Outbox::connect(db.pool.clone()).await.unwrap_err(),
    ] {
        assert!(matches!(error, OutboxError::SchemaTooNew { found: 7, least: 6, ours: 1 }), "{error}");
    }
    db.remove().await;
}

#[tokio::test]
async fn without_tables_a_producer_is_told_to_migrate() {
    let db = unmigrated().await;
    for error in [
        Outbox::connect(db.pool.clone()).await.unwrap_err(),
        builder(&db.pool).migrate(false).start().await.unwrap_err(),
    ] {
        assert!(matches!(error, OutboxError::NotMigrated { found: 0, needed: 1 }), "{error}");
    }
    db.remove().await;
}

#[tokio::test]
async fn a_schema_is_refused_before_anything_is_written() {
    let db = unmigrated().await;
    let tables = Tables::default().schema("elsewhere").unwrap();
    for error in [
        migrate_with(&db.pool, &tables).await.unwrap_err(),
        builder(&db.pool).schema("elsewhere").start().await.unwrap_err(),
        Outbox::connect_with(db.pool.clone(), &tables).await.unwrap_err(),
    ] {
        assert!(
            matches!(&error, OutboxError::Configuration(text) if text.contains("SQLite has no schemas")),
            "{error}"
        );
    }
    let tables = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'posthaste%'";
    assert_eq!(count(&db.pool, tables).await, 0);
    db.remove().await;
}

#[tokio::test]
async fn two_outboxes_live_in_one_database_under_other_names() {
    let db = unmigrated().await;
    let mut delivered = Vec::new();
    for prefix in ["one_", "two_"] {
        let memory = Memory::new();
        let queue = builder(&db.pool).table_prefix(prefix).queue("q", Partitions::of(1));
        let handle = queue.leased(memory.clone()).start().await.unwrap();
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new(prefix)).await.unwrap();
        memory.has(1).await;
        delivered.push((handle, memory));
    }
    for (handle, memory) in delivered {
        assert_eq!(memory.all().len(), 1, "each sees its own");
        handle.stop().await;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_temporary_table_of_the_same_name_is_not_ours() {
    let (db, memory) = (unmigrated().await, Memory::new());
    let queue = builder(&db.pool).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    let mut conn = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("CREATE TEMP TABLE posthaste_incoming AS SELECT * FROM main.posthaste_incoming")
        .execute(&mut *conn)
        .await
        .unwrap();
    handle.outbox().enqueue(&mut *conn, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    conn.close().await.unwrap();
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn a_database_without_a_log_is_given_one_however_it_was_opened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("test.db");
    let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let mode = async || -> String {
        let mut conn = pool.acquire().await.unwrap();
        // A connection finds out what others have set when it reads.
        sqlx::query("SELECT count(*) FROM sqlite_schema").fetch_one(&mut *conn).await.unwrap();
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&mut *conn).await.unwrap()
    };
    assert_eq!(mode().await, "delete");
    sqlx::raw_sql("CREATE TABLE mine (n INT)").execute(&pool).await.unwrap();
    // Somebody reads meanwhile, so it cannot be had at once.
    let mut reader = pool.begin().await.unwrap();
    sqlx::query("SELECT count(*) FROM mine").fetch_one(&mut *reader).await.unwrap();
    let migration = tokio::spawn({
        let pool = pool.clone();
        async move { migrate(&pool).await }
    });
    tokio::time::sleep(millis(500)).await;
    assert!(!migration.is_finished());
    drop(reader);
    migration.await.unwrap().unwrap();
    assert_eq!(mode().await, "wal");
    pool.close().await;
}

/// If ids were given out again, new messages would be behind the sequencer, and never be delivered.
#[tokio::test]
async fn ids_that_sqlite_would_give_out_again_are_not() {
    let (db, memory) = (unmigrated().await, Memory::new());
    let start = async || {
        builder(&db.pool).queue("q", Partitions::of(1)).leased(memory.clone()).start().await.unwrap()
    };
    let handle = start().await;
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 20]).await.unwrap();
    memory.has(20).await;
    eventually("all is removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    handle.stop().await;
    for forget in [
        "DELETE FROM sqlite_sequence WHERE name = 'posthaste_incoming'",
        "UPDATE sqlite_sequence SET seq = 3 WHERE name = 'posthaste_incoming'",
    ] {
        sqlx::raw_sql(forget).execute(&db.pool).await.unwrap();
        let (handle, before) = (start().await, memory.all().len());
        let id = handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("y")).await.unwrap();
        assert_eq!(id.0, i64::try_from(before + 1).unwrap(), "{forget}");
        memory.has(before + 1).await;
        eventually("it is settled", async || settled(&db.pool).await == id.0).await;
        handle.stop().await;
    }
    db.remove().await;
}
