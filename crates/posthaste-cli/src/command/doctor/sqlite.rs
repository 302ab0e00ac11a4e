//! What can be wrong with a SQLite file.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use sqlx::{ConnectOptions, Connection, Row, SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions};

use super::{
    Patient,
    finding::{Examination, Finding, Report},
    schema::{self, Elsewhere, SCHEMA},
};
use crate::{failure::Failure, output::span, table_names::TABLES};

const RIGHTS: Examination = Examination { code: "rights", fine: "the file and its folder can be written to" };
const WRITER: Examination =
    Examination { code: "long-transaction", fine: "nobody keeps other writers waiting" };
const JOURNAL: Examination = Examination {
    code: "journal-mode",
    fine: "the journal is a WAL: readers and the writer do not exclude each other",
};
const WAL_SIZE: Examination = Examination { code: "wal-size", fine: "the WAL is emptied in time" };
const INTEGRITY: Examination = Examination { code: "integrity", fine: "the file is not damaged" };

/// The outbox's workers bring the WAL down to 16 MiB whenever they can. More than this, in bytes, says that they cannot.
const LARGE_WAL: u64 = 64 * 1024 * 1024;
/// A larger file, in bytes, takes too long to be checked.
const LARGE_FILE: i64 = 64 * 1024 * 1024;
/// How long to wait for a writer, at most.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// How SQLite numbers what it refuses.
mod code {
    pub const BUSY: i32 = 5;
    pub const READ_ONLY: i32 = 8;
    pub const CORRUPT: i32 = 11;
    pub const CANNOT_OPEN: i32 = 14;
}

pub async fn examine(pool: &SqlitePool, patient: &Patient<'_>) -> Result<Report, Failure> {
    let mut report = Report::default();
    let options = (*pool.connect_options()).clone();
    // We only look. The pool would do more than that: the library switches the journal on it.
    let looking = SqlitePool::connect_lazy_with(options.clone().read_only(true).create_if_missing(false));
    let mut conn = looking.acquire().await?;
    report.version = format!("SQLite {}", text(&mut conn, "SELECT sqlite_version()").await?);
    let file = file_of(&mut conn).await?;

    report.add(SCHEMA, schema(&looking, &mut conn, patient).await)?;
    let (rights, writer) = may_write(options, file.as_deref(), patient).await?;
    report.add(RIGHTS, Ok(rights))?;
    match writer {
        Some(writer) => report.add(WRITER, Ok(writer))?,
        None => report.unexamined(WRITER, "we may not write here either", "see rights"),
    }
    if has_tables(&mut conn, patient).await? {
        report.add(JOURNAL, journal(&mut conn, file.is_some()).await)?;
    } else {
        // Making them switches it.
        report.unexamined(JOURNAL, schema::NO_TABLES, schema::SEE);
    }
    report.add(WAL_SIZE, Ok(wal_size(file.as_deref())))?;
    integrity(&mut report, &mut conn).await?;
    Ok(report)
}

async fn text(conn: &mut SqliteConnection, sql: &'static str) -> Result<String, sqlx::Error> {
    sqlx::raw_sql(sql).fetch_one(conn).await?.try_get(0)
}

/// The file that the database is in; none if it is in memory.
async fn file_of(conn: &mut SqliteConnection) -> Result<Option<PathBuf>, sqlx::Error> {
    let sql = "SELECT file FROM pragma_database_list WHERE name = 'main' AND file <> ''";
    let file: Option<String> = sqlx::query_scalar(sql).fetch_optional(conn).await?;
    Ok(file.map(PathBuf::from))
}

async fn schema(
    pool: &SqlitePool,
    conn: &mut SqliteConnection,
    patient: &Patient<'_>,
) -> Result<Vec<Finding>, sqlx::Error> {
    use posthaste::OutboxError::Unsuitable;
    // That the journal is no WAL, and cannot be made one by who only looks, is another examination's matter.
    let said = schema::fits(pool, patient).await?.filter(|error| !matches!(error, Unsuitable(_)));
    let there: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table'")
        .fetch_all(&mut *conn)
        .await?;
    let elsewhere: Vec<String> =
        sqlx::query_scalar(include_str!("sql/sqlite/elsewhere.sql")).fetch_all(conn).await?;
    let elsewhere: Vec<_> = elsewhere.into_iter().map(|prefix| Elsewhere { schema: None, prefix }).collect();
    Ok(schema::findings(said.as_ref(), &patient.tables(&TABLES), &there, &elsewhere))
}

async fn has_tables(conn: &mut SqliteConnection, patient: &Patient<'_>) -> Result<bool, sqlx::Error> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)";
    sqlx::query_scalar(sql).bind(format!("{}meta", patient.prefix)).fetch_one(conn).await
}

