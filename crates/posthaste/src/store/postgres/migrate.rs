//! Creating and upgrading the tables, and checking that they fit.

use sqlx::{AssertSqlSafe, Connection, PgConnection, Pool, Postgres, Row};
use uuid::Uuid;

use super::{
    PostgresStore, query,
    statements::{fill, names},
};
use crate::{OutboxError, store::Result, store::Tables, store::connections::Connections};

/// In order; the number of a migration is its place, from 1.
const MIGRATIONS: [&str; 1] = [include_str!("migrations/0001_outbox.sql")];

/// The version that this library is for.
const VERSION: i32 = 1;

/// Keeps migrations of one database apart from each other; any number would do.
const MIGRATION_LOCK: i64 = 0x706f_7374_6861_7374;

/// All of it in one transaction: PostgreSQL's DDL can be rolled back, so a kill at any point leaves nothing half done.
pub(super) async fn migrate(pool: &Pool<Postgres>, tables: &Tables) -> Result<()> {
    let mut conn = Connections::new(pool.clone(), 1, super::worker_options).connect().await?;
    // Most of the time there is nothing to do, and then nothing but a read is needed, nor any right but that.
    let mut tx = conn.begin().await?;
    let schema = schema_of(&mut tx, tables).await;
    if let Ok(schema) = &schema
        && read_version(&mut tx, schema, tables).await?.is_some_and(|(version, _)| version >= VERSION)
    {
        return check_version(&mut tx, schema, tables).await.map(drop);
    }
    tx.rollback().await?;
    let mut tx = conn.begin_with("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE").await?;
    sqlx::query("SELECT pg_advisory_xact_lock($1)")
        .persistent(false)
        .bind(MIGRATION_LOCK)
        .execute(&mut *tx)
        .await?;
    let schema = match (&tables.schema, schema) {
        (_, Ok(schema)) => schema,
        (Some(schema), Err(_)) => {
            sqlx::raw_sql(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\"")))
                .execute(&mut *tx)
                .await?;
            schema.clone()
        }
        (None, Err(error)) => return Err(error),
    };
    let found = read_version(&mut tx, &schema, tables).await?.map_or(0, |(version, _)| version);
    let names = names(Some(&schema), tables);
    for migration in MIGRATIONS.iter().skip(usize::try_from(found).unwrap_or_default()) {
        sqlx::raw_sql(AssertSqlSafe(fill(&names, migration))).execute(&mut *tx).await?;
    }
    check_version(&mut tx, &schema, tables).await?;
    kill_point!(MigrateWithin);
    Ok(tx.commit().await?)
}

pub(super) fn migration_sql(tables: &Tables) -> String {
    let names = names(tables.schema.as_deref(), tables);
    let mut sql = String::from("BEGIN;\n");
    if let Some(schema) = &tables.schema {
        sql.push_str(&format!("CREATE SCHEMA IF NOT EXISTS \"{schema}\";\n"));
    }
    for migration in MIGRATIONS {
        sql.push_str(&fill(&names, migration));
        sql.push('\n');
    }
    sql.push_str("COMMIT;\n");
    sql
}

pub(super) fn drop_sql(tables: &Tables) -> String {
    names(tables.schema.as_deref(), tables).drop_sql(false)
}

pub(super) async fn drop_tables(pool: &Pool<Postgres>, tables: &Tables) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(drop_sql(tables))).execute(pool).await?;
    Ok(())
}

/// The schema that the tables are in, which must be there. Without one given, the first of the search path.
pub(super) async fn schema_of(conn: &mut PgConnection, tables: &Tables) -> Result<String> {
    let found: Option<String> = match &tables.schema {
        None => sqlx::query_scalar("SELECT current_schema()::text").persistent(false).fetch_one(conn).await?,
        Some(schema) => {
            sqlx::query_scalar("SELECT nspname::text FROM pg_namespace WHERE nspname = $1")
                .persistent(false)
                .bind(schema)
                .fetch_optional(conn)
                .await?
        }
    };
    found.ok_or_else(|| {
        let which =
            tables.schema.as_ref().map_or("the search path leads to no schema".to_owned(), |schema| {
                format!("there is no schema {schema:?}")
            });
        OutboxError::Unsuitable(format!("{which}: run posthaste::migrate, or name another schema"))
    })
}

/// The version of the tables and the oldest library that may use them; none if there are no tables.
async fn read_version(conn: &mut PgConnection, schema: &str, tables: &Tables) -> Result<Option<(i32, i32)>> {
    let meta = names(Some(schema), tables).table("meta");
    // Read from the catalog itself: `to_regclass` may answer from before the lock that the caller has waited for.
    let sql = "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = $1 AND c.relname = $2)";
    let exists =
        sqlx::query_scalar(sql).persistent(false).bind(schema).bind(format!("{}meta", tables.prefix));
    if !exists.fetch_one(&mut *conn).await? {
        return Ok(None);
    }
    let sql = format!("SELECT schema_version, least_library FROM {meta}");
    let row = sqlx::query(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await?;
    Ok(Some((row.try_get(0)?, row.try_get(1)?)))
}

/// An error unless this library can work with the tables; the name of the outbox.
pub(super) async fn check_version(conn: &mut PgConnection, schema: &str, tables: &Tables) -> Result<Uuid> {
    let (found, least) = read_version(conn, schema, tables).await?.unwrap_or_default();
    if found < VERSION {
        return Err(OutboxError::NotMigrated { found, needed: VERSION });
    }
    if least > VERSION {
        return Err(OutboxError::SchemaTooNew { found, least, ours: VERSION });
    }
    let sql = format!("SELECT outbox_id FROM {}", names(Some(schema), tables).table("meta"));
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).persistent(false).fetch_one(conn).await?)
}

/// The order of ids is a promise, and a cached identity would break it.
pub(super) async fn check_suitable(store: &PostgresStore) -> Result<()> {
    let sql =
        "SELECT seqcache FROM pg_sequence WHERE seqrelid = pg_get_serial_sequence($1, 'id')::regclass".into();
    let rows = store.fetch(query(&sql).bind(&store.shared.incoming)).await?;
    let cache: i64 = rows.first().map_or(Ok(1), |row| row.try_get(0))?;
    if cache == 1 {
        return Ok(());
    }
    let table = &store.shared.incoming;
    Err(OutboxError::Unsuitable(format!(
        "the identity of {table} is cached ({cache}), so ids would not follow the order of enqueueing: \
         ALTER TABLE {table} ALTER COLUMN id SET CACHE 1"
    )))
}
