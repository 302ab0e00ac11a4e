//! A fresh database for each test, on a server that the environment names. It is removed when the test succeeds and
//! kept when it fails.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

use sqlx::{Connection, MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool, pool::PoolOptions};

use crate::dialect::{Dialect, MARK_AS_OURS, Tested};

/// A server of a kind of database, and how tests get a fresh database there.
pub trait Ground: 'static {
    type Db: Dialect;
    /// What keeps the database, and its name there.
    type Place;
    /// The module that its tests are stamped into.
    const NAME: &'static str;
    /// The oldest version that is supported.
    const OLDEST: (u32, u32);

    /// A pool on a new database, its URL, and its place.
    async fn create() -> (Pool<Self::Db>, String, Self::Place);
    async fn remove(place: Self::Place);
    async fn version(pool: &Pool<Self::Db>) -> (u32, u32);
    async fn count_tables(pool: &Pool<Self::Db>) -> i64;
}

/// A server of a kind of database that an outbox works on.
pub trait Server: Ground<Db: Tested> {}

impl<S: Ground<Db: Tested>> Server for S {}

/// A database that only this test uses.
pub struct Fresh<S: Ground> {
    pub pool: Pool<S::Db>,
    /// For another process.
    pub url: String,
    place: S::Place,
}

impl<S: Ground> Fresh<S> {
    pub async fn create() -> Self {
        let (pool, url, place) = S::create().await;
        Self { pool, url, place }
    }

    /// To be called at the end: a test that fails does not get there, and its database can be looked at.
    pub async fn remove(self) {
        self.pool.close().await;
        S::remove(self.place).await;
    }
}

/// The kinds of databases, by the names that the macro uses.
pub mod servers {
    pub enum Sqlite {}
    pub enum Postgres {}
    pub enum Mariadb {}
    pub enum Mysql {}
}

fn server_url(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run `cargo xtask test`, or set it to a server's URL")
    })
}

/// A name that no other test has, in this run or another.
fn fresh_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let started =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.as_nanos());
    format!("posthaste_{}_{}_{}", started, std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The URL of another database on the same server.
fn with_database(url: &str, name: &str) -> String {
    let (base, parameters) = url.split_once('?').map_or((url, None), |(base, rest)| (base, Some(rest)));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let server = base[authority..].find('/').map_or(base, |at| &base[..authority + at]);
    parameters.map_or_else(|| format!("{server}/{name}"), |rest| format!("{server}/{name}?{rest}"))
}

fn leading_numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Where its files are: in memory, if there is a place for that.
pub fn sqlite_folder() -> PathBuf {
    std::env::var_os("POSTHASTE_TEST_SQLITE_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from)
}

impl Ground for servers::Sqlite {
    type Db = Sqlite;
    type Place = tempfile::TempDir;
    const NAME: &str = "sqlite";
    const OLDEST: (u32, u32) = (3, 35);

    async fn create() -> (SqlitePool, String, Self::Place) {
        let folder = tempfile::tempdir_in(sqlite_folder()).expect("a folder");
        let url = format!("sqlite://{}", folder.path().join("test.db").display());
        (SqlitePool::connect_with(Sqlite::options(&url)).await.expect("a database"), url, folder)
    }

    async fn remove(place: Self::Place) {
        place.close().expect("the folder goes");
    }

    async fn version(pool: &SqlitePool) -> (u32, u32) {
        let version: String =
            sqlx::query_scalar("SELECT sqlite_version()").fetch_one(pool).await.expect("a version");
        leading_numbers(&version)
    }

    async fn count_tables(pool: &SqlitePool) -> i64 {
        let sql = "SELECT count(*) FROM sqlite_schema WHERE type = 'table'";
        sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
    }
}

impl Ground for servers::Postgres {
    type Db = Postgres;
    type Place = (String, String);
    const NAME: &str = "postgres";
    const OLDEST: (u32, u32) = (13, 0);

    async fn create() -> (PgPool, String, Self::Place) {
        let (url, name) = (server_url("POSTHASTE_TEST_POSTGRES_URL"), fresh_name());
        let mut admin = sqlx::PgConnection::connect(&url).await.expect("the server answers");
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&mut admin).await.expect("a database");
        admin.close().await.expect("it closes");
        let fresh = with_database(&url, &name);
        (PgPool::connect_with(Postgres::options(&fresh)).await.expect("it answers"), fresh, (url, name))
    }

    async fn remove((url, name): Self::Place) {
        let mut admin = sqlx::PgConnection::connect(&url).await.expect("the server answers");
        let drop = sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
        sqlx::query(drop).execute(&mut admin).await.expect("the database goes");
    }

    async fn version(pool: &PgPool) -> (u32, u32) {
        let version: String =
            sqlx::query_scalar("SHOW server_version").fetch_one(pool).await.expect("a version");
        leading_numbers(&version)
    }

    async fn count_tables(pool: &PgPool) -> i64 {
        let sql = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
        sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
    }
}

/// MySQL and MariaDB differ in what they are called, and in which versions are supported.
macro_rules! mysql_family {
    ($server:ident, $name:literal, $variable:literal, $oldest:expr) => {
        impl Ground for servers::$server {
            type Db = MySql;
            type Place = (String, String);
            const NAME: &str = $name;
            const OLDEST: (u32, u32) = $oldest;

            async fn create() -> (MySqlPool, String, Self::Place) {
                let (url, name) = (server_url($variable), fresh_name());
                let mut admin = sqlx::MySqlConnection::connect(&url).await.expect("the server answers");
                let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
                sqlx::query(create).execute(&mut admin).await.expect("a database");
                admin.close().await.expect("it closes");
                let fresh = with_database(&url, &name);
                // Some at once, so that none is without its mark when sessions without one are killed.
                let pool = PoolOptions::new()
                    .min_connections(4)
                    .after_connect(|conn, _| Box::pin(async move { MySql::run(conn, MARK_AS_OURS).await }));
                let pool = pool.connect_with(MySql::options(&fresh)).await.expect("it answers");
                (pool, fresh, (url, name))
            }

            async fn remove((url, name): Self::Place) {
                let mut admin = sqlx::MySqlConnection::connect(&url).await.expect("the server answers");
                let drop = sqlx::AssertSqlSafe(format!("DROP DATABASE {name}"));
                sqlx::query(drop).execute(&mut admin).await.expect("the database goes");
            }

            async fn version(pool: &MySqlPool) -> (u32, u32) {
                let version: String =
                    sqlx::query_scalar("SELECT version()").fetch_one(pool).await.expect("a version");
                assert_eq!(version.contains("MariaDB"), stringify!($server) == "Mariadb", "{version}");
                leading_numbers(&version)
            }

            async fn count_tables(pool: &MySqlPool) -> i64 {
                let sql = "SELECT count(*) FROM information_schema.tables WHERE table_schema = database()";
                sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
            }
        }
    };
}

mysql_family!(Mariadb, "mariadb", "POSTHASTE_TEST_MARIADB_URL", (10, 6));
mysql_family!(Mysql, "mysql", "POSTHASTE_TEST_MYSQL_URL", (8, 0));
