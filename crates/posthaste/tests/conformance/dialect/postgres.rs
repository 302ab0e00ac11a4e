//! What PostgreSQL is told.

use posthaste::OutboxMessage;
use sqlx::{PgConnection, PgPool, Postgres, Transaction, postgres::PgConnectOptions};

use super::{Dialect, Result, Wire, common_verbs};

/// By its name, which the library gives to the sessions that it opens itself.
const WORKERS: &str = "datname = current_database() AND application_name LIKE '%posthaste'";

async fn ask(pool: &PgPool, sql: &str) -> Result<i64> {
    Postgres::number(&mut *pool.acquire().await?, sql).await
}

impl Dialect for Postgres {
    const WIRE: Wire = Wire::Postgres;
    const AN_ERROR_ABORTS: bool = true;
    const KEY_AS_NUMBER: &str = "('x' || left(md5(key), 8))::bit(32)::bigint";
    const SOMEBODY: &str = "gen_random_uuid()";
    const SEGMENTS: &str = "(SELECT partition_id, last_seq - cardinality(ids) + 1 AS first_seq, last_seq, cardinality(ids) AS size
                             FROM posthaste_outgoing)";
    const PLACES: &str = "(SELECT u.id, o.partition_id, o.last_seq - cardinality(o.ids) + u.n AS seq
                           FROM posthaste_outgoing o CROSS JOIN unnest(o.ids) WITH ORDINALITY AS u (id, n))";
    const OTHER_ROWS: &str = "SELECT 0";
    const TAKES_A_MINUTE: &str = "SELECT pg_sleep(60)";
    const COLUMNS: &str = "SELECT table_schema || '.' || table_name || '.' || column_name || ' ' || data_type FROM information_schema.columns
                           WHERE table_schema NOT LIKE 'pg%' AND table_schema <> 'information_schema' ORDER BY 1";

    common_verbs!(
        "bigint",
        "SELECT id, partition_id, seq, queue, partition, payload_type, key, headers, payload, attempts, reason, status,
                (extract(epoch FROM created_at) * 1000000)::bigint AS created_at,
                (extract(epoch FROM rejected_at) * 1000000)::bigint AS rejected_at
         FROM posthaste_dead_letter ORDER BY seq"
    );

    fn moment(from_now: i64) -> String {
        format!("clock_timestamp() + interval '{from_now} milliseconds'")
    }

    fn micros(column: &str) -> String {
        format!("(extract(epoch FROM {column}) * 1000000)::bigint")
    }

    fn series(to: u32) -> String {
        format!("(SELECT n FROM generate_series(1, {to}) AS n)")
    }

    fn after_insert(name: &str, table: &str, statement: &str) -> String {
        format!(
            "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 {statement};
                 RETURN NULL;
             END $$;
             CREATE TRIGGER {name} AFTER INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {name}()"
        )
    }

    fn options(url: &str) -> PgConnectOptions {
        url.parse().expect("an URL")
    }

    fn server(options: &PgConnectOptions) -> (String, u16) {
        (options.get_host().to_owned(), options.get_port())
    }

    fn by_way_of(options: PgConnectOptions, port: u16) -> PgConnectOptions {
        options.host("127.0.0.1").port(port).ssl_mode(sqlx::postgres::PgSslMode::Disable)
    }

    async fn begin(pool: &PgPool) -> Result<Transaction<'static, Self>> {
        pool.begin().await
    }

    async fn texts(conn: &mut PgConnection, sql: &str) -> Result<Vec<Option<String>>> {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(conn).await
    }

    async fn write_effects(
        conn: &mut PgConnection,
        messages: &[OutboxMessage],
        prepares: bool,
    ) -> Result<()> {
        // By its whole name: a handler may have set where names are looked for.
        let insert = "INSERT INTO public.effects (id, partition_id, seq)
                      SELECT * FROM unnest($1::bigint[], $2::int[], $3::bigint[])";
        let ids: Vec<_> = messages.iter().map(|message| message.id.0).collect();
        let partitions: Vec<_> = messages.iter().map(|message| message.partition_id).collect();
        let seqs: Vec<_> = messages.iter().map(|message| message.seq).collect();
        let insert = sqlx::query(insert).bind(ids).bind(partitions).bind(seqs).persistent(prepares);
        insert.execute(conn).await.map(drop)
    }

    async fn insert_by_hand(conn: &mut PgConnection, each: u32, payload: &str) -> Result<()> {
        let sql = format!(
            "INSERT INTO posthaste_incoming (partition_id, payload_type, payload)
             SELECT id, 't', '{payload}' FROM posthaste_partition, generate_series(1, {each})"
        );
        Self::run(conn, &sql).await
    }

    async fn insert_strays(conn: &mut PgConnection, queue: &str, each: u32, payload: &str) -> Result<()> {
        // Their stamps are of long ago.
        let sql = format!(
            "INSERT INTO posthaste_incoming (stamp, created_at, partition_id, payload_type, payload)
             SELECT '3', {}, p.id, 't', '{payload}' FROM posthaste_partition p JOIN posthaste_queue q ON q.id = p.queue_id,
             generate_series(1, {each}) WHERE q.name = '{queue}'",
            Self::moment(-3_600_000)
        );
        Self::run(conn, &sql).await
    }

    async fn worker_sessions(pool: &PgPool) -> Result<i64> {
        ask(pool, &format!("SELECT count(*) FROM pg_stat_activity WHERE {WORKERS}")).await
    }

    async fn idle_worker_sessions(pool: &PgPool) -> Result<i64> {
        ask(pool, &format!("SELECT count(*) FROM pg_stat_activity WHERE {WORKERS} AND state = 'idle'")).await
    }

    async fn kill_workers(pool: &PgPool) -> Result<i64> {
        let kill =
            format!("SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE {WORKERS}");
        ask(pool, &kill).await
    }

    async fn kill_some_in_transactions(pool: &PgPool) -> Result<i64> {
        let kill = format!(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE {WORKERS} AND xact_start < clock_timestamp() AND random() < 0.5 AND pid <> pg_backend_pid()"
        );
        ask(pool, &kill).await
    }

    async fn kill_waiting_transactions(pool: &PgPool) -> Result<i64> {
        let kill = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                    WHERE datname = current_database() AND state = 'idle in transaction'";
        ask(pool, kill).await
    }

    async fn open_transactions(pool: &PgPool) -> Result<i64> {
        let open = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
        ask(pool, open).await
    }

    async fn running_for_a_minute(pool: &PgPool) -> Result<i64> {
        let running = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query = '{}' AND state <> 'idle'",
            Self::TAKES_A_MINUTE
        );
        ask(pool, &running).await
    }

    async fn waiting_for_locks(pool: &PgPool) -> Result<i64> {
        let waiting = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        ask(pool, waiting).await
    }

    async fn keep_from_writing(conn: &mut PgConnection, table: &str) -> Result<()> {
        Self::run(conn, &format!("BEGIN; LOCK TABLE {table} IN SHARE MODE")).await
    }

    async fn let_write(conn: &mut PgConnection) -> Result<()> {
        Self::run(conn, "COMMIT").await
    }
}
