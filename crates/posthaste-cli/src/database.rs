//! Which database it is, and getting to it.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use posthaste::{Backend, Outbox, Tables};
use sqlx::{
    ConnectOptions, Connection, MySqlPool, PgPool, Pool, SqlitePool,
    mysql::MySqlConnectOptions,
    pool::PoolOptions,
    postgres::PgConnectOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

use crate::{
    Context,
    failure::{Failure, without_values},
};

/// Connections of a command, unless it says otherwise.
const CONNECTIONS: u32 = 4;

/// A database that a URL names; nobody has asked it anything yet.
pub enum Address {
    Postgres(Box<PgConnectOptions>),
    MySql(Box<MySqlConnectOptions>),
    Sqlite(Box<SqliteConnectOptions>),
}

/// A database that has answered.
pub enum Database {
    Postgres(PgPool),
    MySql(MySqlPool),
    Sqlite(SqlitePool),
}

/// Does the same on whichever database it is.
macro_rules! on {
    ($database:expr, $pool:ident => $work:expr) => {
        match $database {
            $crate::database::Database::Postgres($pool) => $work,
            $crate::database::Database::MySql($pool) => $work,
            $crate::database::Database::Sqlite($pool) => $work,
        }
    };
}
pub(crate) use on;

impl Address {
    /// Of a URL, of which nothing is repeated in an error: it may have a password in it.
    pub fn of(url: &str) -> Result<Self, Failure> {
        let scheme = url.split_once(':').map(|(scheme, _)| scheme.to_ascii_lowercase());
        let unusable = |error: sqlx::Error| {
            let why = match &error {
                sqlx::Error::Configuration(why) => why.to_string(),
                _ => error.to_string(),
            };
            Failure::Usage(format!("the database URL cannot be read: {}", without_values(&why)))
        };
        match scheme.as_deref() {
            Some("postgres" | "postgresql") => {
                let options = PgConnectOptions::from_str(url).map_err(unusable)?;
                Ok(Self::Postgres(Box::new(options.application_name("posthaste"))))
            }
            Some("mysql" | "mariadb") => {
                Ok(Self::MySql(Box::new(MySqlConnectOptions::from_str(url).map_err(unusable)?)))
            }
            Some("sqlite") => {
                let options = SqliteConnectOptions::from_str(url).map_err(unusable)?;
                if is_in_memory(url) {
                    return Err(Failure::Usage(
                        "a SQLite database in memory is seen by one process alone, and gone when that ends: name a file"
                            .to_owned(),
                    ));
                }
                Ok(Self::Sqlite(Box::new(options)))
            }
            _ => Err(Failure::Usage(
                "the database URL names no database that posthaste works on: it should begin with postgres://, \
                 mysql://, mariadb:// or sqlite:"
                    .to_owned(),
            )),
        }
    }

    /// The database, if it answers in time. A SQLite file that is not there is made only if `create`.
    pub async fn open(self, create: bool, connections: u32, patience: Duration) -> Result<Database, Failure> {
        match self {
            Self::Postgres(options) => Ok(Database::Postgres(pool(*options, connections, patience).await?)),
            Self::MySql(options) => Ok(Database::MySql(pool(*options, connections, patience).await?)),
            Self::Sqlite(options) => {
                let mut options = *options;
                if create {
                    // The mode in which readers and the writer are not in each other's way.
                    options = options.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
                } else if let Some(file) = missing_file(&options) {
                    return Err(Failure::OutOfReach(format!(
                        "there is no database file {}: `posthaste migrate` makes one; or name another with --database-url",
                        file.display()
                    )));
                }
                Ok(Database::Sqlite(pool(options, connections, patience).await?))
            }
        }
    }
}

/// Without anything that is secret.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Postgres(options) => {
                let database = options.get_database().unwrap_or_default();
                write!(f, "PostgreSQL at {}:{}/{database}", options.get_host(), options.get_port())
            }
            Self::MySql(options) => {
                let url = options.to_url_lossy();
                let (host, port) = (url.host_str().unwrap_or_default(), url.port().unwrap_or(3306));
                write!(f, "MySQL at {host}:{port}{}", url.path())
            }
            Self::Sqlite(options) => write!(f, "SQLite file {}", options.get_filename().display()),
        }
    }
}

/// Whether a URL of SQLite names no file.
fn is_in_memory(url: &str) -> bool {
    let rest = url.split_once(':').map_or(url, |(_, rest)| rest).trim_start_matches("//");
    let (file, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    file == ":memory:" || parameters.split('&').any(|parameter| parameter == "mode=memory")
}

/// The file that is named and not there.
fn missing_file(options: &SqliteConnectOptions) -> Option<PathBuf> {
    let file = options.get_filename();
    (!file.exists()).then(|| file.to_owned())
}

/// A pool, after a connection of its own has shown that the database answers: a pool would try again and again, and then say only
/// that it took too long.
async fn pool<DB>(
    options: <DB::Connection as Connection>::Options,
    connections: u32,
    patience: Duration,
) -> Result<Pool<DB>, Failure>
where
    DB: sqlx::Database,
    <DB::Connection as Connection>::Options: ConnectOptions<Connection = DB::Connection>,
{
    let trying = async {
        let connection = options.connect().await?;
        connection.close().await
    };
    match tokio::time::timeout(patience, trying).await {
        Ok(tried) => tried?,
        Err(_) => {
            return Err(Failure::OutOfReach(format!(
                "the database is out of reach: no answer within {}",
                humantime::format_duration(patience)
            )));
        }
    }
    let pool = PoolOptions::new().max_connections(connections).acquire_timeout(patience);
    Ok(pool.connect_lazy_with(options))
}

impl Context {
    /// The tables that the options name.
    pub fn tables(&self) -> Result<Tables, Failure> {
        let tables = Tables::default().prefix(self.common.table_prefix())?;
        Ok(match &self.common.schema {
            Some(schema) => tables.schema(schema)?,
            None => tables,
        })
    }

    /// The database that the options name.
    pub fn address(&self) -> Result<Address, Failure> {
        Address::of(&self.common.url().map_err(Failure::Usage)?)
    }

    /// The database that the options name, which must be there.
    pub async fn open(&self) -> Result<Database, Failure> {
        // Names that cannot be are found before anything is asked.
        self.tables()?;
        self.address()?.open(false, CONNECTIONS, self.common.connect_timeout).await
    }

    /// The same, made if it is a file and not there.
    pub async fn open_or_create(&self) -> Result<Database, Failure> {
        self.tables()?;
        self.address()?.open(true, CONNECTIONS, self.common.connect_timeout).await
    }

    /// The outbox in a database, whose tables must be there.
    pub async fn outbox<DB: Backend>(&self, pool: &Pool<DB>) -> Result<Outbox<DB>, Failure> {
        Ok(Outbox::connect_with(pool.clone(), &self.tables()?).await?)
    }
}
