//! What the adapter says in each database's own words: how it connects, the table that transactional handlers write to, and the
//! question whether anything is left.

use std::time::Duration;

use anyhow::Result;
use bench_harness::{Origin, Target};
use posthaste::Backend;
use sqlx::{
    MySql, MySqlConnection, PgConnection, Pool, Postgres, QueryBuilder, Sqlite, SqliteConnection,
    mysql::MySqlPoolOptions,
    postgres::{PgConnectOptions, PgPoolOptions},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

/// Beside a connection for each producer.
const SPARE_CONNECTIONS: u32 = 2;
const MAKE_EFFECTS: &str = "CREATE TABLE effects (producer int NOT NULL, number bigint NOT NULL)";
const COUNT_EFFECTS: &str = "SELECT (SELECT count(*) FROM effects), (SELECT count(*) FROM (SELECT DISTINCT producer, number FROM effects) AS different)";
const ANYTHING_LEFT: &str = "SELECT count(*) FROM (SELECT 1 FROM posthaste_incoming LIMIT 1) AS one";

pub trait Own: Backend {
    fn pool(target: &Target) -> impl Future<Output = Result<Pool<Self>>> + Send;
    fn make_effects(pool: &Pool<Self>) -> impl Future<Output = Result<()>> + Send;
    /// Rows, and different rows, of what was inserted.
    fn count_effects(pool: &Pool<Self>) -> impl Future<Output = Result<(u64, u64)>> + Send;
    fn is_clean(pool: &Pool<Self>) -> impl Future<Output = Result<bool>> + Send;
    /// One statement for all.
    fn insert_effects(
        conn: &mut Self::Connection,
        origins: &[Origin],
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

fn connections(target: &Target) -> u32 {
    target.load.producers + SPARE_CONNECTIONS
}

fn number(origin: &Origin) -> i64 {
    origin.number.cast_signed()
}

macro_rules! questions {
    () => {
        async fn make_effects(pool: &Pool<Self>) -> Result<()> {
            sqlx::raw_sql(MAKE_EFFECTS).execute(pool).await?;
            Ok(())
        }

        async fn count_effects(pool: &Pool<Self>) -> Result<(u64, u64)> {
            let (rows, different): (i64, i64) = sqlx::query_as(COUNT_EFFECTS).fetch_one(pool).await?;
            Ok((rows.try_into()?, different.try_into()?))
        }

        async fn is_clean(pool: &Pool<Self>) -> Result<bool> {
            let left: i64 = sqlx::query_scalar(ANYTHING_LEFT).fetch_one(pool).await?;
            Ok(left == 0)
        }
    };
}

impl Own for Postgres {
    questions!();

    async fn pool(target: &Target) -> Result<Pool<Self>> {
        let mut options: PgConnectOptions = target.url.parse()?;
        if target.load.pooled {
            // A session of a pooler does not keep prepared statements.
            options = options.statement_cache_capacity(0);
        }
        Ok(PgPoolOptions::new().max_connections(connections(target)).connect_with(options).await?)
    }

    async fn insert_effects(conn: &mut PgConnection, origins: &[Origin]) -> Result<(), sqlx::Error> {
        let producers: Vec<_> = origins.iter().map(|origin| origin.producer.cast_signed()).collect();
        let numbers: Vec<_> = origins.iter().map(number).collect();
        sqlx::query("INSERT INTO effects SELECT * FROM UNNEST($1::int4[], $2::int8[])")
            .bind(producers)
            .bind(numbers)
            .execute(conn)
            .await
            .map(drop)
    }
}

impl Own for MySql {
    questions!();

    async fn pool(target: &Target) -> Result<Pool<Self>> {
        Ok(MySqlPoolOptions::new().max_connections(connections(target)).connect(&target.url).await?)
    }

    async fn insert_effects(conn: &mut MySqlConnection, origins: &[Origin]) -> Result<(), sqlx::Error> {
        let mut insert = QueryBuilder::new("INSERT INTO effects ");
        insert.push_values(origins, |mut row, origin| {
            row.push_bind(origin.producer).push_bind(number(origin));
        });
        insert.build().execute(conn).await.map(drop)
    }
}

impl Own for Sqlite {
    questions!();

    async fn pool(target: &Target) -> Result<Pool<Self>> {
        let options: SqliteConnectOptions = target.url.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(60));
        Ok(SqlitePoolOptions::new().max_connections(connections(target)).connect_with(options).await?)
    }

    async fn insert_effects(conn: &mut SqliteConnection, origins: &[Origin]) -> Result<(), sqlx::Error> {
        let mut insert = QueryBuilder::new("INSERT INTO effects ");
        insert.push_values(origins, |mut row, origin| {
            row.push_bind(origin.producer).push_bind(number(origin));
        });
        insert.build().execute(conn).await.map(drop)
    }
}
