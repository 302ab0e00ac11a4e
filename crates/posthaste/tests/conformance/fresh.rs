//! A database of its own for each test, as a pool of connections; `posthaste_test_support` makes and removes it.

use posthaste::{Tables, migrate, migration_sql};
use posthaste_test_support::{Server as Kind, Template, TestDatabase};
use sqlx::{MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool, pool::PoolOptions};

use crate::{
    dialect::{Dialect, MARK_AS_OURS, Tested},
    stage::run,
};

/// A kind of database server.
pub trait Ground: 'static {
    type Db: Dialect;
    const KIND: Kind;
    /// The module that its tests are stamped into.
    const NAME: &'static str;
    /// The oldest version that is supported.
    const OLDEST: (u32, u32);

    async fn pool(url: &str) -> Pool<Self::Db> {
        Pool::connect_with(Self::Db::options(url)).await.expect("the server answers")
    }
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
    database: TestDatabase,
}

impl<S: Ground> Fresh<S> {
    /// Without tables.
    pub async fn empty() -> Self {
        Self::on(TestDatabase::empty(S::KIND).await).await
    }

    async fn on(database: TestDatabase) -> Self {
        Self { pool: S::pool(&database.url).await, url: database.url.clone(), database }
    }

    /// To be called at the end: a test that fails does not get there, and its database can be inspected.
    pub async fn remove(self) {
        self.pool.close().await;
        self.database.remove().await;
    }
}

impl<S: Server> Fresh<S> {
    /// With the tables of an outbox, and those that these statements make.
    pub async fn migrated(name: &str, statements: &[&str]) -> Self {
        let sql = migration_sql::<S::Db>(&Tables::default()) + &statements.join(";");
        let prepare = async |url: &str| {
            let pool = S::pool(url).await;
            migrate(&pool).await.expect("the tables are created");
            for statement in statements {
                run(&pool, statement).await;
            }
            pool.close().await;
        };
        Self::on(TestDatabase::copy_of(S::KIND, &Template::new(name, &sql), prepare).await).await
    }
}

/// The kinds of databases, by the names that the macro uses.
pub mod servers {
    pub enum Sqlite {}
    pub enum Postgres {}
    pub enum Mariadb {}
    pub enum Mysql {}
}

fn leading_numbers(version: &str) -> (u32, u32) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

impl Ground for servers::Sqlite {
    type Db = Sqlite;
    const KIND: Kind = Kind::Sqlite;
    const NAME: &str = "sqlite";
    const OLDEST: (u32, u32) = (3, 35);

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
    const KIND: Kind = Kind::Postgres;
    const NAME: &str = "postgres";
    const OLDEST: (u32, u32) = (13, 0);

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
    ($server:ident, $name:literal, $oldest:expr) => {
        impl Ground for servers::$server {
            type Db = MySql;
            const KIND: Kind = Kind::$server;
            const NAME: &str = $name;
            const OLDEST: (u32, u32) = $oldest;

            async fn pool(url: &str) -> MySqlPool {
                // Some at once, so that none is without its mark when sessions without one are killed.
                let pool = PoolOptions::new()
                    .min_connections(4)
                    .after_connect(|conn, _| Box::pin(async move { MySql::run(conn, MARK_AS_OURS).await }));
                pool.connect_with(MySql::options(url)).await.expect("the server answers")
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

mysql_family!(Mariadb, "mariadb", (10, 6));
mysql_family!(Mysql, "mysql", (8, 0));
