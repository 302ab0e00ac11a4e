//! What the cases ask of a database in its own words. A case says what it wants; where databases differ in how they are told,
//! the words are here, in a file for each.

mod mysql;
mod postgres;
mod sqlite;

use std::time::Duration;

pub use self::mysql::MARK_AS_OURS;
use posthaste::{Backend, OutboxMessage};
use sqlx::{Connection, Pool, Transaction};

type Result<T, E = sqlx::Error> = std::result::Result<T, E>;

/// How to connect to a database of this kind.
pub type Options<DB> = <<DB as sqlx::Database>::Connection as Connection>::Options;

/// A kind of database that an outbox works on.
pub trait Tested: Dialect + Backend {}

impl<DB: Dialect + Backend> Tested for DB {}

/// A dead letter, whole. Times are in microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub id: i64,
    pub partition_id: i32,
    pub seq: i64,
    pub queue: String,
    pub partition: i32,
    pub payload_type: String,
    pub key: Option<String>,
    pub headers: Option<String>,
    pub payload: Vec<u8>,
    pub created_at: i64,
    pub attempts: i32,
    pub reason: String,
    pub status: String,
    pub rejected_at: i64,
}

/// The effect of a message, as a handler wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    pub partition_id: i32,
    pub seq: i64,
    pub id: i64,
}

/// How clients and servers talk, if they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Postgres,
    Mysql,
    /// The database is a file.
    None,
}

/// The words of a kind of database. Cases use portable SQL, and these for the rest. A statement takes no parameters: what
/// it is about is in its text.
pub trait Dialect: sqlx::Database {
    const WIRE: Wire;
    /// A statement that fails makes the transaction unusable, up to the savepoint before it.
    const AN_ERROR_ABORTS: bool;
    /// The first four bytes of the MD5 of a message's key, as a number.
    const KEY_AS_NUMBER: &'static str;
    /// An owner of a lease who does not exist.
    const SOMEBODY: &'static str;
    /// A table of segments: `partition_id`, `first_seq`, `last_seq`, and `size`, the number of messages.
    const SEGMENTS: &'static str;
    /// A table of what the segments say: `id`, `partition_id`, `seq`.
    const PLACES: &'static str;
    /// How many rows there are that no other database has, and that are to go with what is settled.
    const OTHER_ROWS: &'static str;
    /// A statement that takes a minute.
    const TAKES_A_MINUTE: &'static str;
    /// The user's columns with their types, as texts.
    const COLUMNS: &'static str;

    /// A moment that is so many milliseconds away, as the outbox's tables keep moments.
    fn moment(from_now: i64) -> String;
    /// A moment in such a table, in microseconds.
    fn micros(column: &str) -> String;
    /// A table of the numbers from 1 to this one: `n`.
    fn series(to: u32) -> String;
    /// Makes a trigger that runs a statement, in which `NEW` is the row, for each row that the table gets.
    fn after_insert(name: &str, table: &str, statement: &str) -> String;

    /// How to connect to what an URL names.
    fn options(url: &str) -> Options<Self>;
    /// The server that somebody connects to: its host and its port.
    fn server(options: &Options<Self>) -> (String, u16);
    /// The same by way of a port on this machine, and in the clear.
    fn by_way_of(options: Options<Self>, port: u16) -> Options<Self>;

