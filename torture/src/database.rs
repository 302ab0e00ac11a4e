//! The tables that are the test's own, in each database's words: the ledger, which has a row for each transaction that enqueued, and the
//! effects of transactional handlers, whose key does not keep any of them from being there twice.

use anyhow::Result;
use posthaste::Backend;
use sqlx::{
    Connection, MySql, Pool, Postgres, QueryBuilder, Row, Sqlite, Transaction,
    mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlSslMode},
    postgres::{PgConnectOptions, PgPoolOptions, PgSslMode},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};
use std::time::Duration;

use crate::{
    circumstances::Isolation,
    content::Name,
    history::{Fate, Handling},
};

const fn words(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "READ COMMITTED",
        Isolation::RepeatableRead => "REPEATABLE READ",
        Isolation::Serializable => "SERIALIZABLE",
    }
}

/// A kind of database to torture an outbox on.
pub trait Ground: Backend {
    fn options(url: &str) -> Result<<Self::Connection as Connection>::Options>;
    /// A pool of so many connections.
    fn pool(url: &str, most: u32) -> impl Future<Output = Result<Pool<Self>>> + Send;
    /// From now on, its connections are to this server.
    fn lead_to(pool: &Pool<Self>, url: &str) -> Result<()> {
        pool.set_connect_options(Self::options(url)?);
        Ok(())
    }
    /// The ledger and the effects, empty.
    fn make_tables(pool: &Pool<Self>) -> impl Future<Output = Result<()>> + Send;
    fn begin(
        pool: &Pool<Self>,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Transaction<'static, Self>, sqlx::Error>> + Send;
    fn write_ledger(
        conn: &mut Self::Connection,
        producer: u32,
        transaction: u64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn write_effects(
        conn: &mut Self::Connection,
        effects: &[Handling],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
    fn read_ledger(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<(u32, u64)>>> + Send;
    fn read_effects(pool: &Pool<Self>) -> impl Future<Output = Result<Vec<Handling>>> + Send;
    /// Whether the database can be written to: a row of nobody's, which nobody reads.
    fn answers(pool: &Pool<Self>) -> impl Future<Output = bool> + Send;
    /// What time it has, in seconds.
    fn clock(pool: &Pool<Self>) -> impl Future<Output = Result<i64>> + Send;
    /// What is committed is in the files, not only in the log.
    fn flush(pool: &Pool<Self>) -> impl Future<Output = Result<()>> + Send;
    /// Ends so many sessions of others, whichever; returns how many there were.
    fn end_sessions(pool: &Pool<Self>, most: i64) -> impl Future<Output = Result<usize>> + Send;
}

const DROP: [&str; 2] = ["DROP TABLE IF EXISTS torture_ledger", "DROP TABLE IF EXISTS torture_effects"];
const LEDGER: &str =
    "CREATE TABLE torture_ledger (producer BIGINT NOT NULL, transaction_number BIGINT NOT NULL)";
/// The number is filled in; all else is what the handler wrote.
const EFFECTS: &str = "CREATE TABLE torture_effects (number {number}, handled_at BIGINT NOT NULL, process BIGINT NOT NULL,
    call_number BIGINT NOT NULL, partition_number BIGINT NOT NULL, seq BIGINT NOT NULL, id BIGINT NOT NULL,
    producer BIGINT NOT NULL, transaction_number BIGINT NOT NULL, place BIGINT NOT NULL, digest BIGINT NOT NULL)";
const INSERT: &str =
    "INSERT INTO torture_effects (handled_at, process, call_number, partition_number, seq, id, producer,
    transaction_number, place, digest) ";
const READ_LEDGER: &str = "SELECT producer, transaction_number FROM torture_ledger WHERE producer >= 0";
const READ_EFFECTS: &str =
    "SELECT handled_at, process, call_number, partition_number, seq, id, producer, transaction_number, place,
    digest FROM torture_effects ORDER BY number";

fn signed(number: u64) -> i64 {
    number.cast_signed()
}

macro_rules! ground {
    ($db:ty, number: $number:literal, ledger: $ledger:literal, clock: $clock:literal, $($rest:item)*) => {
        impl Ground for $db {
            async fn make_tables(pool: &Pool<Self>) -> Result<()> {
                for statement in DROP.into_iter().chain([LEDGER]) {
                    sqlx::raw_sql(statement).execute(pool).await?;
                }
                let effects = EFFECTS.replace("{number}", $number);
                sqlx::raw_sql(sqlx::AssertSqlSafe(effects)).execute(pool).await?;
                Ok(())
            }

            async fn answers(pool: &Pool<Self>) -> bool {
                let write = sqlx::raw_sql("INSERT INTO torture_ledger VALUES (-1, 0)").execute(pool);
                tokio::time::timeout(Duration::from_secs(1), write).await.is_ok_and(|done| done.is_ok())
            }

            async fn clock(pool: &Pool<Self>) -> Result<i64> {
                Ok(sqlx::query_scalar($clock).fetch_one(pool).await?)
            }

            async fn write_ledger(
                conn: &mut Self::Connection,
                producer: u32,
                transaction: u64,
            ) -> Result<(), sqlx::Error> {
                sqlx::query($ledger).bind(i64::from(producer)).bind(signed(transaction)).execute(conn).await?;
                Ok(())
            }

            async fn write_effects(conn: &mut Self::Connection, effects: &[Handling]) -> Result<(), sqlx::Error> {
                // SQLite takes few values at once, by default.
                for effects in effects.chunks(100) {
                    let mut insert = QueryBuilder::<Self>::new(INSERT);
                    insert.push_values(effects, |mut row, effect| {
                        let name = effect.name.unwrap_or(Name { producer: 0, transaction: 0, place: 0 });
                        row.push_bind(signed(effect.at))
                            .push_bind(i64::from(effect.process))
                            .push_bind(signed(effect.call))
                            .push_bind(i64::from(effect.partition))
                            .push_bind(effect.seq)
                            .push_bind(effect.id)
                            .push_bind(i64::from(name.producer))
                            .push_bind(signed(name.transaction))
                            .push_bind(i64::from(name.place))
                            .push_bind(signed(effect.digest));
                    });
                    insert.build().execute(&mut *conn).await?;
                }
                Ok(())
            }

            async fn read_ledger(pool: &Pool<Self>) -> Result<Vec<(u32, u64)>> {
                let rows = sqlx::query(READ_LEDGER).fetch_all(pool).await?;
                let read = |row: &<Self as sqlx::Database>::Row| {
                    let (producer, transaction): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
                    Ok((u32::try_from(producer)?, transaction.cast_unsigned()))
                };
                rows.iter().map(read).collect()
            }

            async fn read_effects(pool: &Pool<Self>) -> Result<Vec<Handling>> {
                let rows = sqlx::query(READ_EFFECTS).fetch_all(pool).await?;
                let read = |row: &<Self as sqlx::Database>::Row| {
                    let number = |place: usize| row.try_get::<i64, _>(place);
                    Ok(Handling {
                        at: number(0)?.cast_unsigned(),
                        process: u32::try_from(number(1)?)?,
                        call: number(2)?.cast_unsigned(),
                        partition: u32::try_from(number(3)?)?,
                        seq: number(4)?,
                        id: number(5)?,
                        name: Some(Name {
                            producer: u32::try_from(number(6)?)?,
                            transaction: number(7)?.cast_unsigned(),
                            place: u32::try_from(number(8)?)?,
                        }),
                        digest: number(9)?.cast_unsigned(),
                        fate: Fate::Done,
                    })
                };
                rows.iter().map(read).collect()
            }

            $($rest)*
        }
    };
}

/// How long to wait for a connection: longer than any outage, so that it is the database that says what is wrong.
const ACQUIRE: Duration = Duration::from_secs(20);

ground! {
    Postgres,
    number: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    ledger: "INSERT INTO torture_ledger VALUES ($1, $2)",
    clock: "SELECT EXTRACT(epoch FROM clock_timestamp())::bigint",

    fn options(url: &str) -> Result<PgConnectOptions> {
        let options: PgConnectOptions = url.parse()?;
        Ok(options.ssl_mode(PgSslMode::Disable))
    }

    async fn pool(url: &str, most: u32) -> Result<Pool<Self>> {
        let options = Self::options(url)?;
        Ok(PgPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE).connect_with(options).await?)
    }

    async fn begin(pool: &Pool<Self>, isolation: Isolation) -> Result<Transaction<'static, Self>, sqlx::Error> {
        let begin = format!("BEGIN ISOLATION LEVEL {}", words(isolation));
        pool.begin_with(sqlx::AssertSqlSafe(begin)).await
    }

