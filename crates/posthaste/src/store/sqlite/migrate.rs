//! Creating and upgrading the tables, and checking that they fit.

use sqlx::{AssertSqlSafe, Connection, Pool, Row, Sqlite, SqliteConnection};

use super::{
    BEGIN, SqliteStore,
    busy::{Kind, patiently, reading, writing},
    check_is_shared, file_of, query,
    statements::{fill, names},
};
use crate::{
    OutboxError,
    store::{Result, Tables, connections::Connections},
};

/// In order; the number of a migration is its place, from 1.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_outbox.sql")];

/// The version that this library is for.
const VERSION: i32 = 1;

/// All of it in one transaction: SQLite's DDL can be rolled back, so a kill at any point leaves nothing half done. It excludes
/// other writers, so of many processes one migrates, and the others find nothing to do.
pub(super) async fn migrate(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
    refuse_schema(tables)?;
    patiently!(migrate_once(pool, tables))
}

async fn migrate_once(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
    let mut conn = pool.acquire().await?;
    let is_file = file_of(&mut conn).await?.is_some();
    // Most of the time there is nothing to do, and then nothing but a read is needed.
    if read_version(&mut conn, tables).await?.is_some_and(|(version, _)| version >= VERSION) {
        return check_version(&mut conn, tables).await;
    }
    if !is_file {
        // On the caller's connection: another one would be another database.
        create(&mut conn, tables).await?;
        return check_is_shared(pool, tables).await;
    }
    drop(conn);
    // On one of our own, which is durable, and which is closed if this is dropped half-way.
    let mut conn = Connections::new(pool.clone(), 1, super::durable_options).connect().await?;
    write_ahead(&mut conn).await?;
    create(&mut conn, tables).await?;
    conn.close().await.ok();
    Ok(())
}

async fn create(conn: &mut SqliteConnection, tables: &Tables) -> Result<()> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let found = read_version(&mut tx, tables).await?.map_or(0, |(version, _)| version);
    let names = names(tables);
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
        sqlx::raw_sql(AssertSqlSafe(fill(&names, migration))).execute(&mut *tx).await?;
    }
    check_version(&mut tx, tables).await?;
    kill_point!(MigrateWithin);
    Ok(tx.commit().await?)
}

pub(super) fn drop_sql(tables: &Tables) -> String {
    names(tables).drop_sql(false)
}

pub(super) async fn drop_tables(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
    refuse_schema(tables)?;
    patiently!(async {
        let mut tx = pool.begin_with(BEGIN).await?;
        sqlx::raw_sql(AssertSqlSafe(drop_sql(tables))).execute(&mut *tx).await?;
        Ok(tx.commit().await?)
    })
}

pub(super) fn migration_sql(tables: &Tables) -> String {
    let names = names(tables);
    // It lasts, and makes readers and the writer independent of each other.
    let mut sql = String::from("PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n");
    for migration in MIGRATIONS {
        sql.push_str(&fill(&names, migration));
        sql.push('\n');
    }
    sql.push_str("COMMIT;\n");
    sql
}

/// A schema that is silently left out would put an outbox where nobody looks for it.
pub(super) fn refuse_schema(tables: &Tables) -> Result<()> {
    let Some(schema) = &tables.schema else { return Ok(()) };
    Err(OutboxError::Configuration(format!(
        "SQLite has no schemas: leave out schema {schema:?}, or give the tables a prefix"
    )))
}

/// The version of the tables and the oldest library that may use them; none if there are no tables.
async fn read_version(conn: &mut SqliteConnection, tables: &Tables) -> Result<Option<(i32, i32)>> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?1)";
    let exists = sqlx::query_scalar(sql).bind(format!("{}meta", tables.prefix));
    if !exists.fetch_one(&mut *conn).await? {
        return Ok(None);
    }
    let sql = format!("SELECT schema_version, least_library FROM {}", names(tables).table("meta"));
    let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(conn).await?;
    Ok(Some((row.try_get(0)?, row.try_get(1)?)))
}

/// An error unless this library can work with the tables.
pub(super) async fn check_version(conn: &mut SqliteConnection, tables: &Tables) -> Result<()> {
    let (found, least) = read_version(conn, tables).await?.unwrap_or_default();
    if found < VERSION {
        return Err(OutboxError::NotMigrated { found, needed: VERSION });
    }
    if least > VERSION {
        return Err(OutboxError::SchemaTooNew { found, least, ours: VERSION });
    }
    Ok(())
}

/// Sees to it that the database has a log that is written ahead, so that readers and the writer do not exclude each other. It
/// lasts; to begin with it, nobody else may be reading or writing at that moment.
pub(super) async fn write_ahead(conn: &mut SqliteConnection) -> Result<()> {
    let mode = async |conn: &mut SqliteConnection, sql: &'static str| -> Result<String> {
        Ok(sqlx::raw_sql(sql).fetch_one(conn).await?.try_get(0)?)
    };
    if mode(conn, "PRAGMA main.journal_mode").await? == "wal" {
        return Ok(());
    }
    let found = mode(conn, "PRAGMA main.journal_mode = WAL").await?;
    if found == "wal" {
        return Ok(());
    }
    Err(OutboxError::Unsuitable(format!(
        "the database's journal_mode is {found:?} and cannot be made \"wal\", without which readers and writers would exclude \
         each other: is it on a network file system?"
    )))
}

/// No id is given out twice, which is a promise. SQLite counts them in a table that a copy by other means may lack, and that
/// anybody may write to; then a new message would be behind the sequencer, and never be found.
pub(super) async fn check_suitable(store: &SqliteStore) -> Result<()> {
    let (counted, given) = reading!(store, conn => count_ids(store, conn))?;
    if counted >= given {
        return Ok(());
    }
    writing!(store, Kind::Durable, conn => count_on(store, conn))
}

/// The last id by SQLite's count, and the last one that is known to be given out.
async fn count_ids(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<(i64, i64)> {
    let row = query(&store.sql().ids).fetch_one(conn).await?;
    Ok((row.try_get("counted")?, row.try_get("given")?))
}

async fn count_on(store: &SqliteStore, conn: &mut SqliteConnection) -> Result<()> {
    let mut tx = conn.begin_with(BEGIN).await?;
    let (counted, given) = count_ids(store, &mut tx).await?;
    if counted < given {
        tracing::warn!(
            counted,
            given,
            "SQLite would give out ids again that it has given out: it is told not to"
        );
        query(&store.sql().forget_count).execute(&mut *tx).await?;
        query(&store.sql().count_on).bind(given).execute(&mut *tx).await?;
    }
    Ok(tx.commit().await?)
}
