//! A database of a run's own, made for it and removed behind it.

use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tempfile::TempDir;

use crate::system::Database;

pub struct Ground {
    database: Database,
    admin_url: String,
    pub url: String,
    /// Of SQLite's files.
    _folder: Option<TempDir>,
}

impl Ground {
    /// A server's URL names a database that is there already; for SQLite it is not needed.
    pub async fn make(database: Database, admin_url: &str) -> Result<Self> {
        let name = name();
        let mut folder = None;
        let url = match database {
            Database::Sqlite => {
                let made = tempfile::tempdir().context("cannot make a folder for SQLite's file")?;
                let url = format!("sqlite:{}", made.path().join("bench.db").display());
                folder = Some(made);
                url
            }
            Database::Postgres | Database::Mariadb => {
                execute(database, admin_url, &format!("CREATE DATABASE {name}")).await?;
                with_database(admin_url, &name)?
            }
        };
        if database == Database::Postgres {
            // What the run before has left to be written is not this one's cost.
            execute(database, admin_url, "CHECKPOINT").await?;
        }
        Ok(Self { database, admin_url: admin_url.to_owned(), url, _folder: folder })
    }

    /// The same database through a pooler, whose URL names another one.
    pub fn url_behind(&self, pooler: &str) -> Result<String> {
        with_database(pooler, &name())
    }

    pub async fn remove(self) -> Result<()> {
        let name = name();
        match self.database {
            Database::Sqlite => Ok(()),
            Database::Postgres => {
                execute(self.database, &self.admin_url, &format!("DROP DATABASE {name} WITH (FORCE)")).await
            }
            Database::Mariadb => {
                execute(self.database, &self.admin_url, &format!("DROP DATABASE {name}")).await
            }
        }
    }
}

/// The name of this run's database on a server.
fn name() -> String {
    format!("bench_{}", std::process::id())
}

async fn execute(database: Database, url: &str, statement: &str) -> Result<()> {
    let statement = AssertSqlSafe(statement.to_owned());
    match database {
        Database::Sqlite => {}
        Database::Postgres => {
            sqlx::raw_sql(statement).execute(&mut PgConnection::connect(url).await?).await?;
        }
        Database::Mariadb => {
            sqlx::raw_sql(statement).execute(&mut MySqlConnection::connect(url).await?).await?;
        }
    }
    Ok(())
}

/// The same server, another database.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (server, options) =
        url.split_once('?').map_or((url, None), |(server, options)| (server, Some(options)));
    let (server, _) = server.rsplit_once('/').context("a URL without a database")?;
    Ok(options.map_or_else(|| format!("{server}/{name}"), |options| format!("{server}/{name}?{options}")))
}

/// A session that has taken a snapshot and keeps it: no row that dies from now on can be removed.
pub async fn pin_horizon(url: &str) -> Result<PgConnection> {
    let mut conn = PgConnection::connect(url).await?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
        .execute(&mut conn)
        .await?;
    Ok(conn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_of_the_same_server_keeps_the_options() {
        let url = with_database("mysql://a@127.0.0.1:1/b?ssl-mode=disabled", "c").expect("a good URL");
        assert_eq!(url, "mysql://a@127.0.0.1:1/c?ssl-mode=disabled");
        assert_eq!(with_database("postgres://h/b", "c").expect("a good URL"), "postgres://h/c");
    }
}
