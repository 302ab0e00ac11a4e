//! How the statements find their rows: by primary keys, however full the tables are and whatever the optimizer believes of
//! them. A scan of a moving table costs too much when it is large, and when it is small and locks what it reads, waits for
//! every open producer.

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, Row, mysql::MySqlRow};

use super::{Family, on_both};
use crate::{
    dialect::Dialect,
    fresh::Fresh,
    stage::{fresh, register, run},
};
use posthaste::Partitions;
use sqlx::MySql;

on_both! {
    []:
        statements_that_lock_go_by_primary_keys_even_in_tiny_tables,
        no_statement_reads_more_of_large_tables_than_it_needs,
        an_open_producer_is_in_nobodys_way_in_a_tiny_table;
}

/// A statement as the library renders it, with these values.
fn statement(text: &str, values: &[&str]) -> String {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let mut sql = code.collect::<Vec<_>>().join("\n");
    for table in ["queue", "partition", "incoming", "pending", "tick", "outgoing", "cursor", "dead_letter"] {
        sql = sql.replace(&format!("{{{table}}}"), &format!("posthaste_{table}"));
    }
    sql = sql.replace("{now}", "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))");
    for (name, value) in [
        ("{most}", "100"),
        ("{ranges}", "(o.partition_id = 1 AND o.last_seq > 10 AND o.last_seq <= 20)"),
        ("{rows}", "(100000001, 100000001, '[1]')"),
        ("{number}", "1"),
        ("{reader}", "default"),
        ("{savepoint}", "s"),
    ] {
        sql = sql.replace(name, value);
    }
    for value in values {
        sql = sql.replacen('?', value, 1);
    }
    assert!(!sql.contains('?') && !sql.contains('{'), "{sql}");
    sql
}

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!("../../../src/store/mysql/sql/", $name, ".sql"))
    };
}

const OWNER: &str = "x'00112233445566778899aabbccddeeff'";
const READER: &str = "'default'";

