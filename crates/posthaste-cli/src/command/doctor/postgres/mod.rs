//! What can be wrong with a PostgreSQL.

mod notifications;
mod sessions;
mod settings;
mod upkeep;

use sqlx::{PgConnection, PgPool};

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
    read_from,
    schema::{self, Elsewhere, SCHEMA},
};
use crate::{failure::Failure, table_names::TABLES};

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
    let there = tables(pool, patient).await?;
    report.add(SCHEMA, schema(pool, patient, &there).await)?;
    if !there.is_empty() {
        report.add(RIGHTS, rights(pool, patient, &there).await)?;
        report.add(ID_CACHE, id_cache(pool, patient).await)?;
        report.add_both([BLOAT, AUTOVACUUM], upkeep(pool, patient, &settings).await)?;
    } else {
        for examination in [RIGHTS, ID_CACHE, BLOAT] {
            report.unexamined(examination, schema::NO_TABLES, schema::SEE);
        }
        report.add(AUTOVACUUM, Ok(upkeep::autovacuum(&settings, &[])))?;
    }

    report.add_both(
        [SNAPSHOTS, TRANSACTIONS],
        looking(pool, async |conn| sessions::sessions(conn, patient).await).await,
    )?;
    report.add(PREPARED, looking(pool, async |conn| sessions::prepared(conn, patient).await).await)?;
    report.add(REPLICATION, looking(pool, sessions::replication).await)?;
    report.add(NOTIFICATIONS, notifications::notifications(pool).await)?;
    report.add(CLOCK, clock(pool).await)?;
    report.add(DURABILITY, Ok(settings.durability()))?;
    Ok(report)
}

/// Looks in a transaction: also because a pooler may give each its own session. It is over when we have seen it, so that we do not
/// find ourselves.
async fn looking<T>(
    pool: &PgPool,
    look: impl AsyncFnOnce(&mut PgConnection) -> Result<T, sqlx::Error>,
) -> Result<T, sqlx::Error> {
    let mut tx = pool.begin_with(BEGIN).await?;
    let seen = look(&mut tx).await;
    match seen {
        // Whoever does not answer need not be told that it is over.
        Err(error) if error.as_database_error().is_none() => Err(error),
        seen => tx.rollback().await.and(seen),
    }
}

type Found = Result<Vec<Finding>, sqlx::Error>;
type FoundTwice = Result<[Vec<Finding>; 2], sqlx::Error>;

async fn settings(pool: &PgPool) -> Result<Settings, sqlx::Error> {
    let sql = include_str!("../sql/postgres/settings.sql");
    looking(pool, async |conn| sqlx::query_as(sql).persistent(false).fetch_one(conn).await).await
}

/// Whether the tables are there and fit. A schema that is not there, or not open to us, is the library's to say.
async fn schema(pool: &PgPool, patient: &Patient<'_>, there: &[Table]) -> Found {
    let said = schema::fits(pool, patient).await?;
    let there: Vec<_> = there.iter().map(|table| table.name.clone()).collect();
    let sql = include_str!("../sql/postgres/elsewhere.sql");
    let found: Vec<(String, String)> =
        looking(pool, async |conn| sqlx::query_as(sql).persistent(false).fetch_all(conn).await).await?;
    let elsewhere = found.into_iter().map(|(schema, name)| {
        let prefix = name.strip_suffix("meta").unwrap_or_default().to_owned();
        Elsewhere { schema: Some(schema), prefix }
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    Ok(schema::findings(said.as_ref(), &patient.tables(&TABLES), &there, &elsewhere))
}

/// A table that is there.
struct Table {
    name: String,
    /// The rights that we lack in it.
    lacks: String,
    /// With its schema, as SQL has it.
    full_name: String,
}
read_from!(sqlx::postgres::PgRow => Table { name, lacks, full_name });

async fn tables(pool: &PgPool, patient: &Patient<'_>) -> Result<Vec<Table>, sqlx::Error> {
    let sql = include_str!("../sql/postgres/tables.sql");
    let query = sqlx::query_as(sql).persistent(false).bind(patient.schema).bind(patient.tables(&TABLES));
    looking(pool, async |conn| query.fetch_all(conn).await).await
}

async fn rights(pool: &PgPool, patient: &Patient<'_>, there: &[Table]) -> Found {
    let sql = include_str!("../sql/postgres/may_enter.sql");
    let query = sqlx::query_as(sql).persistent(false).bind(patient.schema);
    let role: Option<(String, String, bool)> =
        looking(pool, async |conn| query.fetch_optional(conn).await).await?;
    let Some((me, schema, may_enter)) = role else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    if !may_enter {
        findings.push(Finding::problem(
            format!("role {me} may not use schema {schema}"),
            format!("as its owner: GRANT USAGE ON SCHEMA {schema} TO {me}"),
        ));
    }
    for Table { lacks, full_name, .. } in there.iter().filter(|table| !table.lacks.is_empty()) {
        findings.push(Finding::problem(
            format!("role {me} lacks {lacks} on {full_name}"),
            format!("as its owner: GRANT {lacks} ON {full_name} TO {me}"),
        ));
    }
    Ok(findings)
}

/// The order of ids is a promise, and a session that takes several at once would break it.
async fn id_cache(pool: &PgPool, patient: &Patient<'_>) -> Found {
    let table = format!("{}incoming", patient.prefix);
    let sql = include_str!("../sql/postgres/id_cache.sql");
    let query = sqlx::query_as(sql).persistent(false).bind(patient.schema).bind(&table);
    let found: Option<(i64, String)> = looking(pool, async |conn| query.fetch_optional(conn).await).await?;
    Ok(found.filter(|(cache, _)| *cache > 1).map_or_else(Vec::new, |(cache, table)| {
        vec![Finding::problem(
            format!(
                "each session takes {cache} ids of {table} at once: they would not follow the order of enqueueing, and workers \
                 refuse to start"
            ),
            format!("ALTER TABLE {table} ALTER COLUMN id SET CACHE 1"),
        )]
    }))
}

async fn upkeep(pool: &PgPool, patient: &Patient<'_>, settings: &Settings) -> FoundTwice {
    let tables = patient.tables(&TABLES);
    let tables = looking(pool, async |conn| upkeep::upkeep(conn, patient.schema, &tables).await).await?;
    Ok([upkeep::bloat(&tables), upkeep::autovacuum(settings, &tables)])
}

/// By the function that the outbox takes its times from.
async fn clock(pool: &PgPool) -> Found {
    let looks = looking(pool, async |conn| {
        let mut looks = Vec::new();
        for _ in 0..clock::LOOKS {
            let ask =
                sqlx::query_scalar("SELECT extract(epoch FROM clock_timestamp())::float8").persistent(false);
            looks.push(clock::look(ask.fetch_one(&mut *conn)).await?);
        }
        Ok(looks)
    });
    Ok(clock::findings(&looks.await?))
}
