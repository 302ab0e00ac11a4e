//! What can be wrong with a SQLite file.

use std::{path::Path, time::Duration};

use sqlx::{ConnectOptions, Connection, Row, SqlitePool, sqlite::SqliteConnectOptions};

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
/// The same if somebody was waited for already.
const SHORT_WAIT: Duration = Duration::from_millis(100);

/// How SQLite numbers what it refuses.
mod code {
    pub const BUSY: i32 = 5;
    pub const READ_ONLY: i32 = 8;
    pub const CORRUPT: i32 = 11;
    pub const CANNOT_OPEN: i32 = 14;
    pub const NOT_A_DATABASE: i32 = 26;
}

/// What keeps most of the examinations from being made.
enum Illness {
    /// What SQLite says of it.
    Damaged(String),
    /// Somebody lets nobody else near the file.
    Excluded,
}

fn illness(error: &sqlx::Error) -> Option<Illness> {
    match primary_code(error)? {
        code::CORRUPT | code::NOT_A_DATABASE => Some(Illness::Damaged(said(error))),
        code::BUSY => Some(Illness::Excluded),
        _ => None,
    }
}

/// The report as it grows, and whether the file was found damaged by anything that was done with it.
struct Visit {
    report: Report,
    damage: Option<String>,
}

pub async fn examine(pool: &SqlitePool, patient: &Patient<'_>) -> Result<Report, Failure> {
    let options = (*pool.connect_options()).clone();
    let file = std::path::absolute(options.get_filename())?;
    let mut visit = Visit { report: Report::default(), damage: None };
    visit.report.version = format!("SQLite {}", version().await?);

    let wait = patient.long_transaction.min(LONGEST_WAIT);
    let written = may_write(options.clone().busy_timeout(wait)).await;
    // Whoever has waited once need not wait again for the same.
    let is_busy = written.as_ref().is_err_and(|error| primary_code(error) == Some(code::BUSY));
    let wait = if is_busy { SHORT_WAIT } else { LONGEST_WAIT };
    // We only look. The pool would do more than that: the library switches the journal on it.
    let looking = options.read_only(true).create_if_missing(false).busy_timeout(wait);
    let looking = SqlitePool::connect_lazy_with(looking);

    let there = match tables(&looking).await {
        Ok(there) => Ok(there),
        Err(error) => Err(illness(&error).ok_or(error)?),
    };
    match &there {
        Ok(there) => visit.add(SCHEMA, schema(&looking, there, patient).await)?,
        Err(illness) => visit.unexamined(SCHEMA, illness),
    }
    visit.writing(written, &file, patient)?;
    match &there {
        Ok(there) if there.contains(&format!("{}meta", patient.prefix)) => {
            visit.add(JOURNAL, journal(&looking).await)?;
        }
        // Making them switches it.
        Ok(_) => visit.report.unexamined(JOURNAL, schema::NO_TABLES, schema::SEE),
        Err(illness) => visit.unexamined(JOURNAL, illness),
    }
    visit.report.add(WAL_SIZE, Ok(wal_size(&file)))?;
    visit.integrity(&looking).await?;
    Ok(visit.report)
}

impl Visit {
    /// Takes down what an examination came to; whoever could not be examined because of an illness is not the one who has it.
    fn add(
        &mut self,
        examination: Examination,
        found: Result<Vec<Finding>, sqlx::Error>,
    ) -> Result<(), Failure> {
        match found.as_ref().err().and_then(illness) {
            Some(illness) => self.unexamined(examination, &illness),
            None => self.report.add(examination, found)?,
        }
        Ok(())
    }

    fn unexamined(&mut self, examination: Examination, illness: &Illness) {
        match illness {
            Illness::Damaged(said) => {
                self.damage.get_or_insert_with(|| said.clone());
                self.report.unexamined(examination, "the file is damaged", "see integrity");
            }
            Illness::Excluded => {
                self.report.unexamined(examination, "somebody else writes", "see long-transaction");
            }
        }
    }

    /// Whether we may write, and whether somebody keeps us from it for long.
    fn writing(
        &mut self,
        written: Result<(), sqlx::Error>,
        file: &Path,
        patient: &Patient<'_>,
    ) -> Result<(), Failure> {
        let Err(error) = written else {
            self.report.add(RIGHTS, Ok(folder(file)))?;
            return self.report.add(WRITER, Ok(Vec::new()));
        };
        match (illness(&error), primary_code(&error)) {
            (Some(illness @ Illness::Excluded), _) => {
                self.unexamined(RIGHTS, &illness);
                self.report.add(WRITER, Ok(vec![somebody_writes(patient)]))
            }
            (Some(illness), _) => {
                self.unexamined(RIGHTS, &illness);
                self.unexamined(WRITER, &illness);
                Ok(())
            }
            (None, Some(code::READ_ONLY | code::CANNOT_OPEN)) => {
                let found = Finding::problem(
                    format!("{} cannot be written to: {}", file.display(), said(&error)),
                    "give this user the right to write to the file and to its folder, where the WAL is; take mode=ro and \
                     immutable out of the URL",
                );
                self.report.add(RIGHTS, Ok(vec![found]))?;
                // Without the right to write, nothing is known of the others.
                self.report.unexamined(WRITER, "we may not write here either", "see rights");
                Ok(())
            }
            _ => Err(error.into()),
        }
    }

