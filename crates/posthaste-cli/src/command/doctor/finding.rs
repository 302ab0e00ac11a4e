//! What an examination comes to, and the report of all of them.

use serde::Serialize;
use sqlx::mysql::MySqlDatabaseError;

use crate::failure::Failure;

/// How bad a finding is. A notice is worth knowing, and no reason to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Notice,
    Warning,
    Problem,
}

/// Something that is wrong or will be, or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Of the examination that found it: short, and the same for ever.
    pub code: &'static str,
    pub severity: Severity,
    /// What is wrong, with its values.
    pub summary: String,
    /// What to do.
    pub advice: String,
}

impl Finding {
    /// The outbox does not work, or not as promised.
    pub fn problem(summary: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Problem, summary, advice)
    }

    /// It works, but slower than it could, or not for long.
    pub fn warning(summary: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Warning, summary, advice)
    }

    /// A choice that somebody may have made on purpose, or something that we could not see.
    pub fn notice(summary: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Severity::Notice, summary, advice)
    }

    fn new(severity: Severity, summary: impl Into<String>, advice: impl Into<String>) -> Self {
        // The report knows the code.
        Self { code: "", severity, summary: summary.into(), advice: advice.into() }
    }
}

/// An examination: its code, and what is so if it finds nothing.
#[derive(Debug, Clone, Copy)]
pub struct Examination {
    pub code: &'static str,
    pub fine: &'static str,
}

/// What all examinations came to, in order.
#[derive(Debug, Default)]
pub struct Report {
    /// What the server calls itself.
    pub version: String,
    pub done: Vec<Done>,
}

/// What one of them came to.
#[derive(Debug)]
pub struct Done {
    pub examination: Examination,
    pub findings: Vec<Finding>,
    /// Not if the database refused.
    pub was_possible: bool,
}

impl Report {
    /// Takes down what an examination came to. What the database refuses is said and does not end the others; if it does not
    /// answer any more, that is the end.
    pub fn add(
        &mut self,
        examination: Examination,
        result: Result<Vec<Finding>, sqlx::Error>,
    ) -> Result<(), Failure> {
        match result {
            Ok(findings) => self.push(examination, findings, true),
            Err(sqlx::Error::Database(said)) => {
                let because = format!("the database says: {}", said.message());
                if is_late(&*said) {
                    self.locked(examination, &because);
                } else {
                    self.unexamined(examination, &because, advice(&*said));
                }
            }
            Err(sqlx::Error::Io(error)) if error.kind() == std::io::ErrorKind::TimedOut => {
                self.locked(examination, "it took too long");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The same of two examinations that are made at once, and refused at once.
    pub fn add_both(
        &mut self,
        examinations: [Examination; 2],
        result: Result<[Vec<Finding>; 2], sqlx::Error>,
    ) -> Result<(), Failure> {
        let [one, other] = examinations;
        match result {
            Ok([found, found_too]) => {
                self.push(one, found, true);
                self.push(other, found_too, true);
            }
            Err(error) => {
                let refused = self.done.len();
                self.add(one, Err(error))?;
                let findings = self.done.get(refused).map(|done| done.findings.clone()).unwrap_or_default();
                self.push(other, findings, false);
            }
        }
        Ok(())
    }

    /// Says that something was not examined, why, and what would help.
    pub fn unexamined(&mut self, examination: Examination, because: &str, advice: &str) {
        let summary = format!("not examined, because {because}");
        self.push(examination, vec![Finding::notice(summary, advice)], false);
    }

    /// Says that something was not examined because of somebody's lock, which is in the way of the outbox, too.
    fn locked(&mut self, examination: Examination, because: &str) {
        let summary = format!("not examined, because {because}");
        self.push(examination, vec![Finding::warning(summary, TOO_LATE)], false);
    }

    fn push(&mut self, examination: Examination, mut findings: Vec<Finding>, was_possible: bool) {
        for finding in &mut findings {
            finding.code = examination.code;
        }
        self.done.push(Done { examination, findings, was_possible });
    }

    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.done.iter().flat_map(|done| &done.findings)
    }

    pub fn count(&self, severity: Severity) -> usize {
        self.findings().filter(|finding| finding.severity == severity).count()
    }

    pub fn is_well(&self) -> bool {
        self.findings().all(|finding| finding.severity == Severity::Notice)
    }
}

/// What to do about what took too long.
const TOO_LATE: &str = "a session holds a lock on the tables, or the server is very busy: workers wait, too. Find it (long-transaction \
                        may name it, also with --long-transaction 1s), let it end, and look again";

/// Whether a lock or a statement took too long.
fn is_late(said: &dyn sqlx::error::DatabaseError) -> bool {
    matches!(&*said.code().unwrap_or_default(), "55P03" | "57014")
        || matches!(number(said), Some(1205 | 1969 | 3024))
}

/// What to do about what the database refused.
fn advice(said: &dyn sqlx::error::DatabaseError) -> &'static str {
    if &*said.code().unwrap_or_default() == "42501" || matches!(number(said), Some(1044 | 1142 | 1143 | 1227))
    {
        "look as a user who may, or give this one the right"
    } else {
        "see whether the other findings explain it; the server's log may say more"
    }
}

fn number(said: &dyn sqlx::error::DatabaseError) -> Option<u16> {
    said.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
}
