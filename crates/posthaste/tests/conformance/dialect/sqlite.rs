//! What SQLite is told.

use posthaste::OutboxMessage;
use sqlx::{Sqlite, SqliteConnection, SqlitePool, Transaction, sqlite::SqliteConnectOptions};

use super::{Dialect, PATIENCE, Result, Wire, common_verbs};

/// Why a case that needs sessions is an exception here.
const NO_SESSIONS: &str = "SQLite has no server and no sessions";

impl Dialect for Sqlite {
    const WIRE: Wire = Wire::None;
    const AN_ERROR_ABORTS: bool = false;
    /// It has no such function.
    const KEY_AS_NUMBER: &str = "NULL";
    const SOMEBODY: &str = "x'00112233445566778899aabbccddeeff'";
    const SEGMENTS: &str =
        "(SELECT partition_id, first_seq, last_seq, json_array_length(ids) AS size FROM posthaste_outgoing)";
    const PLACES: &str = "(SELECT j.value AS id, o.partition_id, o.first_seq + j.key AS seq
                           FROM posthaste_outgoing o, json_each(o.ids) j)";
    const OTHER_ROWS: &str = "SELECT 0";
    /// It has no function that waits, so this counts to a thousand million.
    const TAKES_A_MINUTE: &str =
        "WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < 1000000000)
                                  SELECT count(*) FROM c";
    const COLUMNS: &str =
        "SELECT t.name || '.' || c.name || ' ' || c.type FROM sqlite_schema t, pragma_table_info(t.name) c
                           WHERE t.type = 'table' ORDER BY 1";

    common_verbs!("INTEGER", "SELECT * FROM posthaste_dead_letter ORDER BY seq");

    fn moment(from_now: i64) -> String {
        format!("CAST(unixepoch('subsec') * 1000000 AS INTEGER) + {from_now} * 1000")
    }

    fn micros(column: &str) -> String {
        column.to_owned()
    }

    fn series(to: u32) -> String {
        format!(
            "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {to}) SELECT n FROM c)"
        )
    }

    fn after_insert(name: &str, table: &str, statement: &str) -> String {
        format!("CREATE TRIGGER {name} AFTER INSERT ON {table} FOR EACH ROW BEGIN {statement}; END")
    }

    fn options(url: &str) -> SqliteConnectOptions {
        let options: SqliteConnectOptions = url.parse().expect("an URL");
        options
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(PATIENCE)
    }

    fn server(_: &SqliteConnectOptions) -> (String, u16) {
        unreachable!("{NO_SESSIONS}")
    }

    fn by_way_of(_: SqliteConnectOptions, _: u16) -> SqliteConnectOptions {
        unreachable!("{NO_SESSIONS}")
    }

    async fn begin(pool: &SqlitePool) -> Result<Transaction<'static, Self>> {
        // A transaction that reads first and writes later fails at once if somebody wrote in between.
        pool.begin_with("BEGIN IMMEDIATE").await
    }

    async fn texts(conn: &mut SqliteConnection, sql: &str) -> Result<Vec<Option<String>>> {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(conn).await
    }

    async fn write_effects(
        conn: &mut SqliteConnection,
        messages: &[OutboxMessage],
        prepares: bool,
    ) -> Result<()> {
        let mut insert = sqlx::QueryBuilder::new("INSERT INTO effects (id, partition_id, seq) ");
        insert.push_values(messages, |mut row, message| {
            row.push_bind(message.id.0).push_bind(message.partition_id).push_bind(message.seq);
        });
        insert.build().persistent(prepares).execute(conn).await.map(drop)
    }

    async fn insert_by_hand(conn: &mut SqliteConnection, each: u32, payload: &str) -> Result<()> {
        let sql = format!(
            "INSERT INTO posthaste_incoming (created_at, partition_id, payload_type, payload)
             SELECT {}, p.id, 't', CAST('{payload}' AS BLOB) FROM {} AS s CROSS JOIN posthaste_partition p",
            Self::moment(0),
            Self::series(each)
        );
        Self::run(conn, &sql).await
    }

    async fn insert_strays(conn: &mut SqliteConnection, queue: &str, each: u32, payload: &str) -> Result<()> {
        // The newest tick says that it has seen them.
        let sql = format!(
            "INSERT INTO posthaste_incoming (created_at, partition_id, payload_type, payload)
             SELECT {}, p.id, 't', CAST('{payload}' AS BLOB) FROM {} AS s
             CROSS JOIN posthaste_partition p JOIN posthaste_queue q ON q.id = p.queue_id WHERE q.name = '{queue}';
             UPDATE posthaste_tick SET last_id = (SELECT max(id) FROM posthaste_incoming)
             WHERE id = (SELECT max(id) FROM posthaste_tick)",
            Self::moment(-3_600_000),
            Self::series(each)
        );
        Self::run(conn, &sql).await
    }

    /// Those of this process: each has a thread, by whose name it is known. Files tell nothing: SQLite keeps them for later while
    /// others have the database open.
    async fn worker_sessions(_: &SqlitePool) -> Result<i64> {
        let threads = std::fs::read_dir("/proc/self/task").expect("this process").filter(|entry| {
            let name =
                entry.as_ref().ok().and_then(|entry| std::fs::read_to_string(entry.path().join("comm")).ok());
            name.is_some_and(|name| name.starts_with("posthaste-"))
        });
        Ok(i64::try_from(threads.count()).expect("a number"))
    }

    async fn idle_worker_sessions(_: &SqlitePool) -> Result<i64> {
        unreachable!("{NO_SESSIONS}")
    }

    async fn kill_workers(_: &SqlitePool) -> Result<i64> {
        unreachable!("{NO_SESSIONS}")
    }

    async fn kill_some_in_transactions(_: &SqlitePool) -> Result<i64> {
        unreachable!("{NO_SESSIONS}")
    }

    async fn kill_waiting_transactions(_: &SqlitePool) -> Result<i64> {
        unreachable!("{NO_SESSIONS}")
    }

    /// Nobody can tell; but a transaction that is left open keeps the next one from beginning.
    async fn open_transactions(pool: &SqlitePool) -> Result<i64> {
        Self::begin(pool).await?.rollback().await.map(|()| 0)
    }

    /// Nobody can tell; but it would keep the handler's transaction, and so the next one, from going on.
    async fn running_for_a_minute(pool: &SqlitePool) -> Result<i64> {
        Self::open_transactions(pool).await
    }

    async fn waiting_for_locks(_: &SqlitePool) -> Result<i64> {
        unreachable!("{NO_SESSIONS}")
    }

    async fn keep_from_writing(_: &mut SqliteConnection, _: &str) -> Result<()> {
        unreachable!("nobody can write to any table while somebody writes to one")
    }

    async fn let_write(_: &mut SqliteConnection) -> Result<()> {
        unreachable!("nobody can write to any table while somebody writes to one")
    }
}
