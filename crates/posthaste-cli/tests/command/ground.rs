//! A database of its own for each test, and the command on it; `posthaste_test_support` makes and removes the database.

use posthaste::{
    Backend, EnqueueMessage, LeasedHandler, Outbox, OutboxBuilder, OutboxHandle, Partitions, Tables, migrate,
    migration_sql,
};
pub use posthaste_test_support::Server;
use posthaste_test_support::{Template, TestDatabase};
use sqlx::{
    AssertSqlSafe, MySql, MySqlPool, PgPool, Pool, Postgres, Sqlite, SqlitePool, sqlite::SqliteConnectOptions,
};

use crate::posthaste::Posthaste;

/// A database that only this test uses.
pub struct Ground {
    pub server: Server,
    pub url: String,
    pub pool: AnyPool,
    database: TestDatabase,
    /// For the files of a test.
    pub folder: tempfile::TempDir,
}

pub enum AnyPool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

impl AnyPool {
    fn on(server: Server, url: &str) -> Self {
        match server {
            Server::Sqlite => Self::Sqlite(SqlitePool::connect_lazy_with(sqlite_options(url))),
            Server::Postgres => Self::Postgres(PgPool::connect_lazy(url).expect("a URL")),
            Server::Mariadb | Server::Mysql => Self::MySql(MySqlPool::connect_lazy(url).expect("a URL")),
        }
    }
}

/// Does the same on whichever database it is.
#[macro_export]
macro_rules! on {
    ($pool:expr, $name:ident => $work:expr) => {
        match $pool {
            $crate::ground::AnyPool::Postgres($name) => $work,
            $crate::ground::AnyPool::MySql($name) => $work,
            $crate::ground::AnyPool::Sqlite($name) => $work,
        }
    };
}

/// Stamps tests for every database, each in a module of its name: `empty:` for those that start without tables.
#[macro_export]
macro_rules! on_every_database {
    (empty: $($test:ident),+ $(,)?) => { $crate::on_every_database!(@all empty $($test),+); };
    (@all $start:ident $($test:ident),+) => {
        $crate::on_every_database!(@on sqlite Sqlite $start $($test),+);
        $crate::on_every_database!(@on postgres Postgres $start $($test),+);
        $crate::on_every_database!(@on mariadb Mariadb $start $($test),+);
        $crate::on_every_database!(@on mysql Mysql $start $($test),+);
    };
    (@on $module:ident $server:ident $start:ident $($test:ident),+) => {
        mod $module {
            use $crate::ground::{Ground, Server};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    let ground = Ground::$start(Server::$server).await;
                    super::$test(&ground).await;
                    ground.remove().await;
                }
            )+
        }
    };
    ($($test:ident),+ $(,)?) => { $crate::on_every_database!(@all migrated $($test),+); };
}

fn sqlite_options(url: &str) -> SqliteConnectOptions {
    url.parse::<SqliteConnectOptions>().expect("a URL").create_if_missing(true)
}

async fn migrate_and_close<DB: Backend>(pool: Pool<DB>) {
    migrate(&pool).await.expect("the tables are created");
    pool.close().await;
}

impl Ground {
    /// A database with the tables of an outbox.
    pub async fn migrated(server: Server) -> Self {
        let tables = Tables::default();
        let sql = match server {
            Server::Sqlite => migration_sql::<Sqlite>(&tables),
            Server::Postgres => migration_sql::<Postgres>(&tables),
            Server::Mariadb | Server::Mysql => migration_sql::<MySql>(&tables),
        };
        let prepare = async |url: &str| match AnyPool::on(server, url) {
            AnyPool::Postgres(pool) => migrate_and_close(pool).await,
            AnyPool::MySql(pool) => migrate_and_close(pool).await,
            AnyPool::Sqlite(pool) => migrate_and_close(pool).await,
        };
        Self::on(TestDatabase::copy_of(server, &Template::new("command", &sql), prepare).await)
    }

    /// A database without tables.
    pub async fn empty(server: Server) -> Self {
        let database = TestDatabase::empty(server).await;
        let ground = Self::on(database);
        // The command refuses a file that does not exist.
        if let AnyPool::Sqlite(pool) = &ground.pool {
            pool.acquire().await.expect("a file");
        }
        ground
    }

    fn on(database: TestDatabase) -> Self {
        let (server, url) = (database.server, database.url.clone());
        let folder = tempfile::tempdir().expect("a folder");
        Self { server, pool: AnyPool::on(server, &url), url, database, folder }
    }

