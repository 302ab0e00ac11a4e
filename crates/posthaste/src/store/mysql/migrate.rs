//! Creating and upgrading the tables, and checking that they and the server fit.

use sqlx::{AssertSqlSafe, Connection, MySql, MySqlConnection, Pool, Row};

use super::{
    MySqlStore, SESSION, Tries, query,
    statements::{fill, names},
};
use crate::{OutboxError, store::Result, store::Tables, store::connections::Connections};

/// In order; the number of a migration is its place, from 1.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_outbox.sql")];

/// The version that this library is for.
const VERSION: i32 = 1;

/// The oldest versions that have what the statements need.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// What is left of a packet for anything but values.
const PACKET_RESERVE: usize = 64 * 1024;

/// What kind of server it is.
pub(super) struct Server {
    pub(super) is_mariadb: bool,
    /// The most bytes of values in one statement.
    pub(super) max_packet: usize,
}

pub(super) async fn server(conn: &mut MySqlConnection) -> Result<Server> {
    let row = sqlx::raw_sql("SELECT VERSION(), CAST(@@max_allowed_packet AS SIGNED)").fetch_one(conn).await?;
    let (version, max_packet): (String, i64) = (row.try_get(0)?, row.try_get(1)?);
    let is_mariadb = version.contains("MariaDB");
    let (name, oldest) = if is_mariadb { ("MariaDB", OLDEST_MARIADB) } else { ("MySQL", OLDEST_MYSQL) };
    if leading_numbers(&version) < oldest {
        let (major, minor) = oldest;
        return Err(OutboxError::Unsuitable(format!(
            "the server is {name} {version}: the outbox needs {major}.{minor} or later"
        )));
    }
    let max_packet = usize::try_from(max_packet).unwrap_or_default().saturating_sub(PACKET_RESERVE);
    Ok(Server { is_mariadb, max_packet })
}

/// The version as it is written, without what some servers put before it for old clients.
fn leading_numbers(version: &str) -> (u32, u32) {
    let version = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Each statement commits by itself and may be run again, so a kill at any point leaves what the next start completes; so
/// does a second process that does the same at the same time.
pub(super) async fn migrate(pool: &Pool<MySql>, tables: &Tables) -> Result<()> {
    let mut conn = Connections::new(pool.clone(), 1, super::worker_options).connect().await?;
    // As a worker's: strict, and committing by itself, which a server may have switched off for everybody.
    sqlx::raw_sql(SESSION).execute(&mut conn).await?;
    server(&mut conn).await?;
    // Most of the time there is nothing to do, and then nothing but a read is needed, nor any right but that.
    let database = match (database_of(&mut conn, tables).await, &tables.schema) {
        (Err(_), Some(schema)) => {
            let create = format!("CREATE DATABASE IF NOT EXISTS `{schema}`");
            sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut conn).await?;
            schema.clone()
        }
        (database, _) => database?,
    };
    let found = read_version(&mut conn, &database, tables).await?.map_or(0, |(version, _)| version);
    let names = names(Some(&database), tables);
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
        for statement in statements(&fill(&names, migration)) {
            let mut tries = Tries::new();
            loop {
                let done = sqlx::raw_sql(AssertSqlSafe(statement.clone())).execute(&mut conn).await;
                if let Some(result) = tries.end(done.map_err(OutboxError::from)).await {
                    result?;
                    break;
                }
            }
            // Some of it is there, and some is not.
            kill_point!(MigrateWithin);
        }
    }
    check_version(&mut conn, &database, tables).await?;
    conn.close().await.ok();
    Ok(())
}

/// The statements of a migration: none has a semicolon but at its end.
fn statements(migration: &str) -> Vec<String> {
    migration.split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

pub(super) fn migration_sql(tables: &Tables) -> String {
    let names = names(tables.schema.as_deref(), tables);
    let mut sql = String::new();
    if let Some(schema) = &tables.schema {
        sql.push_str(&format!("CREATE DATABASE IF NOT EXISTS `{schema}`;\n"));
    }
    for migration in MIGRATIONS {
        sql.push_str(fill(&names, migration).trim_start());
        sql.push('\n');
    }
    sql
}

pub(super) fn drop_sql(tables: &Tables) -> String {
    names(tables.schema.as_deref(), tables).drop_sql(true)
}

pub(super) async fn drop_tables(pool: &Pool<MySql>, tables: &Tables) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(drop_sql(tables))).execute(pool).await?;
    Ok(())
}

