//! The databases that the suite runs on.

use std::fmt;

use nix::sys::signal::Signal;

use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Database {
    Sqlite,
    Postgres,
    Mariadb,
    Mysql,
}

impl Database {
    pub const ALL: [Self; 4] = [Self::Sqlite, Self::Postgres, Self::Mariadb, Self::Mysql];

    /// The name on the command line, and of the test modules that need this database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
        }
    }

    /// The variable that names a server to the tests; none for SQLite, which is a file.
    pub const fn url_variable(self) -> Option<&'static str> {
        match self {
            Self::Sqlite => None,
            Self::Postgres => Some("POSTHASTE_TEST_POSTGRES_URL"),
            Self::Mariadb => Some("POSTHASTE_TEST_MARIADB_URL"),
            Self::Mysql => Some("POSTHASTE_TEST_MYSQL_URL"),
        }
    }

    /// The oldest version that posthaste supports.
    pub const fn oldest(self) -> (u32, u32) {
        match self {
            // Comes with the library.
            Self::Sqlite => (0, 0),
            Self::Postgres => (13, 0),
            Self::Mariadb => (10, 6),
            Self::Mysql => (8, 0),
        }
    }

    /// How to end a server fast: nothing in it is worth keeping.
    pub const fn stop_signal(self) -> Signal {
        match self {
            // Its children end with it.
            Self::Postgres => Signal::SIGQUIT,
            Self::Sqlite | Self::Mariadb | Self::Mysql => Signal::SIGKILL,
        }
    }

    /// What a server program of this kind says of itself, and no other does.
    pub fn is_named_in(self, text: &str) -> bool {
        match self {
            Self::Sqlite => false,
            Self::Postgres => text.contains("PostgreSQL"),
            Self::Mariadb => text.contains("MariaDB"),
            Self::Mysql => text.contains("mysqld") && !text.contains("MariaDB"),
        }
    }

    fn url_schemes(self) -> &'static [&'static str] {
        match self {
            Self::Sqlite => &["sqlite:"],
            Self::Postgres => &["postgres://", "postgresql://"],
            Self::Mariadb | Self::Mysql => &["mysql://", "mariadb://"],
        }
    }

    /// The server that the environment names, if it names one.
    pub fn named_url(self) -> Result<Option<String>> {
        let Some(variable) = self.url_variable() else { return Ok(None) };
        let Some(url) = std::env::var(variable).ok().filter(|url| !url.is_empty()) else { return Ok(None) };
        if self.url_schemes().iter().any(|scheme| url.starts_with(scheme)) {
            return Ok(Some(url));
        }
        // Not the URL itself: it may hold a password.
        Err(Failure::CannotRun(format!(
            "{variable} is not a {self} URL: it must start with {}",
            self.url_schemes().join(" or ")
        )))
    }

    /// The databases named on a command line; all of them if none is.
    pub fn parse_all(names: &[String]) -> Result<Vec<Self>> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let mut databases = names.iter().map(|name| Self::parse(name)).collect::<Result<Vec<_>>>()?;
        databases.sort_unstable();
        databases.dedup();
        Ok(databases)
    }

    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|database| database.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Failure::CannotRun(format!("unknown database {name:?}: choose from {known}"))
        })
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