    /// To be called at the end: a test that fails does not get there, and its database can be inspected.
    pub async fn remove(self) {
        on!(&self.pool, pool => pool.close().await);
        self.database.remove().await;
        self.folder.close().expect("the folder goes");
    }

    /// The command, on this database.
    pub fn posthaste(&self, arguments: &[&str]) -> Posthaste {
        Posthaste::new(arguments).env("DATABASE_URL", &self.url).in_folder(self.folder.path())
    }

    /// Runs SQL that every database understands.
    pub async fn sql(&self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        on!(&self.pool, pool => { sqlx::raw_sql(sql).execute(pool).await.expect("it is done"); });
    }

    /// How many rows a table has.
    pub async fn count(&self, table: &str) -> i64 {
        let sql = AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        on!(&self.pool, pool => sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count"))
    }

    /// The tables there are, by name; on SQLite without its own.
    pub async fn tables(&self) -> Vec<String> {
        let sql = match self.server {
            Server::Sqlite => {
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
            }
            Server::Postgres => {
                "SELECT tablename::text FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
            }
            Server::Mariadb | Server::Mysql => {
                "SELECT CAST(table_name AS CHAR) FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name"
            }
        };
        on!(&self.pool, pool => sqlx::query_scalar(sql).fetch_all(pool).await.expect("their names"))
    }

    /// Enqueues messages into partition 0, whose payloads are their numbers from 0.
    pub async fn enqueue(&self, queue: &str, count: u32) {
        self.enqueue_all(queue, (0..count).map(|n| n.to_string())).await;
    }

    /// Enqueues messages with these payloads into partition 0.
    pub async fn enqueue_all(&self, queue: &str, payloads: impl Iterator<Item = String>) {
        let messages: Vec<_> = payloads.map(EnqueueMessage::new).collect();
        on!(&self.pool, pool => {
            let outbox = Outbox::connect(pool.clone()).await.expect("an outbox");
            outbox.enqueue_batch(pool, queue, &messages).await.expect("they are enqueued");
            outbox.close().await;
        });
    }

    /// Waits until `check` is true; a failure after a minute says what was expected.
    pub fn eventually(&self, what: &str, mut check: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !check() {
            assert!(began.elapsed().as_secs() < 60, "not within 60 s: {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Makes the tables and a queue, as a service does that starts; nobody delivers it afterwards.
    pub async fn register(&self, queue: &str, partitions: Partitions) {
        self.deliver(queue, partitions, Accept).await.stop().await;
    }

    /// Makes the tables and a queue, and delivers it to this handler until stopped.
    pub async fn deliver(
        &self,
        queue: &str,
        partitions: Partitions,
        handler: impl LeasedHandler,
    ) -> Delivering {
        async fn start<DB: Backend>(
            pool: &Pool<DB>,
            queue: &str,
            partitions: Partitions,
            handler: impl LeasedHandler,
        ) -> OutboxHandle<DB> {
            let builder: OutboxBuilder<DB> = Outbox::builder(pool.clone());
            builder.queue(queue, partitions).leased(handler).start().await.expect("workers")
        }
        match &self.pool {
            AnyPool::Postgres(pool) => Delivering::Postgres(start(pool, queue, partitions, handler).await),
            AnyPool::MySql(pool) => Delivering::MySql(start(pool, queue, partitions, handler).await),
            AnyPool::Sqlite(pool) => Delivering::Sqlite(start(pool, queue, partitions, handler).await),
        }
    }
}

/// Waits until something is so; a failure after a minute says what was expected.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so().await {
        assert!(began.elapsed().as_secs() < 60, "not within 60 s: {what}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Workers in this process.
pub enum Delivering {
    Postgres(OutboxHandle<Postgres>),
    MySql(OutboxHandle<MySql>),
    Sqlite(OutboxHandle<Sqlite>),
}

impl Delivering {
    pub async fn stop(self) {
        match self {
            Self::Postgres(handle) => handle.stop().await,
            Self::MySql(handle) => handle.stop().await,
            Self::Sqlite(handle) => handle.stop().await,
        }
    }
}

/// A handler that is content with everything.
pub struct Accept;

impl posthaste::LeasedMessageHandler for Accept {
    async fn handle(&self, _msg: &posthaste::OutboxMessage) -> posthaste::MessageResult {
        posthaste::MessageResult::Ok
    }
}