/// Those that lock rows which are not their own, about the newest link of partition 1 and some places in it.
fn locking(newest: &str) -> Vec<(&'static str, String)> {
    let acquire = ["1", OWNER, "30000", "30000", READER, newest, "1", OWNER];
    vec![
        ("acquire", statement(sql!("acquire"), &acquire)),
        ("acquire_transactional", statement(sql!("acquire_transactional"), &acquire)),
        (
            "settle",
            statement(
                sql!("settle"),
                &["2", "1", "NULL", "NULL", "NULL", "NULL", READER, "1", newest, OWNER, "2", "1"],
            ),
        ),
        ("tick", statement(sql!("tick"), &[])),
        ("taken", statement(sql!("taken"), &["'[2, 3]'"])),
        // All there are, as a tick mostly has.
        ("taken_run", statement(sql!("taken_run"), &["1", newest, newest])),
        ("segments", statement(sql!("segments"), &[r#"'[[1, 1, 2, "[5, 6]"]]'"#])),
        ("vacuum_message_run", statement(sql!("vacuum_message_run"), &["2", "3", "2"])),
        ("vacuum_messages", statement(sql!("vacuum_messages"), &["'[2, 3]'"])),
        ("vacuum_links", statement(sql!("vacuum_links"), &["'[[1, 1], [1, 2]]'", READER])),
        ("vacuum_segments", statement(sql!("vacuum_segments"), &["'[[1, 1], [1, 2]]'"])),
        ("vacuum_ticks", statement(sql!("vacuum_ticks"), &["'[1, 2]'"])),
        ("bury", statement(sql!("bury"), &["1", "'q'", "0", r#"'[[2, 2, "no", 1]]'"#])),
        ("pend", statement(sql!("pend"), &[])),
    ]
}

/// Those that read the tips of chains, or join a list.
fn reading() -> Vec<(&'static str, String)> {
    vec![
        ("news", statement(sql!("news"), &[])),
        ("head", statement(sql!("head"), &["1"])),
        ("look", statement(sql!("look"), &[OWNER, "1", "1", READER, "1"])),
        ("is_paused", statement(sql!("is_paused"), &["'q'"])),
        ("read", statement(sql!("read"), &["1", "10", "276", "20", "11", "20"])),
        ("take", statement(sql!("take"), &[])),
        ("unsequenced", statement(sql!("unsequenced"), &["14744", "15000", "'[1]'", "50"])),
        ("peek", statement(sql!("peek"), &["15000", "'[1]'", "50"])),
        ("find_queue", statement(sql!("find_queue"), &["'q'"])),
        ("survey", statement(sql!("survey"), &[READER, "'[[1, -1, 0, 0]]'", READER, READER])),
        ("waiting", statement(sql!("waiting"), &["'[1]'", READER, READER, OWNER])),
        ("vacuum_look", statement(sql!("vacuum_look"), &["'[[1, 0, 5, 0, 5]]'", READER, READER])),
        ("vacuum_read", statement(sql!("vacuum_read"), &[])),
        ("vacuum_tick_ends", statement(sql!("vacuum_tick_ends"), &["5"])),
        ("enqueued_mysql", statement(sql!("enqueued_mysql"), &["10", "7", "1"])),
        ("lock", statement(sql!("lock"), &[])),
        ("suspects", statement(sql!("suspects"), &["30", "19640", "19896", "100", READER, "19896", "100"])),
        ("strays", statement(sql!("strays"), &["'[19999]'", "19743", "19999"])),
        ("lag", statement(sql!("lag"), &[READER, READER, READER, READER, "100", "100"])),
    ]
}

/// Chains, segments and messages from 1 to `rows`; the newest link is free, and half of it is settled.
async fn fill<S: Family>(db: &Fresh<S>, rows: u32) {
    register(db, Partitions::of(1)).await;
    let numbers = format!("{} AS s", MySql::series(rows.max(1)));
    let there = if rows == 0 { "WHERE false" } else { "" };
    let sql = format!(
        "DELETE FROM posthaste_tick;
         INSERT INTO posthaste_tick SELECT n FROM {numbers} {there};
         INSERT INTO posthaste_pending SELECT n, n, '[1]' FROM {numbers} {there};
         INSERT INTO posthaste_incoming (id, tag, created_at, partition_id, payload_type, payload)
         SELECT n, 7, 0, 1, 't', 'x' FROM {numbers} {there};
         INSERT INTO posthaste_outgoing SELECT 1, n, n, 0, concat('[', n, ']') FROM {numbers} {there};
         DELETE FROM posthaste_cursor;
         INSERT INTO posthaste_cursor (reader, partition_id, epoch, processed_seq, attempts)
         SELECT 'default', 1, n, n DIV 2, 0 FROM {numbers} {there};
         ANALYZE TABLE posthaste_tick, posthaste_pending, posthaste_incoming, posthaste_outgoing, posthaste_cursor,
                       posthaste_partition"
    );
    run(&db.pool, &sql).await;
}

/// A session as workers have it.
async fn worker<S: Family>(db: &Fresh<S>) -> MySqlConnection {
    let mut conn = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
    let session =
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION innodb_lock_wait_timeout = 1";
    MySql::run(&mut conn, session).await.unwrap();
    conn
}

fn text(row: &MySqlRow, column: &str) -> String {
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(column).unwrap();
    bytes.map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default()
}

async fn statements_that_lock_go_by_primary_keys_even_in_tiny_tables<S: Family>() {
    for rows in [0, 1, 2, 20] {
        let db = fresh::<S>().await;
        fill(&db, rows).await;
        let mut conn = worker(&db).await;
        for (name, sql) in locking(&rows.to_string()) {
            let explain = AssertSqlSafe(format!("EXPLAIN FORMAT = TRADITIONAL {sql}"));
            for row in sqlx::raw_sql(explain).fetch_all(&mut conn).await.unwrap() {
                let [table, way, key, extra] =
                    ["table", "type", "key", "Extra"].map(|column| text(&row, column));
                let what = format!("{name} with {rows} rows: {table} {way} {key} {extra}");
                // Lists, and what the optimizer has found not to be there; and the table that is written to.
                if table.is_empty()
                    || ["x", "d"].contains(&&*table)
                    || table.starts_with('<')
                    || key.is_empty() && is_target(&sql, &table)
                {
                    continue;
                }
                assert_eq!(key, "PRIMARY", "{what}");
                // The tick's newest link is the first one from the end, and it reads no other.
                let is_end = way == "index" && name == "tick";
                assert!(
                    is_end
                        || ["system", "const", "eq_ref", "ref"].contains(&&*way)
                        || way == "range" && name.ends_with("_run"),
                    "{what}"
                );
                assert!(!extra.contains("join buffer") && !extra.contains("hash"), "{what}");
            }
        }
        conn.close().await.unwrap();
        db.remove().await;
    }
}

/// MySQL lists the table that an INSERT writes to, under its own name; it is not read.
fn is_target(sql: &str, table: &str) -> bool {
    sql.trim_start().starts_with(&format!("INSERT INTO {table} "))
}

async fn no_statement_reads_more_of_large_tables_than_it_needs<S: Family>() {
    const ROWS: u32 = 20_000;
    let db = fresh::<S>().await;
    fill(&db, ROWS).await;
    let mut conn = worker(&db).await;
    let mut statements = locking(&ROWS.to_string());
    statements.extend(reading());
    let mut greedy = Vec::new();
    for (name, sql) in statements {
        MySql::run(&mut conn, "FLUSH STATUS; BEGIN").await.unwrap();
        sqlx::raw_sql(AssertSqlSafe(sql))
            .fetch_all(&mut conn)
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let status =
            sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Handler_read%'").fetch_all(&mut conn).await.unwrap();
        let read: u64 = status.iter().map(|row| text(row, "Value").parse::<u64>().unwrap()).sum();
        MySql::run(&mut conn, "ROLLBACK").await.unwrap();
        // A window of pending is asked for by its size, and a batch is in as many segments as it has messages at most, of
        // which a whole one may be; the others are about one or two rows of each table, and what the server looks up for itself.
        let most = match name {
            "take" => 110,
            // A run that begins before them may reach into them.
            "unsequenced" => 4 * 256 + 100,
            "taken_run" => ROWS.into(),
            // Runs that may have a message of the window, unfolded and put into a temporary table; for each message, the segments
            // behind the cursor.
            "suspects" => 2000,
            "strays" => 1000,
            "read" => 256 + 10 + 30,
            // The window and its messages, by way of temporary tables that are read several times; and the range that the segment
            // behind the cursor is in, which is as long as a segment may be.
            "lag" => 15 * 100 + 256 + 100,
            _ => 100,
        };
        if read > most {
            greedy.push(format!("{name}: {read} rows"));
        }
    }
    assert_eq!(greedy, Vec::<String>::new(), "statements that read more");
    conn.close().await.unwrap();
    db.remove().await;
}

/// A producer has written a message and not committed; the tables are so small that a scan would be cheapest. With a wait of
/// one second for locks, whoever scans fails here.
async fn an_open_producer_is_in_nobodys_way_in_a_tiny_table<S: Family>() {
    let db = fresh::<S>().await;
    fill(&db, 3).await;
    let mut producer = db.pool.begin().await.unwrap();
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    for _ in 0..2 {
        outbox.enqueue(&mut producer, "q", posthaste::EnqueueMessage::new("x")).await.unwrap();
    }
    let mut conn = worker(&db).await;
    for (name, sql) in locking("3") {
        MySql::run(&mut conn, &format!("BEGIN; {sql}; ROLLBACK"))
            .await
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    producer.commit().await.unwrap();
    // And one that has written before all others.
    let mut producer = db.pool.begin().await.unwrap();
    let first = "INSERT INTO posthaste_incoming (id, created_at, partition_id, payload_type, payload) VALUES (-1, 0, 1, 't', 'x');
                 INSERT INTO posthaste_pending VALUES (-1, -1, '[1]')";
    sqlx::raw_sql(first).execute(&mut *producer).await.unwrap();
    for (name, sql) in locking("3") {
        MySql::run(&mut conn, &format!("BEGIN; {sql}; ROLLBACK"))
            .await
            .unwrap_or_else(|error| panic!("{name}, behind an open producer's: {error}"));
    }
    producer.rollback().await.unwrap();
    conn.close().await.unwrap();
    db.remove().await;
}
