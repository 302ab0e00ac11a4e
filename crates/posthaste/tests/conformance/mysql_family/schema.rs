//! The tables: no DDL can be rolled back here, so a migration that was killed anywhere is completed by the next start.

use posthaste::{EnqueueMessage, OutboxError, Partitions, Tables, migrate, migrate_with, migration_sql};
use sqlx::{AssertSqlSafe, MySql, MySqlPool};

use super::{Dice, Family, on_both};
use crate::{
    dialect::Dialect,
    effects::all_settled,
    fresh::Fresh,
    stage::{Memory, builder, builder_on, count, register, run, texts, unmigrated},
};

on_both! {
    []:
        the_live_schema_is_the_committed_one,
        a_migration_that_ended_after_any_of_its_statements_is_completed_by_the_next_start,
        a_migration_whose_session_is_killed_is_completed_by_the_next_start (flavor = "multi_thread"),
        the_printed_sql_makes_the_same_tables,
        tables_in_another_database_are_made_and_found_there,
        a_user_who_may_not_create_is_enough_once_the_tables_are_there,
        a_newer_schema_is_refused_unless_it_says_that_it_is_compatible,
        the_tables_do_not_depend_on_the_databases_defaults;
}

/// Columns with all that matters of them, then keys, then engines; without the prefix, and in words that both use.
async fn schema(pool: &MySqlPool, database: &str, prefix: &str) -> String {
    let of = format!("table_schema = '{database}' AND table_name LIKE '{}%'", prefix.replace('_', "\\_"));
    let columns = format!(
        "SELECT concat(table_name, '.', column_name, ' ', column_type, coalesce(concat(' ', collation_name), ''),
                       if(is_nullable = 'NO', ' not null', ''), if(extra = '', '', concat(' ', lower(extra))),
                       if(column_default IS NULL OR column_default = 'NULL', '', concat(' default ', trim(BOTH '\\'' FROM column_default))))
         FROM information_schema.columns WHERE {of} ORDER BY table_name, ordinal_position"
    );
    let keys = format!(
        "SELECT concat(table_name, ' ', index_name, if(max(non_unique) = 0, ' unique', ''), ' (',
                       group_concat(column_name ORDER BY seq_in_index SEPARATOR ', '), ')')
         FROM information_schema.statistics WHERE {of} GROUP BY table_name, index_name ORDER BY table_name, index_name"
    );
    let engines = format!(
        "SELECT concat(table_name, ' ', engine, ' ', table_collation) FROM information_schema.tables WHERE {of} ORDER BY table_name"
    );
    let mut parts = Vec::new();
    for sql in [columns, keys, engines] {
        let lines = texts(pool, &sql).await;
        parts.push(
            lines
                .iter()
                .map(|line| without_widths(&line.replacen(prefix, "posthaste_", 1)))
                .collect::<Vec<_>>()
                .join("\n"),
        );
    }
    parts.join("\n\n") + "\n"
}

/// MariaDB says how wide a number is shown, which means nothing.
fn without_widths(line: &str) -> String {
    ["tinyint(4)", "int(11)", "bigint(20)"]
        .iter()
        .fold(line.to_owned(), |line, wide| line.replace(wide, wide.split('(').next().unwrap_or_default()))
}

const SNAPSHOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/mysql/schema.snapshot");

fn committed() -> String {
    std::fs::read_to_string(SNAPSHOT).unwrap()
}

async fn database<S: Family>(db: &Fresh<S>) -> String {
    texts(&db.pool, "SELECT database()").await.remove(0)
}

async fn the_live_schema_is_the_committed_one<S: Family>() {
    let db = unmigrated::<S>().await;
    migrate(&db.pool).await.unwrap();
    let live = schema(&db.pool, &database(&db).await, "posthaste_").await;
    if std::env::var_os("POSTHASTE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(SNAPSHOT, &live).unwrap();
    }
    assert_eq!(live, committed(), "if this is meant, run the test with POSTHASTE_UPDATE_SNAPSHOTS=1");
    db.remove().await;
}

/// The server's defaults are for tables that say nothing.
async fn the_tables_do_not_depend_on_the_databases_defaults<S: Family>() {
    let db = unmigrated::<S>().await;
    let name = database(&db).await;
    run(&db.pool, &format!("ALTER DATABASE `{name}` CHARACTER SET latin1 COLLATE latin1_swedish_ci")).await;
    migrate(&db.pool).await.unwrap();
    assert_eq!(schema(&db.pool, &name, "posthaste_").await, committed());
    db.remove().await;
}

/// Starts an outbox on these tables, and sees a message through.
async fn assert_works<S: Family>(db: &Fresh<S>, tables: &Tables) {
    let memory = Memory::new();
    let queue = builder(db).tables(tables.clone()).queue("q", Partitions::of(1)).leased(memory.handler());
    let handle = queue.start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
}

async fn a_migration_that_ended_after_any_of_its_statements_is_completed_by_the_next_start<S: Family>() {
    let db = unmigrated::<S>().await;
    let name = database(&db).await;
    let statements = |sql: &str| -> Vec<String> {
        sql.split(';').map(str::trim).filter(|sql| !sql.is_empty()).map(str::to_owned).collect()
    };
    let all = statements(&migration_sql::<MySql>(&Tables::default())).len();
    assert_eq!(all, 11);
    for done in 0..=all {
        // Of each k its own tables, in one database.
        let prefix = format!("k{done}_");
        let tables = Tables::default().prefix(&prefix).unwrap();
        for statement in statements(&migration_sql::<MySql>(&tables)).into_iter().take(done) {
            run(&db.pool, &statement).await;
        }
        let connected = posthaste::Outbox::connect_with(db.pool.clone(), &tables).await;
        assert_eq!(connected.is_ok(), done == all, "only the last statement says that all is there");
        migrate_with(&db.pool, &tables).await.unwrap();
        assert_eq!(schema(&db.pool, &name, &prefix).await, committed(), "after {done} statements");
        assert_eq!(count(&db.pool, &format!("SELECT count(*) FROM {prefix}tick")).await, 1);
        assert_eq!(count(&db.pool, &format!("SELECT count(*) FROM {prefix}meta")).await, 1);
        assert_works(&db, &tables).await;
    }
    db.remove().await;
}

async fn a_migration_whose_session_is_killed_is_completed_by_the_next_start<S: Family>() {
    let (db, mut dice, mut broken) = (unmigrated::<S>().await, Dice::new(), 0);
    let name = database(&db).await;
    for round in 0..12 {
        let prefix = format!("r{round}_");
        let tables = Tables::default().prefix(&prefix).unwrap();
        let migration = tokio::spawn({
            let (pool, tables) = (db.pool.clone(), tables.clone());
            async move { migrate_with(&pool, &tables).await }
        });
        // When it has made a table or two, and until it has ended: whatever it is doing.
        let made = dice.below(9);
        let tables_there = format!(
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = '{name}' AND table_name LIKE 'r{round}\\_%'"
        );
        while !migration.is_finished() && count(&db.pool, &tables_there).await < i64::try_from(made).unwrap()
        {
        }
        while !migration.is_finished() {
            MySql::kill_workers(&db.pool).await.unwrap();
        }
        broken += u32::from(migration.await.unwrap().is_err());
        migrate_with(&db.pool, &tables).await.unwrap();
        assert_eq!(schema(&db.pool, &name, &prefix).await, committed(), "round {round}");
        assert_works(&db, &tables).await;
    }
    assert!(broken > 0, "none was killed in time");
    db.remove().await;
}

/// A name that no other test has: databases are the server's.
fn elsewhere() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("other_{}_{}", std::process::id(), now.subsec_nanos())
}

async fn the_printed_sql_makes_the_same_tables<S: Family>() {
    let db = unmigrated::<S>().await;
    let (name, other) = (database(&db).await, elsewhere());
    let prefixed = Tables::default().schema(&other).unwrap().prefix("x_").unwrap();
    for (tables, database, prefix) in [(Tables::default(), &name, "posthaste_"), (prefixed, &other, "x_")] {
        let sql = migration_sql::<MySql>(&tables);
        // Twice, as somebody may who is not sure.
        for _ in 0..2 {
            sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(&db.pool).await.unwrap();
        }
        assert_eq!(schema(&db.pool, database, prefix).await, committed());
        migrate_with(&db.pool, &tables).await.expect("it finds nothing to do");
        assert_works(&db, &tables).await;
    }
    run(&db.pool, &format!("DROP DATABASE {other}")).await;
    db.remove().await;
}

async fn tables_in_another_database_are_made_and_found_there<S: Family>() {
    let db = unmigrated::<S>().await;
    let (name, other) = (database(&db).await, elsewhere());
    let tables = Tables::default().schema(&other).unwrap();
    let error = posthaste::Outbox::connect_with(db.pool.clone(), &tables).await.unwrap_err().to_string();
    assert!(error.contains(&other) && error.contains("posthaste::migrate"), "{error}");
    assert_works(&db, &tables).await;
    assert_eq!(schema(&db.pool, &other, "posthaste_").await, committed());
    assert_eq!(schema(&db.pool, &name, "posthaste_").await.trim(), "", "none in the connection's own");
    run(&db.pool, &format!("DROP DATABASE {other}")).await;
    // Neither does a connection that has no database of its own need one.
    let options = (*db.pool.connect_options()).clone();
    let options: sqlx::mysql::MySqlConnectOptions = format!(
        "mysql://{}@{}:{}?ssl-mode=disabled",
        options.get_username(),
        options.get_host(),
        options.get_port()
    )
    .parse()
    .unwrap();
    let pool = MySqlPool::connect_with(options).await.unwrap();
    let error = migrate(&pool).await.unwrap_err().to_string();
    assert!(error.contains("names no database"), "{error}");
    let memory = Memory::new();
    let queue =
        builder_on(pool.clone()).tables(tables).queue("q", Partitions::of(1)).leased(memory.handler());
    let handle = queue.start().await.unwrap();
    handle.outbox().enqueue(&pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    pool.close().await;
    run(&db.pool, &format!("DROP DATABASE {other}")).await;
    db.remove().await;
}

async fn a_user_who_may_not_create_is_enough_once_the_tables_are_there<S: Family>() {
    let db = unmigrated::<S>().await;
    let (name, user) = (database(&db).await, elsewhere());
    migrate(&db.pool).await.unwrap();
    run(
        &db.pool,
        &format!(
            "CREATE USER '{user}'@'%'; GRANT SELECT, INSERT, UPDATE, DELETE ON `{name}`.* TO '{user}'@'%'"
        ),
    )
    .await;
    let options = (*db.pool.connect_options()).clone().username(&user);
    let pool = MySqlPool::connect_with(options).await.unwrap();
    let memory = Memory::new();
    let queue = builder_on(pool.clone()).queue("q", Partitions::of(2)).leased(memory.handler());
    let handle = queue.queue("t", Partitions::of(2)).transactional(memory.handler()).start().await.unwrap();
    for queue in ["q", "t"] {
        handle.outbox().enqueue(&pool, queue, EnqueueMessage::new("x").partition(1)).await.unwrap();
    }
    all_settled(&db.pool, 2).await;
    handle.stop().await;
    pool.close().await;
    run(&db.pool, &format!("DROP USER '{user}'@'%'")).await;
    db.remove().await;
}

async fn a_newer_schema_is_refused_unless_it_says_that_it_is_compatible<S: Family>() {
    let db = unmigrated::<S>().await;
    migrate(&db.pool).await.unwrap();
    run(&db.pool, "UPDATE posthaste_meta SET schema_version = 7, least_library = 1").await;
    migrate(&db.pool).await.unwrap();
    register(&db, Partitions::of(1)).await;
    run(&db.pool, "UPDATE posthaste_meta SET least_library = 6").await;
    for error in [
        migrate(&db.pool).await.unwrap_err(),
        builder(&db).start().await.unwrap_err(),
        posthaste::Outbox::connect(db.pool.clone()).await.unwrap_err(),
    ] {
        assert!(matches!(error, OutboxError::SchemaTooNew { found: 7, least: 6, ours: 1 }), "{error}");
    }
    db.remove().await;
}
