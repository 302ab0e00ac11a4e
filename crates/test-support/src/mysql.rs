//! MySQL and MariaDB have no copies of databases. A schema is emptied after its test and given to another one.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use tokio::time::{Instant, sleep};

use crate::{fresh_name, url::with_database};

/// The schemas that are free, by template. A template is listed as its own when it is complete. In a schema of its own: the URL of
/// the server need not name one.
const POOL: [&str; 2] = [
    "CREATE DATABASE IF NOT EXISTS posthaste_test_pool",
    "CREATE TABLE IF NOT EXISTS posthaste_test_pool.free (
        name VARCHAR(64) NOT NULL PRIMARY KEY, template VARCHAR(64) NOT NULL)",
];

/// How long the sessions of a test may take to end. After that their schema is left alone.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything that defines a schema but its rows.
///
/// Each part filters by a column that MariaDB looks up. By any other column it reads every schema of the server: while
/// it loads the triggers of a schema, it shows the session as one of that schema, and a test that kills the sessions
/// of its own schema kills this one.
const STRUCTURE: &str = "
    SELECT CAST(CONCAT_WS('|', 'schema', default_character_set_name, default_collation_name) AS CHAR) AS line
        FROM information_schema.schemata WHERE schema_name = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'table', table_name, engine, table_collation, create_options) AS CHAR)
        FROM information_schema.tables WHERE table_schema = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'column', table_name, column_name, ordinal_position, column_type, is_nullable,
            column_default, extra, collation_name) AS CHAR)
        FROM information_schema.columns WHERE table_schema = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'index', table_name, index_name, seq_in_index, column_name, non_unique, sub_part) AS CHAR)
        FROM information_schema.statistics WHERE table_schema = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'trigger', trigger_name) AS CHAR)
        FROM information_schema.triggers WHERE event_object_schema = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'routine', routine_name) AS CHAR)
        FROM information_schema.routines WHERE routine_schema = ?
    UNION ALL
    SELECT CAST(CONCAT_WS('|', 'event', event_name) AS CHAR)
        FROM information_schema.events WHERE event_schema = ?
    ORDER BY line";

async fn connect(url: &str) -> MySqlConnection {
    MySqlConnection::connect(url).await.expect("the server answers")
}