    /// Only of what is read in a moment, unless the damage shows already.
    async fn integrity(&mut self, pool: &SqlitePool) -> Result<(), Failure> {
        if self.damage.is_none() {
            match check(pool).await {
                Ok(Checked::Sound) => return self.report.add(INTEGRITY, Ok(Vec::new())),
                Ok(Checked::Damaged(said)) => self.damage = Some(said),
                Ok(Checked::TooLarge(mib)) => {
                    self.report.unexamined(
                        INTEGRITY,
                        &format!("the file has {mib} MiB, which takes long to read"),
                        "run PRAGMA quick_check when there is time",
                    );
                    return Ok(());
                }
                Err(error) => match illness(&error) {
                    Some(Illness::Damaged(said)) => self.damage = Some(said),
                    _ => return self.add(INTEGRITY, Err(error)),
                },
            }
        }
        let said = self.damage.as_deref().unwrap_or_default();
        let found = Finding::problem(
            format!("the file is damaged: {said}"),
            "stop everything that uses it, keep a copy, and restore a backup; or see what `sqlite3 FILE .recover` saves",
        );
        self.report.add(INTEGRITY, Ok(vec![found]))
    }
}

/// Of the library that is built in: no file is needed for it.
async fn version() -> Result<String, sqlx::Error> {
    let mut conn = SqliteConnectOptions::new().in_memory(true).connect().await?;
    sqlx::query_scalar("SELECT sqlite_version()").fetch_one(&mut conn).await
}

async fn text(pool: &SqlitePool, sql: &'static str) -> Result<String, sqlx::Error> {
    sqlx::raw_sql(sql).fetch_one(pool).await?.try_get(0)
}

async fn tables(pool: &SqlitePool) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'table'").fetch_all(pool).await
}

async fn schema(
    pool: &SqlitePool,
    there: &[String],
    patient: &Patient<'_>,
) -> Result<Vec<Finding>, sqlx::Error> {
    use posthaste::OutboxError::Unsuitable;
    // That the journal is no WAL, and cannot be made one by who only looks, is another examination's matter.
    let said = schema::fits(pool, patient).await?.filter(|error| !matches!(error, Unsuitable(_)));
    let elsewhere: Vec<String> =
        sqlx::query_scalar(include_str!("sql/sqlite/elsewhere.sql")).fetch_all(pool).await?;
    let elsewhere: Vec<_> = elsewhere.into_iter().map(|prefix| Elsewhere { schema: None, prefix }).collect();
    Ok(schema::findings(said.as_ref(), &patient.tables(&TABLES), there, &elsewhere))
}

/// Found out by a transaction that is rolled back.
async fn may_write(options: SqliteConnectOptions) -> Result<(), sqlx::Error> {
    let mut conn = options.connect().await?;
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    // Only now does SQLite say that it may not write; nobody ever sees that table.
    sqlx::raw_sql("CREATE TABLE main.posthaste_doctor (x)").execute(&mut *tx).await?;
    tx.rollback().await?;
    conn.close().await
}

fn somebody_writes(patient: &Patient<'_>) -> Finding {
    let wait = span(patient.long_transaction.min(LONGEST_WAIT));
    Finding::warning(
        format!("somebody has been writing for longer than {wait}, and every other writer waits"),
        "find the process that has a transaction open on the file (fuser, lsof), and let it commit sooner: with SQLite, there is \
         one writer at a time",
    )
}

/// The WAL is made in the folder and removed there.
fn folder(file: &Path) -> Vec<Finding> {
    let Some(folder) = file.parent() else { return Vec::new() };
    match tempfile::tempfile_in(folder) {
        Ok(_) => Vec::new(),
        Err(error) => vec![Finding::problem(
            format!("nothing can be made in the folder {}: {error}", folder.display()),
            "give this user the right to write to the folder: the WAL is there",
        )],
    }
}

/// In the words of SQLite.
fn said(error: &sqlx::Error) -> String {
    error.as_database_error().map_or_else(|| error.to_string(), |said| said.message().to_owned())
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?.parse::<i32>().ok()?;
    Some(code & 0xff)
}

async fn journal(pool: &SqlitePool) -> Result<Vec<Finding>, sqlx::Error> {
    let mode = text(pool, "PRAGMA main.journal_mode").await?;
    if mode == "wal" {
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

fn wal_size(file: &Path) -> Vec<Finding> {
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

/// What a look at all of the file came to.
enum Checked {
    Sound,
    Damaged(String),
    /// So many MiB.
    TooLarge(i64),
}

async fn check(pool: &SqlitePool) -> Result<Checked, sqlx::Error> {
    let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let bytes: i64 = sqlx::query_scalar(sql).fetch_one(pool).await?;
    if bytes > LARGE_FILE {
        return Ok(Checked::TooLarge(bytes >> 20));
    }
    let said = text(pool, "PRAGMA main.quick_check(1)").await?;
    Ok(if said == "ok" { Checked::Sound } else { Checked::Damaged(said) })
}
