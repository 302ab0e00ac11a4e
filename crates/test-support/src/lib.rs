//! A fresh database for each test, on a server that the environment names.
//!
//! A database on a server is removed when its test succeeds. It is kept when the test fails, for as long as its server is up. An
//! SQLite file goes with its test.
//!
//! Most tests start with the same tables. A [`Template`] is prepared once per server, by the first test that asks for
//! it, and [`TestDatabase::copy_of`] copies it: PostgreSQL copies a database, SQLite copies a file, MySQL and MariaDB
//! take an emptied schema from a pool, because creating and dropping a dozen tables is what they are slow at.

mod mysql;
mod postgres;
mod sqlite;
mod template;
mod url;

pub use self::{sqlite::folder as sqlite_folder, template::Template};

/// A kind of database server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Sqlite,
    Postgres,
    Mariadb,
    Mysql,
}

impl Server {
    /// The URL of a database on the server that every test may connect to.
    ///
    /// # Panics
    ///
    /// If the environment does not name the server.
    #[must_use]
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

/// A database that only one test uses.
#[derive(Debug)]
pub struct TestDatabase {
    pub server: Server,
    pub url: String,
    place: Place,
}

#[derive(Debug)]
enum Place {
    File(tempfile::TempDir),
    Database {
        name: String,
    },
    /// A schema of the pool of a template.
    Pooled {
        name: String,
        template: String,
    },
}

impl TestDatabase {
    /// A database without tables, for tests of migrations.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub async fn empty(server: Server) -> Self {
        let place = match server {
            Server::Sqlite => Place::File(sqlite::empty()),
            Server::Postgres => Place::Database { name: postgres::empty(&server.url()).await },
            Server::Mariadb | Server::Mysql => Place::Database { name: mysql::empty(&server.url()).await },
        };
        Self::at(server, place)
    }

    /// A database with the tables and rows of a template. `prepare` makes them in the database with the URL that it is
    /// given, if no test has done so before; it must close its connections.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub async fn copy_of(server: Server, template: &Template, prepare: impl AsyncFnOnce(&str)) -> Self {
        let (url, name) = (server.url(), template.name());
        let place = match server {
            Server::Sqlite => Place::File(sqlite::copy_of(name, prepare).await),
            Server::Postgres => Place::Database { name: postgres::copy_of(&url, name, prepare).await },
            Server::Mariadb | Server::Mysql => {
                Place::Pooled { name: mysql::take(&url, name, prepare).await, template: name.to_owned() }
            }
        };
        Self::at(server, place)
    }

    fn at(server: Server, place: Place) -> Self {
        let url = match &place {
            Place::File(folder) => sqlite::url(folder),
            Place::Database { name } | Place::Pooled { name, .. } => url::with_database(&server.url(), name),
        };
        Self { server, url, place }
    }

    /// Removes it. A test calls this at its end, after it closed its connections: a test that fails does not get there.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub async fn remove(self) {
        let url = self.server.url();
        match self.place {
            Place::File(folder) => folder.close().expect("the folder is removed"),
            Place::Database { name } if self.server == Server::Postgres => {
                postgres::remove(&url, &name).await;
            }
            Place::Database { name } => mysql::remove(&url, &name).await,
            Place::Pooled { name, template } => mysql::give_back(&url, &name, &template).await,
        }
    }
}

/// A name that no other test has, in this run or another.
fn fresh_name() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |now| now.as_nanos());
    format!("posthaste_{now}_{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