async fn run(conn: &mut MySqlConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Waits until no other test changes the pool, until [`unlock`].
async fn lock(conn: &mut MySqlConnection) {
    let locked: Option<i64> = sqlx::query_scalar("SELECT GET_LOCK('posthaste_test_pool', 600)")
        .fetch_one(conn)
        .await
        .expect("the server answers");
    assert_eq!(locked, Some(1), "another test keeps the pool locked");
}

async fn unlock(conn: &mut MySqlConnection) {
    run(conn, "DO RELEASE_LOCK('posthaste_test_pool')").await;
}

async fn structure(conn: &mut MySqlConnection, name: &str) -> Vec<String> {
    let mut query = sqlx::query_scalar(STRUCTURE);
    for _ in 0..7 {
        query = query.bind(name);
    }
    query.fetch_all(conn).await.expect("the server answers")
}

async fn tables(conn: &mut MySqlConnection, name: &str) -> Vec<String> {
    let sql = "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = ?";
    sqlx::query_scalar(sql).bind(name).fetch_all(conn).await.expect("the server answers")
}

pub async fn empty(url: &str) -> String {
    let name = fresh_name();
    run(&mut connect(url).await, &format!("CREATE DATABASE {name}")).await;
    name
}

pub async fn remove(url: &str, name: &str) {
    run(&mut connect(url).await, &format!("DROP DATABASE {name}")).await;
}

/// A schema with the tables and rows of the template: a free one, or a new one.
pub async fn take(url: &str, template: &str, prepare: impl AsyncFnOnce(&str)) -> String {
    let mut conn = connect(url).await;
    lock(&mut conn).await;
    let free = take_free(&mut conn, template).await;
    if free.is_none() && !is_complete(&mut conn, template).await {
        run(&mut conn, &format!("DROP DATABASE IF EXISTS {template}")).await;
        run(&mut conn, &format!("CREATE DATABASE {template}")).await;
        prepare(&with_database(url, template)).await;
        list(&mut conn, template, template).await;
    }
    unlock(&mut conn).await;
    if let Some(name) = free {
        return name;
    }
    let name = fresh_name();
    run(&mut conn, &format!("CREATE DATABASE {name}")).await;
    for table in tables(&mut conn, template).await {
        run(&mut conn, &format!("CREATE TABLE {name}.{table} LIKE {template}.{table}")).await;
        run(&mut conn, &format!("INSERT INTO {name}.{table} SELECT * FROM {template}.{table}")).await;
    }
    name
}

async fn take_free(conn: &mut MySqlConnection, template: &str) -> Option<String> {
    for statement in POOL {
        run(conn, statement).await;
    }
    let sql = "SELECT name FROM posthaste_test_pool.free WHERE template = ? AND name <> template LIMIT 1";
    let name: Option<String> =
        sqlx::query_scalar(sql).bind(template).fetch_optional(&mut *conn).await.expect("the server answers");
    if let Some(name) = &name {
        run(conn, &format!("DELETE FROM posthaste_test_pool.free WHERE name = '{name}'")).await;
    }
    name
}

async fn is_complete(conn: &mut MySqlConnection, template: &str) -> bool {
    let sql = "SELECT (SELECT count(*) FROM posthaste_test_pool.free WHERE name = ?)
               + (SELECT count(*) FROM information_schema.schemata WHERE schema_name = ?)";
    let query = sqlx::query_scalar(sql).bind(template).bind(template);
    // Listed, and still there.
    query.fetch_one(conn).await.map(|found: i64| found == 2).expect("the server answers")
}

async fn list(conn: &mut MySqlConnection, name: &str, template: &str) {
    run(
        conn,
        &format!("REPLACE INTO posthaste_test_pool.free (name, template) VALUES ('{name}', '{template}')"),
    )
    .await;
}

/// Empties a schema for the next test. Drops it if a test changed more than rows; leaves it alone if a session stays in
/// it, which would keep it locked.
pub async fn give_back(url: &str, name: &str, template: &str) {
    let mut conn = connect(url).await;
    if !sessions_ended(&mut conn, name).await {
        eprintln!("the schema {name} is not reused: a session stays in it");
        return;
    }
    if structure(&mut conn, name).await != structure(&mut conn, template).await {
        run(&mut conn, &format!("DROP DATABASE {name}")).await;
        return;
    }
    for table in tables(&mut conn, name).await {
        run(&mut conn, &format!("TRUNCATE TABLE {name}.{table}")).await;
        run(&mut conn, &format!("INSERT INTO {name}.{table} SELECT * FROM {template}.{table}")).await;
    }
    lock(&mut conn).await;
    list(&mut conn, name, template).await;
    unlock(&mut conn).await;
}

/// Waits until the sessions in a schema have ended: the test has closed its connections, and the processes that it
/// killed have lost theirs. False if one stays, or if the server does not list its sessions.
async fn sessions_ended(conn: &mut MySqlConnection, name: &str) -> bool {
    let is_listed: bool = sqlx::query_scalar("SELECT @@performance_schema")
        .fetch_one(&mut *conn)
        .await
        .expect("the server answers");
    if !is_listed {
        return false;
    }
    let sql = "SELECT count(*) FROM performance_schema.threads WHERE processlist_db = ?";
    let began = Instant::now();
    loop {
        let sessions: i64 =
            sqlx::query_scalar(sql).bind(name).fetch_one(&mut *conn).await.expect("the server answers");
        if sessions == 0 || began.elapsed() > PATIENCE {
            return sessions == 0;
        }
        sleep(Duration::from_millis(5)).await;
    }
}
