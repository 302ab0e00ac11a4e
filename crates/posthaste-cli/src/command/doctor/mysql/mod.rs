//! What can be wrong with a MySQL or a MariaDB.

mod rights;
mod sessions;
mod settings;

use sqlx::{AssertSqlSafe, MySqlConnection, MySqlPool, Row};

use self::{
    rights::RIGHTS,
    sessions::{HISTORY, TRANSACTIONS},
    settings::{BINLOG, DURABILITY, ISOLATION, LOCK_MODE, PACKET, READ_ONLY, SQL_MODE, Settings, VERSION},
};
use super::{
    Patient,
    clock::{self, CLOCK},
    finding::{Examination, Finding, Report},
    schema::{self, Elsewhere, SCHEMA},
};
use crate::{
    failure::Failure,
    table_names::{PENDING, TABLES},
};

const ENGINE: Examination = Examination { code: "engine", fine: "the tables are InnoDB's" };

type Found = Result<Vec<Finding>, sqlx::Error>;

pub async fn examine(pool: &MySqlPool, patient: &Patient<'_>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let mut conn = pool.acquire().await?;
    let settings = settings(&mut conn).await?;
    be_brief(&mut conn, settings.is_mariadb()).await?;
    report.version = settings.name();
    report.add(VERSION, Ok(settings.version()))?;
    report.add(READ_ONLY, Ok(settings.read_only()))?;

    let names = [&TABLES[..], &[PENDING]].concat();
    let database: Option<String> = match patient.schema {
        Some(schema) => Some(schema.to_owned()),
        None => sqlx::query_scalar("SELECT DATABASE()").fetch_one(&mut *conn).await?,
    };
    let there = tables(&mut conn, database.as_deref()).await?;
    let has = |name: &&&str| there.iter().any(|(table, _)| *table == format!("{}{name}", patient.prefix));
    let ours: Vec<_> = names.iter().filter(has).copied().collect();
    report.add(SCHEMA, schema(pool, &mut conn, patient, &names, &there).await)?;
    if ours.is_empty() {
        report.unexamined(
            RIGHTS,
            schema::NO_TABLES,
            "if they are there, this user has no right to any of them",
        );
        report.unexamined(ENGINE, schema::NO_TABLES, schema::SEE);
    } else {
        let database = database.unwrap_or_default();
        report.add(RIGHTS, rights::rights(&mut conn, &database, patient.prefix, &ours).await)?;
        report.add(ENGINE, Ok(engine(&there, &patient.tables(&names), &database)))?;
    }

    transactions(&mut report, &mut conn, patient).await?;
    report.add(LOCK_MODE, Ok(settings.lock_mode()))?;
    report.add(ISOLATION, Ok(settings.isolation()))?;
    report.add(BINLOG, Ok(settings.binlog()))?;
    report.add(PACKET, Ok(settings.packet()))?;
    if settings.is_mariadb() {
        report.add(SQL_MODE, Ok(settings.sql_mode()))?;
    }
    report.add(CLOCK, clock(&mut conn).await)?;
    report.add(DURABILITY, Ok(settings.durability()))?;
    Ok(report)
}

/// Sees to it that a statement of this session is done soon, and that it waits for nobody. The isolation is one in which reads do
/// not lock, and that every binary log can take.
async fn be_brief(conn: &mut MySqlConnection, is_mariadb: bool) -> Result<(), sqlx::Error> {
    let limit = if is_mariadb { "max_statement_time = 5" } else { "max_execution_time = 5000" };
    let sql = format!(
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
         SET SESSION autocommit = 1, lock_wait_timeout = 1, innodb_lock_wait_timeout = 1, {limit}"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop)
}

async fn settings(conn: &mut MySqlConnection) -> Result<Settings, sqlx::Error> {
    let rows = sqlx::raw_sql(include_str!("../sql/mysql/settings.sql")).fetch_all(conn).await?;
    let settings =
        rows.iter().map(|row| Ok((row.try_get::<String, _>(0)?.to_ascii_lowercase(), row.try_get(1)?)));
    Ok(Settings(settings.collect::<Result<_, sqlx::Error>>()?))
}

/// The tables of a database, with their engines.
async fn tables(
    conn: &mut MySqlConnection,
    database: Option<&str>,
) -> Result<Vec<(String, String)>, sqlx::Error> {
    sqlx::query_as(include_str!("../sql/mysql/tables.sql")).bind(database).fetch_all(conn).await
}

async fn schema(
    pool: &MySqlPool,
    conn: &mut MySqlConnection,
    patient: &Patient<'_>,
    names: &[&str],
    there: &[(String, String)],
) -> Found {
    let said = schema::fits(pool, patient).await?;
    let there: Vec<_> = there.iter().map(|(name, _)| name.clone()).collect();
    let rows: Vec<(String, String)> =
        sqlx::query_as(include_str!("../sql/mysql/elsewhere.sql")).fetch_all(conn).await?;
    let elsewhere = rows.into_iter().map(|(schema, name)| {
        let prefix = name.strip_suffix("meta").unwrap_or_default().to_owned();
        Elsewhere { schema: Some(schema), prefix }
    });
    let elsewhere: Vec<_> = elsewhere.collect();
    Ok(schema::findings(said.as_ref(), &patient.tables(names), &there, &elsewhere))
}

/// Nothing else has transactions as the outbox needs them.
fn engine(there: &[(String, String)], ours: &[String], database: &str) -> Vec<Finding> {
    let odd =
        there.iter().filter(|(name, engine)| ours.contains(name) && !engine.eq_ignore_ascii_case("InnoDB"));
    let finding = |(name, engine): &(String, String)| {
        Finding::problem(
            format!(
                "{name} is of engine {engine:?}, not InnoDB: what is written there does not roll back with its transaction"
            ),
            format!(
                "ALTER TABLE `{}`.`{name}` ENGINE = InnoDB, while nothing is enqueued or delivered",
                database.replace('`', "``")
            ),
        )
    };
    odd.map(finding).collect()
}

/// What others do is shown only to who has a certain right.
async fn transactions(
    report: &mut Report,
    conn: &mut MySqlConnection,
    patient: &Patient<'_>,
) -> Result<(), Failure> {
    let found = [
        (TRANSACTIONS, sessions::transactions(conn, patient).await),
        (HISTORY, sessions::history(conn).await),
    ];
    for (examination, found) in found {
        match found {
            Err(error) if sessions::is_denied(&error) => report.unexamined(
                examination,
                "this user may not see what others do",
                "look as a user who may, or GRANT PROCESS ON *.* to this one",
            ),
            Err(error) if sessions::is_no_text(&error) => report.unexamined(
                examination,
                "a statement that is running has bytes that are no text, and MySQL cannot list it",
                "look again when it is over; SELECT * FROM performance_schema.processlist shows what is running",
            ),
            found => report.add(examination, found)?,
        }
    }
    Ok(())
}

/// By the function that the outbox takes its times from, without what the time zone does to it.
async fn clock(conn: &mut MySqlConnection) -> Found {
    let mut looks = Vec::new();
    for _ in 0..clock::LOOKS {
        let ask = sqlx::query_scalar("SELECT CAST(unix_timestamp(now(6)) AS DOUBLE)");
        looks.push(clock::look(ask.fetch_one(&mut *conn)).await?);
    }
    Ok(clock::findings(&looks))
}
