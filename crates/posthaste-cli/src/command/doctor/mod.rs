//! `posthaste doctor`: looks for what is wrong with the database, or will be, and says what to do.
//!
//! It changes nothing, reads no messages, and waits for nobody's locks. What it looks for is in a file per database; what it may
//! not see is said, too.

mod clock;
mod finding;
mod mysql;
mod postgres;
mod schema;
mod sqlite;

use std::time::Duration;

/// Reads the fields of a struct from the columns of the same names.
macro_rules! read_from {
    ($row:ty => $type:ident { $($field:ident),+ }) => {
        impl<'r> sqlx::FromRow<'r, $row> for $type {
            fn from_row(row: &'r $row) -> Result<Self, sqlx::Error> {
                Ok(Self { $($field: sqlx::Row::try_get(row, stringify!($field))?),+ })
            }
        }
    };
}
use read_from;

use console::style;
use posthaste::Tables;
use serde::Serialize;

use self::finding::{Done, Finding, Report, Severity};
use crate::{
    Context,
    args::Doctor,
    database::{Address, Database},
    exit,
    failure::{Failure, Outcome},
    output::printable,
};

/// How long the whole of it may take. Each statement is cut off by the server much earlier.
const PATIENCE: Duration = Duration::from_secs(120);

/// The most findings of one kind that are listed.
const MOST_LISTED: usize = 10;

/// What to examine.
struct Patient<'a> {
    tables: &'a Tables,
    prefix: &'a str,
    schema: Option<&'a str>,
    /// What is open for longer is a finding.
    long_transaction: Duration,
}

impl Patient<'_> {
    /// The full names of the outbox's tables.
    fn tables(&self, names: &[&str]) -> Vec<String> {
        names.iter().map(|name| format!("{}{name}", self.prefix)).collect()
    }

    /// In seconds, as databases can count with them.
    fn long_s(&self) -> f64 {
        const CENTURY: f64 = 3e9;
        self.long_transaction.as_secs_f64().min(CENTURY)
    }
}

#[derive(Serialize)]
struct Examined<'a> {
    ok: bool,
    database: &'a str,
    version: &'a str,
    findings: Vec<&'a Finding>,
    checked: Vec<&'a str>,
}

pub async fn run(options: &Doctor, context: &Context) -> Outcome {
    let (tables, address) = (context.tables()?, context.address()?.to_string());
    let patient = Patient {
        tables: &tables,
        prefix: context.common.table_prefix(),
        schema: context.common.schema.as_deref(),
        long_transaction: options.long_transaction,
    };
    let database = open(context).await?;
    let examining = async {
        match database {
            Database::Postgres(pool) => postgres::examine(&pool, &patient).await,
            Database::MySql(pool) => mysql::examine(&pool, &patient).await,
            Database::Sqlite(pool) => sqlite::examine(&pool, &patient).await,
        }
    };
    let late =
        |_| Failure::OutOfReach("the database is out of reach: it does not answer any more".to_owned());
    let report = tokio::time::timeout(PATIENCE, examining).await.map_err(late)??;
    if context.out.json {
        context.out.object(&Examined {
            ok: report.is_well(),
            database: &address,
            version: &report.version,
            findings: report.findings().collect(),
            checked: report
                .done
                .iter()
                .filter(|done| done.was_possible)
                .map(|done| done.examination.code)
                .collect(),
        })?;
    } else {
        context.out.line(format_args!("{}, {}", printable(&address), printable(&report.version)))?;
        let width = report.done.iter().map(|done| done.examination.code.len()).max().unwrap_or_default();
        for done in &report.done {
            context.out.line(shown(done, width))?;
        }
        context.out.line(summary(&report))?;
    }
    Ok(if report.is_well() { exit::DONE } else { exit::PROBLEM })
}

/// The database, as far as it can be opened: what is wrong with a file is for us to say.
async fn open(context: &Context) -> Result<Database, Failure> {
    match context.address()? {
        Address::Sqlite(options) if options.get_filename().is_file() => {
            Ok(Database::Sqlite(sqlx::SqlitePool::connect_lazy_with(*options)))
        }
        _ => context.open().await,
    }
}

/// A line for an examination, or two for each thing that it found.
fn shown(done: &Done, width: usize) -> String {
    let code = format!("{:width$}", done.examination.code);
    if done.findings.is_empty() {
        return format!("{}  {code}  {}", style("ok     ").green(), done.examination.fine);
    }
    let lines = done.findings.iter().map(|finding| {
        let mark = match finding.severity {
            Severity::Notice => style("notice ").cyan(),
            Severity::Warning => style("warning").yellow(),
            Severity::Problem => style("problem").red().bold(),
        };
        let indent = " ".repeat("warning".len() + width + 4);
        format!("{mark}  {code}  {}\n{indent}{}", printable(&finding.summary), printable(&finding.advice))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn summary(report: &Report) -> String {
    let count = |severity, name: &str| match report.count(severity) {
        0 => None,
        1 => Some(format!("1 {name}")),
        many => Some(format!("{many} {name}s")),
    };
    let found = [
        count(Severity::Problem, "problem"),
        count(Severity::Warning, "warning"),
        count(Severity::Notice, "notice"),
    ];
    let found = found.into_iter().flatten().collect::<Vec<_>>().join(", ");
    match (report.is_well(), found.is_empty()) {
        (true, true) => style("all is well").green().to_string(),
        (true, false) => format!("{}: {found}", style("all is well").green()),
        (false, _) => found,
    }
}

/// No more than can be read; the rest is counted.
fn shortened(mut findings: Vec<Finding>) -> Vec<Finding> {
    let more = findings.len().saturating_sub(MOST_LISTED);
    if more > 0 {
        findings.truncate(MOST_LISTED);
        findings.push(Finding::warning(
            format!("and {more} more of the same kind"),
            "look again when those above are gone",
        ));
    }
    findings
}