    async fn flush(pool: &Pool<Self>) -> Result<()> {
        sqlx::raw_sql("CHECKPOINT").execute(pool).await?;
        Ok(())
    }

    async fn end_sessions(pool: &Pool<Self>, most: i64) -> Result<usize> {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                   WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
                   ORDER BY random() LIMIT $1";
        Ok(sqlx::query(sql).bind(most).fetch_all(pool).await?.len())
    }
}

ground! {
    MySql,
    number: "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY",
    ledger: "INSERT INTO torture_ledger VALUES (?, ?)",
    clock: "SELECT UNIX_TIMESTAMP()",

    fn options(url: &str) -> Result<MySqlConnectOptions> {
        let options: MySqlConnectOptions = url.parse()?;
        Ok(options.ssl_mode(MySqlSslMode::Disabled))
    }

    async fn pool(url: &str, most: u32) -> Result<Pool<Self>> {
        let options = Self::options(url)?;
        Ok(MySqlPoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE).connect_with(options).await?)
    }

    async fn begin(pool: &Pool<Self>, isolation: Isolation) -> Result<Transaction<'static, Self>, sqlx::Error> {
        let begin = format!("SET TRANSACTION ISOLATION LEVEL {}; START TRANSACTION", words(isolation));
        pool.begin_with(sqlx::AssertSqlSafe(begin)).await
    }

    async fn flush(pool: &Pool<Self>) -> Result<()> {
        sqlx::raw_sql("FLUSH TABLES").execute(pool).await?;
        Ok(())
    }

    async fn end_sessions(pool: &Pool<Self>, most: i64) -> Result<usize> {
        // On MySQL, information_schema.processlist cannot be read while anybody's statement has bytes that are no text.
        let sql =
            "SELECT CAST(processlist_id AS SIGNED) FROM performance_schema.threads WHERE processlist_id <> CONNECTION_ID()
             AND processlist_user NOT IN ('system user', 'event_scheduler') ORDER BY RAND() LIMIT ?";
        let sessions: Vec<i64> = sqlx::query_scalar(sql).bind(most).fetch_all(pool).await?;
        for session in &sessions {
            // It may have ended meanwhile.
            sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {session}"))).execute(pool).await.ok();
        }
        Ok(sessions.len())
    }
}