/// Whether we may write, and whether somebody keeps us from it for long: found out by a transaction that is rolled back. Without the
/// right to write, nothing is said of the others.
async fn may_write(
    options: SqliteConnectOptions,
    file: Option<&Path>,
    patient: &Patient<'_>,
) -> Result<(Vec<Finding>, Option<Vec<Finding>>), sqlx::Error> {
    let wait = patient.long_transaction.min(LONGEST_WAIT);
    let trying = async {
        let mut conn = options.busy_timeout(wait).connect().await?;
        let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
        // Only now does SQLite say that it may not write; nobody ever sees that table.
        sqlx::raw_sql("CREATE TABLE main.posthaste_doctor (x)").execute(&mut *tx).await?;
        tx.rollback().await?;
        conn.close().await
    };
    let error = match trying.await {
        Ok(()) => return Ok((folder(file), Some(Vec::new()))),
        Err(error) => error,
    };
    let shown = file.unwrap_or(Path::new("the database")).display();
    let said = error.as_database_error().map_or_else(|| error.to_string(), |said| said.message().to_owned());
    match primary_code(&error) {
        Some(code::BUSY) => Ok((
            Vec::new(),
            Some(vec![Finding::warning(
                format!(
                    "somebody has been writing for longer than {}, and every other writer waits",
                    span(wait)
                ),
                "find the process that has a transaction open on the file (fuser, lsof), and let it commit sooner: with SQLite, \
                 there is one writer at a time",
            )]),
        )),
        Some(code::READ_ONLY | code::CANNOT_OPEN) => Ok((
            vec![Finding::problem(
                format!("{shown} cannot be written to: {said}"),
                "give this user the right to write to the file and to its folder, where the WAL is; take mode=ro and immutable out \
                 of the URL",
            )],
            None,
        )),
        _ => Err(error),
    }
}

/// The WAL is made in the folder and removed there.
fn folder(file: Option<&Path>) -> Vec<Finding> {
    let Some(folder) = file.and_then(Path::parent) else { return Vec::new() };
    match tempfile::tempfile_in(folder) {
        Ok(_) => Vec::new(),
        Err(error) => vec![Finding::problem(
            format!("nothing can be made in the folder {}: {error}", folder.display()),
            "give this user the right to write to the folder: the WAL is there",
        )],
    }
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    Some(code & 0xff)
}

async fn journal(conn: &mut SqliteConnection, is_file: bool) -> Result<Vec<Finding>, sqlx::Error> {
    let mode = text(conn, "PRAGMA main.journal_mode").await?;
    if mode == "wal" || !is_file {
        return Ok(Vec::new());
    }
    Ok(vec![Finding::warning(
        format!(
            "the journal mode is {mode:?}: readers and the writer exclude each other until it is \"wal\""
        ),
        "it is switched by the first worker that starts; or at once by PRAGMA journal_mode = WAL while nobody else uses the file. \
         On a network file system it cannot be: use a local disk",
    )])
}

fn wal_size(file: Option<&Path>) -> Vec<Finding> {
    let Some(file) = file else { return Vec::new() };
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    match std::fs::metadata(&log) {
        Ok(found) if found.len() >= LARGE_WAL => vec![Finding::warning(
            format!(
                "the WAL has {} MiB: somebody reads for so long that it cannot be emptied",
                found.len() >> 20
            ),
            "find the process that has a transaction open on the file (fuser, lsof), and let it end; then the workers bring it \
             down, or PRAGMA wal_checkpoint(TRUNCATE) does",
        )],
        _ => Vec::new(),
    }
}

/// Only of what is read in a moment.
async fn integrity(report: &mut Report, conn: &mut SqliteConnection) -> Result<(), Failure> {
    let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let bytes: i64 = sqlx::query_scalar(sql).fetch_one(&mut *conn).await?;
    if bytes > LARGE_FILE {
        report.unexamined(
            INTEGRITY,
            &format!("the file has {} MiB, which takes long to read", bytes >> 20),
            "run PRAGMA quick_check when there is time",
        );
        return Ok(());
    }
    let said = match text(conn, "PRAGMA main.quick_check(1)").await {
        Err(error) if primary_code(&error) == Some(code::CORRUPT) => Ok(error.to_string()),
        said => said,
    };
    let found = said.map(|said| {
        if said == "ok" {
            return Vec::new();
        }
        vec![Finding::problem(
            format!("the file is damaged: {said}"),
            "stop everything that uses it, keep a copy, and restore a backup; or see what `sqlite3 FILE .recover` saves",
        )]
    });
    report.add(INTEGRITY, found)
}
