//! What MySQL and MariaDB are told.

use posthaste::OutboxMessage;
use sqlx::{MySql, MySqlConnection, MySqlPool, Row, Transaction, mysql::MySqlConnectOptions};
use tokio::time::Instant;

use super::{Dialect, PATIENCE, Result, Wire, common_verbs, digits};

/// The sessions of this database that are not the test's own. A session has no name here; the pool of a fresh database marks
/// its own by a lock of the session, which the library knows nothing of.
const WORKERS: &str =
    "s.db = database() AND s.id <> connection_id() AND is_used_lock(concat('posthaste_test_', s.id)) IS NULL";
/// What the pool of a fresh database does with each new session.
pub const MARK_AS_OURS: &str = "SELECT get_lock(concat('posthaste_test_', connection_id()), 0)";

/// Asked of the performance schema: the other tables are old by a tenth of a second, or fail on a payload that is no text. Only a
/// handler's transaction has savepoints.
async fn sessions(pool: &MySqlPool, condition: &str) -> Result<Vec<u64>> {
    let sql = format!(
        "SELECT s.id FROM (
             SELECT t.processlist_id AS id, t.processlist_db AS db, t.processlist_command AS command,
                    t.processlist_state AS state, t.processlist_info AS info, coalesce(e.state = 'ACTIVE', false) AS is_in_transaction,
                    coalesce(e.state = 'ACTIVE' AND e.number_of_savepoints > 0, false) AS is_in_handlers_transaction
             FROM performance_schema.threads t
             LEFT JOIN performance_schema.events_transactions_current e ON e.thread_id = t.thread_id
             WHERE t.processlist_id IS NOT NULL) s
         WHERE {condition}"
    );
    let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(pool).await?;
    // Signed in one, unsigned in the other.
    rows.iter().map(|row| row.try_get_unchecked::<u64, _>(0)).collect()
}

/// Kills sessions, and waits until they are gone if asked to; those that ended by themselves are not counted.
async fn kill(pool: &MySqlPool, ids: Vec<u64>, waits: bool) -> Result<i64> {
    let mut killed = 0;
    for id in &ids {
        match sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {id}"))).execute(pool).await {
            Ok(_) => killed += 1,
            Err(error)
                if error
                    .as_database_error()
                    .is_some_and(|error| error.message().contains("Unknown thread")) => {}
            Err(error) => return Err(error),
        }
    }
    let began = Instant::now();
    while waits && sessions(pool, "s.db = database()").await?.iter().any(|id| ids.contains(id)) {
        assert!(began.elapsed() < PATIENCE, "killed sessions go on");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    Ok(killed)
}

