//! What can be wrong with a PostgreSQL.

mod notifications;
mod sessions;
mod settings;
mod upkeep;

use sqlx::{PgConnection, PgPool, Postgres, Row, Transaction};

use self::{
    notifications::NOTIFICATIONS,
    sessions::{PREPARED, REPLICATION, SNAPSHOTS, TRANSACTIONS},
    settings::{DURABILITY, READ_ONLY, Settings, VERSION},
    upkeep::{AUTOVACUUM, BLOAT},
};
use super::{
    Patient,
    clock::{self, CLOCK},
    finding::{Examination, Finding, Report},
    schema::{self, Elsewhere, SCHEMA, TABLES},
};
use crate::failure::Failure;

const RIGHTS: Examination =
    Examination { code: "rights", fine: "this role may do with the tables what is needed" };
const ID_CACHE: Examination =
    Examination { code: "id-cache", fine: "ids are given out in the order of enqueueing" };

/// How an examination begins: it changes nothing, is done soon, and waits for nobody.
const BEGIN: &str = "BEGIN READ ONLY; SET LOCAL statement_timeout = '5s'; SET LOCAL lock_timeout = '1s'";

pub async fn examine(pool: &PgPool, patient: &Patient<'_>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let settings = settings(pool).await?;
    report.version = format!("PostgreSQL {}", settings.version);
    report.add(VERSION, Ok(settings.version()))?;
    report.add(READ_ONLY, Ok(settings.read_only()))?;
    report.add(SCHEMA, schema(pool, patient).await)?;
    report.add(RIGHTS, rights(pool, patient).await)?;
    report.add(ID_CACHE, id_cache(pool, patient).await)?;

    report.add_both([SNAPSHOTS, TRANSACTIONS], sessions(pool, patient).await)?;
    report.add(PREPARED, prepared(pool, patient).await)?;
    report.add(REPLICATION, replication(pool).await)?;

    report.add_both([BLOAT, AUTOVACUUM], upkeep(pool, patient, &settings).await)?;
    report.add(NOTIFICATIONS, notifications::notifications(pool).await)?;
    report.add(CLOCK, clock(pool).await)?;
    report.add(DURABILITY, Ok(settings.durability()))?;
    Ok(report)
}

/// A transaction in which we look: also because a pooler may give each its own session.
async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    pool.begin_with(BEGIN).await
}

type Found = Result<Vec<Finding>, sqlx::Error>;
type FoundTwice = Result<[Vec<Finding>; 2], sqlx::Error>;

async fn settings(pool: &PgPool) -> Result<Settings, sqlx::Error> {
    let sql = include_str!("../sql/postgres/settings.sql");
    sqlx::query_as(sql).persistent(false).fetch_one(&mut *begin(pool).await?).await
}

/// Whether the tables are there and fit. A schema that is not there, or not open to us, is the library's to say.
async fn schema(pool: &PgPool, patient: &Patient<'_>) -> Found {
    let said = schema::fits(pool, patient).await?;
    let mut tx = begin(pool).await?;
    let expected = patient.tables(&TABLES);
    let there: Vec<_> = tables(&mut tx, patient).await?.into_iter().map(|(name, _)| name).collect();
    let rows = sqlx::query(include_str!("../sql/postgres/elsewhere.sql"))
        .persistent(false)
        .fetch_all(&mut *tx)
        .await?;
    let elsewhere = rows.iter().map(|row| {
        let name: String = row.try_get("name")?;
        let prefix = name.strip_suffix("meta").unwrap_or_default().to_owned();
        Ok(Elsewhere { schema: row.try_get("schema")?, prefix })
    });
    let elsewhere = elsewhere.collect::<Result<Vec<_>, sqlx::Error>>()?;
    Ok(schema::findings(said.as_ref(), &expected, &there, &elsewhere))
}

/// The tables that are there, and the rights that we lack in them.
async fn tables(
    conn: &mut PgConnection,
    patient: &Patient<'_>,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(include_str!("../sql/postgres/tables.sql"))
        .persistent(false)
        .bind(patient.schema)
        .bind(patient.tables(&TABLES))
        .fetch_all(conn)
        .await
}

async fn rights(pool: &PgPool, patient: &Patient<'_>) -> Found {
    let mut tx = begin(pool).await?;
    let sql = include_str!("../sql/postgres/may_enter.sql");
    let role: Option<(String, String, bool)> =
        sqlx::query_as(sql).persistent(false).bind(patient.schema).fetch_optional(&mut *tx).await?;
    let Some((me, schema, may_enter)) = role else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    if !may_enter {
        findings.push(Finding::problem(
            format!("role {me} may not use schema {schema}"),
            format!("as its owner: GRANT USAGE ON SCHEMA {schema} TO {me}"),
        ));
    }
    for (name, lacks) in tables(&mut tx, patient).await?.into_iter().filter(|(_, lacks)| !lacks.is_empty()) {
        findings.push(Finding::problem(
            format!("role {me} lacks {lacks} on {schema}.{name}"),
            format!("as its owner: GRANT {lacks} ON {schema}.{name} TO {me}"),
        ));
    }
    Ok(findings)
}

/// The order of ids is a promise, and a session that takes several at once would break it.
async fn id_cache(pool: &PgPool, patient: &Patient<'_>) -> Found {
    let table = format!("{}incoming", patient.prefix);
    let cache: Option<i64> = sqlx::query_scalar(include_str!("../sql/postgres/id_cache.sql"))
        .persistent(false)
        .bind(patient.schema)
        .bind(&table)
        .fetch_optional(&mut *begin(pool).await?)
        .await?;
    let table = patient.schema.map_or(table.clone(), |schema| format!("{schema}.{table}"));
    Ok(cache.filter(|cache| *cache > 1).map_or_else(Vec::new, |cache| {
        vec![Finding::problem(
            format!("each session takes {cache} ids of {table} at once: they would not follow the order of enqueueing, and workers \
                     refuse to start"),
            format!("ALTER TABLE {table} ALTER COLUMN id SET CACHE 1"),
        )]
    }))
}

async fn sessions(pool: &PgPool, patient: &Patient<'_>) -> FoundTwice {
    sessions::sessions(&mut *begin(pool).await?, patient).await
}

async fn prepared(pool: &PgPool, patient: &Patient<'_>) -> Found {
    sessions::prepared(&mut *begin(pool).await?, patient).await
}

async fn replication(pool: &PgPool) -> Found {
    sessions::replication(&mut *begin(pool).await?).await
}

async fn upkeep(pool: &PgPool, patient: &Patient<'_>, settings: &Settings) -> FoundTwice {
    let tables = patient.tables(&TABLES);
    let tables = upkeep::upkeep(&mut *begin(pool).await?, patient.schema, &tables).await?;
    Ok([upkeep::bloat(&tables), upkeep::autovacuum(settings, &tables)])
}

/// By the function that the outbox takes its times from.
async fn clock(pool: &PgPool) -> Found {
    let mut tx = begin(pool).await?;
    let mut looks = Vec::new();
    for _ in 0..clock::LOOKS {
        let ask =
            sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::float8").persistent(false);
        looks.push(clock::look(ask.fetch_one(&mut *tx)).await?);
    }
    Ok(clock::findings(&looks))
}
