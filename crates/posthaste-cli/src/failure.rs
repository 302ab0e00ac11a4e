//! How a command fails: with one sentence, and an exit code that says what kind of failure it is.

use std::io;

use console::style;
use posthaste::OutboxError;

use crate::{exit, output::note};

/// The exit code of a command that came to its end, or why it did not.
pub type Outcome = Result<u8, Failure>;

#[derive(Debug)]
pub enum Failure {
    /// Something is wrong with the outbox, or in the way.
    Problem(String),
    /// The command was called in a wrong way.
    Usage(String),
    /// The database is not there, does not answer, or does not let us in.
    OutOfReach(String),
    /// Whoever read what we print has seen enough.
    ClosedPipe,
    Interrupted,
}

impl Failure {
    /// Says it on standard error, if there is anything to say; the exit code.
    pub fn report(&self) -> u8 {
        let (code, text) = match self {
            Self::Problem(text) => (exit::PROBLEM, &**text),
            Self::Usage(text) => (exit::USAGE, &**text),
            Self::OutOfReach(text) => (exit::OUT_OF_REACH, &**text),
            Self::ClosedPipe => return exit::DONE,
            Self::Interrupted => (exit::INTERRUPTED, "interrupted before it was done"),
        };
        note(format_args!("{} {text}", style("posthaste:").red().bold().for_stderr()));
        code
    }

    /// Input that cannot be read.
    pub fn input(what: &str, error: &io::Error) -> Self {
        Self::Usage(format!("cannot read {what}: {error}"))
    }
}

impl From<OutboxError> for Failure {
    fn from(error: OutboxError) -> Self {
        match error {
            OutboxError::Database(error) => error.into(),
            OutboxError::NotMigrated { found: 0, .. } => Self::Problem(
                "the outbox's tables are not there: `posthaste migrate` makes them; or name the right \
                 --table-prefix or --schema"
                    .to_owned(),
            ),
            OutboxError::NotMigrated { found, needed } => Self::Problem(format!(
                "the outbox's tables have version {found}, this command needs {needed}: run `posthaste migrate`"
            )),
            OutboxError::SchemaTooNew { found, least, ours } => Self::Problem(format!(
                "the outbox's tables have version {found}, which needs a posthaste for version {least} or later, and this one \
                 is for {ours}: install a newer one"
            )),
            OutboxError::QueueNotRegistered(queue) => {
                Self::Usage(format!("there is no queue {queue:?}: `posthaste queues` lists those there are"))
            }
            OutboxError::PayloadTooLarge { size, max } => {
                Self::Usage(format!("a payload of {size} bytes is too large: the limit is {max} bytes"))
            }
            OutboxError::PartitionOutOfRange { .. }
            | OutboxError::PartitionCountMismatch { .. }
            | OutboxError::InvalidQueueName(_)
            | OutboxError::InvalidPayloadType(_)
            | OutboxError::InvalidKey { .. }
            | OutboxError::TooManyHeaders { .. }
            | OutboxError::InvalidTableName(_)
            | OutboxError::InvalidArgument(_) => Self::Usage(error.to_string()),
            _ => Self::Problem(error.to_string()),
        }
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error;
        match &error {
            Error::Configuration(why) if why.to_string().contains("RSA") => Self::Usage(
                "the server takes no password that is not encrypted: leave ssl-mode=DISABLED out of the database URL".to_owned(),
            ),
            Error::Configuration(why) => Self::Usage(format!("the database URL cannot be used: {why}")),
            Error::Io(_) | Error::Tls(_) | Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed => {
                Self::OutOfReach(format!("the database is out of reach: {error}"))
            }
            Error::Database(said) if keeps_us_out(&**said) => {
                Self::OutOfReach(format!("the database does not let us in: {}", said.message()))
            }
            Error::Database(said) => Self::Problem(format!("the database says: {}", said.message())),
            _ => Self::Problem(error.to_string()),
        }
    }
}

/// Whether a database says that we cannot have it at all, rather than that it will not do something.
fn keeps_us_out(said: &dyn sqlx::error::DatabaseError) -> bool {
    if let Some(said) = said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // Too many connections, access denied, no such database, host blocked or not allowed, shutting down.
        return matches!(said.number(), 1040 | 1044 | 1045 | 1049 | 1129 | 1130 | 1053 | 1698 | 3159);
    }
    let code = said.code().unwrap_or_default();
    if said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
        // Connection, authorization, no such database, too many connections, starting up or shutting down.
        return ["08", "28", "57P"].iter().any(|class| code.starts_with(class))
            || code == "3D000"
            || code == "53300";
    }
    // SQLite: cannot open the file, or it is none.
    matches!(&*code, "14" | "26")
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Problem(error.to_string()),
        }
    }
}