    /// Begins a transaction that will write.
    fn begin(pool: &Pool<Self>) -> impl Future<Output = Result<Transaction<'static, Self>>> + Send;
    /// Runs statements, of which nothing is prepared.
    fn run(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = Result<()>> + Send;
    /// The one number that a query finds.
    fn number(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = Result<i64>> + Send;
    /// The first column of what a query finds, by a statement that is prepared and kept.
    fn numbers(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = Result<Vec<i64>>> + Send;
    /// The first column of what a query finds.
    fn texts(
        conn: &mut Self::Connection,
        sql: &str,
    ) -> impl Future<Output = Result<Vec<Option<String>>>> + Send;
    /// The first column of what a query finds.
    fn bytes(conn: &mut Self::Connection, sql: &str) -> impl Future<Output = Result<Vec<Vec<u8>>>> + Send;
    /// Reads the first of more rows than fit into any buffer, and panics before it reads another.
    fn panic_in_a_stream(conn: &mut Self::Connection) -> impl Future<Output = ()> + Send;

    /// Writes the effects of messages, a row each, in one statement; which leaves nothing in the session unless it is
    /// prepared.
    fn write_effects(
        conn: &mut Self::Connection,
        messages: &[OutboxMessage],
        prepares: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    /// Writes the effect of a message.
    fn write(
        conn: &mut Self::Connection,
        message: &OutboxMessage,
    ) -> impl Future<Output = Result<()>> + Send {
        Self::write_effects(conn, std::slice::from_ref(message), true)
    }
    /// All effects, by their places.
    fn effects(conn: &mut Self::Connection) -> impl Future<Output = Result<Vec<Effect>>> + Send;
    /// All dead letters, by their seqs.
    fn dead_letters(conn: &mut Self::Connection) -> impl Future<Output = Result<Vec<DeadLetter>>> + Send;

    /// Enqueues so many messages to each partition of all queues without the library, as any client may, on a connection
    /// that is in a transaction.
    fn insert_by_hand(
        conn: &mut Self::Connection,
        each: u32,
        payload: &str,
    ) -> impl Future<Output = Result<()>> + Send;
    /// The same to one queue, an hour ago, so that no tick will ever look at them: as somebody restores old messages who
    /// knows nothing of the outbox. On a connection that is in a transaction.
    fn insert_strays(
        conn: &mut Self::Connection,
        queue: &str,
        each: u32,
        payload: &str,
    ) -> impl Future<Output = Result<()>> + Send;

    /// How many connections the workers of all processes have to the database.
    fn worker_sessions(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// How many of these are doing nothing.
    fn idle_worker_sessions(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// Kills the sessions of all workers, whatever they are doing; returns how many once they are gone.
    fn kill_workers(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// Kills about half of the workers' sessions that are in transactions; returns how many.
    fn kill_some_in_transactions(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// Kills the sessions whose transactions wait for what their clients will say next; returns how many once they are
    /// gone.
    fn kill_waiting_transactions(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// How many sessions have a transaction open and do nothing.
    fn open_transactions(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// How many sessions run the statement that takes a minute.
    fn running_for_a_minute(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// How many sessions wait for a lock.
    fn waiting_for_locks(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// Keeps everybody from writing to a table until [`let_write`](Self::let_write) on the same connection.
    fn keep_from_writing(conn: &mut Self::Connection, table: &str)
    -> impl Future<Output = Result<()>> + Send;
    fn let_write(conn: &mut Self::Connection) -> impl Future<Output = Result<()>> + Send;
}

/// The numbers of digits cross joined, as a table of the numbers from 1, for databases whose recursion is limited.
fn digits(to: u32) -> String {
    const DIGIT: &str =
        "(SELECT 0 AS d UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3 UNION ALL SELECT 4
         UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7 UNION ALL SELECT 8 UNION ALL SELECT 9)";
    // Of the last number less one: a digit more would be ten times the rows to go through.
    let places = to.saturating_sub(1).max(1).ilog10() + 1;
    let tables: Vec<_> = (0..places).map(|place| format!("{DIGIT} AS d{place}")).collect();
    let sum: Vec<_> = (0..places).map(|place| format!("d{place}.d * {}", 10_u32.pow(place))).collect();
    let number = format!("{} + 1", sum.join(" + "));
    format!("(SELECT {number} AS n FROM {} WHERE {number} <= {to})", tables.join(" CROSS JOIN "))
}

/// How long a busy database, or one that ends a session, is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// The verbs that differ in types alone.
macro_rules! common_verbs {
    ($integer:literal, $dead_letters:literal) => {
        async fn run(conn: &mut Self::Connection, sql: &str) -> Result<()> {
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(conn).await.map(drop)
        }

        async fn number(conn: &mut Self::Connection, sql: &str) -> Result<i64> {
            // Some give a sum, or a difference, another type than its parts have.
            let sql = format!(concat!("SELECT CAST(({}) AS ", $integer, ")"), sql);
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(conn).await
        }

        async fn numbers(conn: &mut Self::Connection, sql: &str) -> Result<Vec<i64>> {
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(conn).await
        }

        async fn bytes(conn: &mut Self::Connection, sql: &str) -> Result<Vec<Vec<u8>>> {
            sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(conn).await
        }

        async fn panic_in_a_stream(conn: &mut Self::Connection) {
            // Wide rows rather than many: whoever goes on reads all that is left first, and should not be busy with it.
            let sql = format!("SELECT n, '{}' AS wide FROM {} AS s", "x".repeat(65_536), Self::series(1024));
            let mut rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch(conn);
            let row = std::future::poll_fn(|cx| rows.as_mut().poll_next(cx)).await;
            row.expect("a row").expect("no error");
            panic!("with an open stream");
        }

        async fn effects(conn: &mut Self::Connection) -> Result<Vec<super::Effect>> {
            let sql = "SELECT partition_id, seq, id FROM effects ORDER BY partition_id, seq";
            let rows: Vec<(i32, i64, i64)> = sqlx::query_as(sql).fetch_all(conn).await?;
            let effect = |(partition_id, seq, id)| super::Effect { partition_id, seq, id };
            Ok(rows.into_iter().map(effect).collect())
        }

        async fn dead_letters(conn: &mut Self::Connection) -> Result<Vec<super::DeadLetter>> {
            use sqlx::Row;
            let rows = sqlx::query($dead_letters).fetch_all(conn).await?;
            let letter = |row: &<Self as sqlx::Database>::Row| {
                Ok(super::DeadLetter {
                    id: row.try_get("id")?,
                    partition_id: row.try_get("partition_id")?,
                    seq: row.try_get("seq")?,
                    queue: row.try_get("queue")?,
                    partition: row.try_get("partition")?,
                    payload_type: row.try_get("payload_type")?,
                    key: row.try_get("key")?,
                    headers: row.try_get("headers")?,
                    payload: row.try_get("payload")?,
                    created_at: row.try_get("created_at")?,
                    attempts: row.try_get("attempts")?,
                    reason: row.try_get("reason")?,
                    status: row.try_get("status")?,
                    rejected_at: row.try_get("rejected_at")?,
                })
            };
            rows.iter().map(letter).collect()
        }
    };
}
use common_verbs;