impl Dialect for MySql {
    const WIRE: Wire = Wire::Mysql;
    const AN_ERROR_ABORTS: bool = false;
    const KEY_AS_NUMBER: &str = "conv(left(md5(`key`), 8), 16, 10)";
    const SOMEBODY: &str = "x'00112233445566778899aabbccddeeff'";
    const SEGMENTS: &str =
        "(SELECT partition_id, first_seq, last_seq, json_length(ids) AS size FROM posthaste_outgoing)";
    const PLACES: &str =
        "(SELECT j.id, o.partition_id, o.first_seq + j.n - 1 AS seq FROM posthaste_outgoing o,
                           json_table(o.ids, '$[*]' COLUMNS (n FOR ORDINALITY, id BIGINT PATH '$')) AS j)";
    const OTHER_ROWS: &str = "SELECT count(*) FROM posthaste_pending";
    const TAKES_A_MINUTE: &str = "SELECT sleep(60)";
    const COLUMNS: &str =
        "SELECT concat(table_name, '.', column_name, ' ', column_type) FROM information_schema.columns
                           WHERE table_schema = database() ORDER BY 1";

    common_verbs!(
        "SIGNED",
        "SELECT id, partition_id, seq, CONVERT(queue USING utf8mb4) AS queue, `partition`,
                CONVERT(payload_type USING utf8mb4) AS payload_type, CONVERT(`key` USING utf8mb4) AS `key`,
                CONVERT(headers USING utf8mb4) AS headers, payload, attempts,
                CONVERT(reason USING utf8mb4) AS reason, CONVERT(status USING utf8mb4) AS status, created_at, rejected_at
         FROM posthaste_dead_letter ORDER BY seq"
    );

    fn moment(from_now: i64) -> String {
        format!("CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED) + {from_now} * 1000")
    }

    fn micros(column: &str) -> String {
        column.to_owned()
    }

    fn series(to: u32) -> String {
        digits(to)
    }

    fn after_insert(name: &str, table: &str, statement: &str) -> String {
        format!("CREATE TRIGGER {name} AFTER INSERT ON {table} FOR EACH ROW {statement}")
    }

    fn options(url: &str) -> MySqlConnectOptions {
        url.parse().expect("an URL")
    }

    fn server(options: &MySqlConnectOptions) -> (String, u16) {
        (options.get_host().to_owned(), options.get_port())
    }

    fn by_way_of(options: MySqlConnectOptions, port: u16) -> MySqlConnectOptions {
        options.host("127.0.0.1").port(port).ssl_mode(sqlx::mysql::MySqlSslMode::Disabled)
    }

    async fn begin(pool: &MySqlPool) -> Result<Transaction<'static, Self>> {
        pool.begin().await
    }

    async fn texts(conn: &mut MySqlConnection, sql: &str) -> Result<Vec<Option<String>>> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(conn).await?;
        // A column whose names differ by their case is one of bytes.
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        rows.iter().map(|row| row.try_get::<Option<Vec<u8>>, _>(0).map(|bytes| bytes.map(text))).collect()
    }

    async fn write_effects(
        conn: &mut MySqlConnection,
        messages: &[OutboxMessage],
        prepares: bool,
    ) -> Result<()> {
        let mut insert = sqlx::QueryBuilder::new("INSERT INTO effects (id, partition_id, seq) ");
        insert.push_values(messages, |mut row, message| {
            row.push_bind(message.id.0).push_bind(message.partition_id).push_bind(message.seq);
        });
        insert.build().persistent(prepares).execute(conn).await.map(drop)
    }

    async fn insert_by_hand(conn: &mut MySqlConnection, each: u32, payload: &str) -> Result<()> {
        let sql = format!(
            "INSERT INTO posthaste_incoming (created_at, partition_id, payload_type, payload)
             SELECT {}, p.id, 't', '{payload}' FROM posthaste_partition p CROSS JOIN {} AS s",
            Self::moment(0),
            Self::series(each)
        );
        Self::run(conn, &sql).await?;
        // Not by a statement that reads what it writes: it would wait for messages that others have not committed.
        let rows =
            sqlx::query("SELECT id, partition_id FROM posthaste_incoming WHERE id >= last_insert_id()")
                .fetch_all(&mut *conn)
                .await?;
        for rows in rows.chunks(10_000) {
            let mut insert =
                sqlx::QueryBuilder::new("INSERT INTO posthaste_pending (id, last_id, partitions) ");
            insert.push_values(rows, |mut values, row| {
                let (id, partition): (i64, i32) = (row.get(0), row.get(1));
                values.push_bind(id).push_bind(id).push_bind(format!("[{partition}]"));
            });
            insert.build().execute(&mut *conn).await?;
        }
        Ok(())
    }

    async fn insert_strays(conn: &mut MySqlConnection, queue: &str, each: u32, payload: &str) -> Result<()> {
        // Nobody is told that they are to be sequenced.
        let sql = format!(
            "INSERT INTO posthaste_incoming (created_at, partition_id, payload_type, payload)
             SELECT {}, p.id, 't', '{payload}' FROM posthaste_partition p JOIN posthaste_queue q ON q.id = p.queue_id
             CROSS JOIN {} AS s WHERE q.name = '{queue}'",
            Self::moment(-3_600_000),
            Self::series(each)
        );
        Self::run(conn, &sql).await
    }

    async fn worker_sessions(pool: &MySqlPool) -> Result<i64> {
        Ok(i64::try_from(sessions(pool, WORKERS).await?.len()).expect("a number"))
    }

    async fn idle_worker_sessions(pool: &MySqlPool) -> Result<i64> {
        let idle = format!("{WORKERS} AND s.command = 'Sleep' AND NOT s.is_in_transaction");
        Ok(i64::try_from(sessions(pool, &idle).await?.len()).expect("a number"))
    }

    async fn kill_workers(pool: &MySqlPool) -> Result<i64> {
        let ids = sessions(pool, WORKERS).await?;
        kill(pool, ids, true).await
    }

    async fn kill_some_in_transactions(pool: &MySqlPool) -> Result<i64> {
        let ids =
            sessions(pool, &format!("{WORKERS} AND s.is_in_handlers_transaction AND rand() < 0.5")).await?;
        kill(pool, ids, false).await
    }

    async fn kill_waiting_transactions(pool: &MySqlPool) -> Result<i64> {
        let ids =
            sessions(pool, "s.db = database() AND s.command = 'Sleep' AND s.is_in_handlers_transaction")
                .await?;
        kill(pool, ids, true).await
    }

    async fn open_transactions(pool: &MySqlPool) -> Result<i64> {
        let open = "s.db = database() AND s.command = 'Sleep' AND s.is_in_transaction";
        Ok(i64::try_from(sessions(pool, open).await?.len()).expect("a number"))
    }

    async fn running_for_a_minute(pool: &MySqlPool) -> Result<i64> {
        let running = format!("s.db = database() AND s.info = '{}'", Self::TAKES_A_MINUTE);
        Ok(i64::try_from(sessions(pool, &running).await?.len()).expect("a number"))
    }

    async fn waiting_for_locks(pool: &MySqlPool) -> Result<i64> {
        let waiting = "s.db = database() AND s.state LIKE 'Waiting for table%'";
        Ok(i64::try_from(sessions(pool, waiting).await?.len()).expect("a number"))
    }

    async fn keep_from_writing(conn: &mut MySqlConnection, table: &str) -> Result<()> {
        Self::run(conn, &format!("LOCK TABLES {table} READ")).await
    }

    async fn let_write(conn: &mut MySqlConnection) -> Result<()> {
        Self::run(conn, "UNLOCK TABLES").await
    }
}
