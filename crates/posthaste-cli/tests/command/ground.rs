//! A fresh database for each test, on a server that the environment names; removed when the test succeeds, kept when it fails.

use std::sync::atomic::{AtomicU32, Ordering};

use posthaste::{Backend, EnqueueMessage, LeasedHandler, Outbox, OutboxBuilder, OutboxHandle, Partitions};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, MySql, MySqlConnection, MySqlPool, PgConnection, PgPool, Pool,
    Postgres, Sqlite, SqlitePool, sqlite::SqliteConnectOptions,
};

use crate::posthaste::Posthaste;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Sqlite,
    Postgres,
    Mariadb,
    Mysql,
}

impl Server {
    /// The URL of a database of the server's that all tests have.
    pub fn url(self) -> String {
        let variable = match self {
            Self::Sqlite => return "sqlite:".to_owned(),
            Self::Postgres => "POSTHASTE_TEST_POSTGRES_URL",
            Self::Mariadb => "POSTHASTE_TEST_MARIADB_URL",
            Self::Mysql => "POSTHASTE_TEST_MYSQL_URL",
        };
        std::env::var(variable).unwrap_or_else(|_| {
            panic!("{variable} is not set: run `cargo xtask test`, or set it to a server's URL")
        })
    }
}

/// A database that only this test uses.
pub struct Ground {
    pub server: Server,
    pub url: String,
    pub pool: AnyPool,
    name: String,
    /// For the files of a test.
    pub folder: tempfile::TempDir,
}

pub enum AnyPool {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
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

/// Stamps tests for every database, each in a module of its name.
#[macro_export]
macro_rules! on_every_database {
    ($($test:ident),+ $(,)?) => {
        $crate::on_every_database!(@ sqlite Sqlite $($test),+);
        $crate::on_every_database!(@ postgres Postgres $($test),+);
        $crate::on_every_database!(@ mariadb Mariadb $($test),+);
        $crate::on_every_database!(@ mysql Mysql $($test),+);
    };
    (@ $module:ident $server:ident $($test:ident),+) => {
        mod $module {
            use $crate::ground::{Ground, Server};
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    let ground = Ground::fresh(Server::$server).await;
                    super::$test(&ground).await;
                    ground.remove().await;
                }
            )+
        }
    };
}

/// The URL of another database on the same server.
fn with_database(url: &str, name: &str) -> String {
    let (base, parameters) = url.split_once('?').unwrap_or((url, ""));
    let server = base.rsplit_once('/').map_or(base, |(server, _)| server);
    if parameters.is_empty() { format!("{server}/{name}") } else { format!("{server}/{name}?{parameters}") }
}

impl Ground {
    pub async fn fresh(server: Server) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
        let (process, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let name = format!("posthaste_cli_{now}_{process}_{count}");
        let folder = tempfile::tempdir().expect("a folder");
        let (url, pool) = match server {
            Server::Sqlite => {
                let file = folder.path().join("test.db");
                let options = SqliteConnectOptions::new().filename(&file).create_if_missing(true);
                options.connect().await.expect("a file").close().await.expect("a file");
                let pool = SqlitePool::connect_lazy_with(options);
                (format!("sqlite://{}", file.display()), AnyPool::Sqlite(pool))
            }
            Server::Postgres => {
                let mut conn = PgConnection::connect(&server.url()).await.expect("a server");
                let sql = format!("CREATE DATABASE {name}");
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("a database");
                let url = with_database(&server.url(), &name);
                (url.clone(), AnyPool::Postgres(PgPool::connect_lazy(&url).expect("a URL")))
            }
            Server::Mariadb | Server::Mysql => {
                let mut conn = MySqlConnection::connect(&server.url()).await.expect("a server");
                let sql = format!("CREATE DATABASE {name}");
                sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await.expect("a database");
                let url = with_database(&server.url(), &name);
                (url.clone(), AnyPool::MySql(MySqlPool::connect_lazy(&url).expect("a URL")))
            }
        };
        Self { server, url, pool, name, folder }
    }

    /// To be called at the end: a test that fails does not get there, and its database can be looked at.
    pub async fn remove(self) {
        on!(&self.pool, pool => pool.close().await);
        let sql = |force: &str| AssertSqlSafe(format!("DROP DATABASE {}{force}", self.name));
        match self.server {
            Server::Sqlite => {}
            Server::Postgres => {
                let mut conn = PgConnection::connect(&self.server.url()).await.expect("a server");
                sqlx::raw_sql(sql(" WITH (FORCE)")).execute(&mut conn).await.expect("it is removed");
            }
            Server::Mariadb | Server::Mysql => {
                let mut conn = MySqlConnection::connect(&self.server.url()).await.expect("a server");
                sqlx::raw_sql(sql("")).execute(&mut conn).await.expect("it is removed");
            }
        }
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

    /// Waits until `check` is true; a failure after twenty seconds says what was expected.
    pub fn eventually(&self, what: &str, mut check: impl FnMut() -> bool) {
        let began = std::time::Instant::now();
        while !check() {
            assert!(began.elapsed().as_secs() < 20, "not within 20 s: {what}");
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

/// Waits until something is so; a failure after twenty seconds says what was expected.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = std::time::Instant::now();
    while !is_so().await {
        assert!(began.elapsed().as_secs() < 20, "not within 20 s: {what}");
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