/// The database that the tables are in, which must be there. Without one given, the connection's own.
pub(super) async fn database_of(conn: &mut MySqlConnection, tables: &Tables) -> Result<String> {
    let found: Option<String> = match &tables.schema {
        None => sqlx::query_scalar("SELECT DATABASE()").fetch_one(conn).await?,
        Some(schema) => {
            sqlx::query_scalar("SELECT schema_name FROM information_schema.schemata WHERE schema_name = ?")
                .bind(schema)
                .fetch_optional(conn)
                .await?
        }
    };
    found.ok_or_else(|| {
        let which = tables.schema.as_ref().map_or("the URL names no database".to_owned(), |schema| {
            format!("there is no database {schema:?}")
        });
        OutboxError::Unsuitable(format!("{which}: run posthaste::migrate, or name another database"))
    })
}

/// The version of the tables and the oldest library that may use them; none if there are no tables, or not all of them.
async fn read_version(
    conn: &mut MySqlConnection,
    database: &str,
    tables: &Tables,
) -> Result<Option<(i32, i32)>> {
    let sql = "SELECT count(*) FROM information_schema.tables WHERE table_schema = ? AND table_name = ?";
    let exists: i64 = sqlx::query_scalar(sql)
        .bind(database)
        .bind(format!("{}meta", tables.prefix))
        .fetch_one(&mut *conn)
        .await?;
    if exists == 0 {
        return Ok(None);
    }
    let meta = names(Some(database), tables).table("meta");
    let sql = format!("SELECT schema_version, least_library FROM {meta}");
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_optional(conn).await?;
    Ok(row.map(|row| Ok::<_, sqlx::Error>((row.try_get(0)?, row.try_get(1)?))).transpose()?)
}

/// An error unless this library can work with the tables.
pub(super) async fn check_version(conn: &mut MySqlConnection, database: &str, tables: &Tables) -> Result<()> {
    let (found, least) = read_version(conn, database, tables).await?.unwrap_or_default();
    if found < VERSION {
        return Err(OutboxError::NotMigrated { found, needed: VERSION });
    }
    if least > VERSION {
        return Err(OutboxError::SchemaTooNew { found, least, ours: VERSION });
    }
    Ok(())
}

/// READ COMMITTED, which keeps workers and producers out of each other's way, cannot be logged statement by statement.
pub(super) async fn check_suitable(store: &MySqlStore) -> Result<()> {
    let sql = "SELECT CAST(@@log_bin AS SIGNED), @@binlog_format".into();
    let rows = store.fetch(|| query(&sql)).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound)?;
    let (is_logged, format): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
    if is_logged == 1 && format.eq_ignore_ascii_case("STATEMENT") {
        return Err(OutboxError::Unsuitable(
            "the server's binlog_format is STATEMENT, which cannot log the outbox's transactions (READ COMMITTED): set it \
             to ROW or MIXED"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_servers_write_them() {
        for (version, numbers) in [
            ("8.0.36", (8, 0)),
            ("9.7.0-1", (9, 7)),
            ("10.11.6-MariaDB-0+deb12u1", (10, 11)),
            ("5.5.5-10.6.16-MariaDB", (10, 6)),
            ("5.7.44-log", (5, 7)),
        ] {
            assert_eq!(leading_numbers(version), numbers, "{version}");
        }
    }

    #[test]
    fn a_migration_is_a_list_of_statements_that_can_be_run_again() {
        let statements = statements(&fill(&names(None, &Tables::default()), MIGRATIONS[0]));
        assert_eq!(statements.len(), 11);
        for statement in statements {
            let can =
                statement.starts_with("CREATE TABLE IF NOT EXISTS") || statement.starts_with("INSERT IGNORE");
            assert!(can, "{statement}");
        }
    }
}