ground! {
    Sqlite,
    number: "INTEGER PRIMARY KEY AUTOINCREMENT",
    ledger: "INSERT INTO torture_ledger VALUES (?, ?)",
    clock: "SELECT unixepoch()",

    fn options(url: &str) -> Result<SqliteConnectOptions> {
        let options: SqliteConnectOptions = url.parse()?;
        let options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
        Ok(options.busy_timeout(Duration::from_secs(10)))
    }

    async fn pool(url: &str, most: u32) -> Result<Pool<Self>> {
        let options = Self::options(url)?;
        let pool = SqlitePoolOptions::new().max_connections(most).acquire_timeout(ACQUIRE);
        // When the disk is full, SQLite ends a transaction by itself. sqlx does not hear of that, and what it begins after it on such a
        // connection would never end.
        let pool = pool.after_release(|conn, _| Box::pin(async { conn.ping().await.map(|()| !conn.is_in_transaction()) }));
        Ok(pool.connect_with(options).await?)
    }

    /// There is one writer at a time, and two ways to become it.
    async fn begin(pool: &Pool<Self>, isolation: Isolation) -> Result<Transaction<'static, Self>, sqlx::Error> {
        match isolation {
            Isolation::ReadCommitted => pool.begin().await,
            Isolation::RepeatableRead | Isolation::Serializable => pool.begin_with("BEGIN IMMEDIATE").await,
        }
    }

    async fn flush(pool: &Pool<Self>) -> Result<()> {
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(pool).await?;
        Ok(())
    }

    async fn end_sessions(_pool: &Pool<Self>, _most: i64) -> Result<usize> {
        anyhow::bail!("a file has no sessions")
    }
}
