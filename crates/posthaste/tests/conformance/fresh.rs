//! A fresh database for each test, on a server that the environment names. It is removed when the test succeeds and
//! kept when it fails.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{Connection, MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool};

/// A kind of database, and how tests get one of it.
pub trait Server: 'static {
    type Db: sqlx::Database;
    /// What keeps the database, and its name there.
    type Place;
    /// The oldest version that is supported.
    const OLDEST: (u32, u32);

    async fn create() -> (Pool<Self::Db>, Self::Place);
    async fn remove(place: Self::Place);
    async fn version(pool: &Pool<Self::Db>) -> (u32, u32);
    async fn count_tables(pool: &Pool<Self::Db>) -> i64;
    async fn execute(pool: &Pool<Self::Db>, sql: &'static str);
}

/// A database that only this test uses.
pub struct Fresh<S: Server> {
    pub pool: Pool<S::Db>,
    place: S::Place,
}

impl<S: Server> Fresh<S> {
    pub async fn create() -> Self {
        let (pool, place) = S::create().await;
        Self { pool, place }
    }

    /// To be called at the end: a test that fails does not get there, and its database can be looked at.
    pub async fn remove(self) {
        self.pool.close().await;
        S::remove(self.place).await;
    }
}

/// Stamps cases for every database, each in a module of its name, by which `cargo xtask test --db` selects.
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {
        $crate::fresh::on_every_database!(@on sqlite, Sqlite: $($case),+);
        $crate::fresh::on_every_database!(@on postgres, Postgres: $($case),+);
        $crate::fresh::on_every_database!(@on mariadb, Mariadb: $($case),+);
        $crate::fresh::on_every_database!(@on mysql, Mysql: $($case),+);
    };
    (@on $module:ident, $server:ident: $($case:ident),+) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case::<$crate::fresh::servers::$server>().await;
                }
            )+
        }
    };
}
pub(crate) use on_every_database;

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

fn leading_numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

impl Server for servers::Sqlite {
    type Db = Sqlite;
    type Place = tempfile::TempDir;
    const OLDEST: (u32, u32) = (3, 35);

    async fn create() -> (SqlitePool, Self::Place) {
        let folder = tempfile::tempdir().expect("a folder");
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.path().join("test.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal);
        (SqlitePool::connect_with(options).await.expect("a database"), folder)
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

    async fn execute(pool: &SqlitePool, sql: &'static str) {
        sqlx::query(sql).execute(pool).await.expect("it runs");
    }
}

impl Server for servers::Postgres {
    type Db = Postgres;
    type Place = (String, String);
    const OLDEST: (u32, u32) = (13, 0);

    async fn create() -> (PgPool, Self::Place) {
        let (url, name) = (server_url("POSTHASTE_TEST_POSTGRES_URL"), fresh_name());
        let mut admin = sqlx::PgConnection::connect(&url).await.expect("the server answers");
        let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
        sqlx::query(create).execute(&mut admin).await.expect("a database");
        admin.close().await.expect("it closes");
        let options: sqlx::postgres::PgConnectOptions = url.parse().expect("an URL");
        (PgPool::connect_with(options.database(&name)).await.expect("it answers"), (url, name))
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

    async fn execute(pool: &PgPool, sql: &'static str) {
        sqlx::query(sql).execute(pool).await.expect("it runs");
    }
}

/// MySQL and MariaDB differ in what they are called, and in which versions are supported.
macro_rules! mysql_family {
    ($server:ident, $variable:literal, $oldest:expr) => {
        impl Server for servers::$server {
            type Db = MySql;
            type Place = (String, String);
            const OLDEST: (u32, u32) = $oldest;

            async fn create() -> (MySqlPool, Self::Place) {
                let (url, name) = (server_url($variable), fresh_name());
                let mut admin = sqlx::MySqlConnection::connect(&url).await.expect("the server answers");
                let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
                sqlx::query(create).execute(&mut admin).await.expect("a database");
                admin.close().await.expect("it closes");
                let options: sqlx::mysql::MySqlConnectOptions = url.parse().expect("an URL");
                (MySqlPool::connect_with(options.database(&name)).await.expect("it answers"), (url, name))
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

            async fn execute(pool: &MySqlPool, sql: &'static str) {
                sqlx::query(sql).execute(pool).await.expect("it runs");
            }
        }
    };
}

mysql_family!(Mariadb, "POSTHASTE_TEST_MARIADB_URL", (10, 6));
mysql_family!(Mysql, "POSTHASTE_TEST_MYSQL_URL", (8, 0));
