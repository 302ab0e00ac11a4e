//! How a command fails: with one sentence, and an exit code that says what kind of failure it is.

use std::io;

use console::style;
use posthaste::OutboxError;

use crate::{
    exit,
    output::{note, printable},
};

/// The exit code of a command that came to its end, or why it did not.
pub type Outcome = Result<u8, Failure>;

#[derive(Debug)]
pub enum Failure {
    /// Something is wrong with the outbox, or in the way.
    Problem(String),
    /// The same, but another try may do better.
    Passing(String),
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
            Self::Problem(text) | Self::Passing(text) => (exit::PROBLEM, &**text),
            Self::Usage(text) => (exit::USAGE, &**text),
            Self::OutOfReach(text) => (exit::OUT_OF_REACH, &**text),
            Self::ClosedPipe => return exit::DONE,
            Self::Interrupted => (exit::INTERRUPTED, "interrupted before it was done"),
        };
        note(format_args!("{} {}", style("posthaste:").red().bold().for_stderr(), without_urls(text)));
        code
    }

    /// Input that cannot be read.
    pub fn input(what: &str, error: &io::Error) -> Self {
        Self::Usage(format!("cannot read {what}: {error}"))
    }

    /// Standard output that cannot be written.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::ClosedPipe,
            _ => Self::Problem(format!("cannot write to standard output: {error}")),
        }
    }

    /// Of what has changed something, and only cannot say so.
    pub fn though_done(self) -> Self {
        match self {
            Self::Problem(text) => Self::Problem(format!("{text}; what was to be done is done")),
            failure => failure,
        }
    }

    /// What is wrong, if that may be over at the next look.
    pub fn may_pass(&self) -> Option<&str> {
        match self {
            Self::OutOfReach(why) | Self::Passing(why) => Some(why),
            _ => None,
        }
    }
}

/// A text in which no URL is repeated: somebody may have put one, with a password, where it does not belong.
pub fn without_urls(text: &str) -> String {
    const INSTEAD: &str = "(a URL)";
    let typed = std::env::args_os().filter_map(|typed| typed.into_string().ok());
    let text =
        typed.filter(|typed| is_url(typed)).fold(text.to_owned(), |text, url| text.replace(&url, INSTEAD));
    // Those that were shortened, or come from elsewhere.
    let redacted = |word: &str| if is_url(word) { INSTEAD.to_owned() } else { word.to_owned() };
    text.split_inclusive(char::is_whitespace)
        .map(|word| {
            let end = word.trim_end().len();
            redacted(&word[..end]) + &word[end..]
        })
        .collect()
}

/// Whether anything is behind the scheme: the sentences that say how a URL begins are not about any.
fn is_url(word: &str) -> bool {
    word.split_once("://").is_some_and(|(_, rest)| rest.contains(char::is_alphanumeric))
}

/// What a reader of URLs says, without the value that it does not like.
pub fn without_values(why: &str) -> String {
    let why = why.trim_start_matches("error with configuration: ");
    match (why.find('"'), why.rfind('"')) {
        (Some(begin), Some(end)) if begin < end => {
            format!("{}{}", &why[..begin], why[end + 1..].trim_start())
        }
        _ => why.to_owned(),
    }
}

impl From<OutboxError> for Failure {
    fn from(error: OutboxError) -> Self {
        let may_pass = error.is_retryable();
        match Self::of(error) {
            Self::Problem(why) if may_pass => Self::Passing(why),
            failure => failure,
        }
    }
}

impl Failure {
    fn of(error: OutboxError) -> Self {
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
            // It speaks to programs.
            OutboxError::Unsuitable(why) => {
                Self::Problem(printable(&why.replace("run posthaste::migrate", "run `posthaste migrate`")))
            }
            _ => Self::Problem(printable(&error.to_string())),
        }
    }
}

/// What sqlx says when a server wants a password that is encrypted with its key, and there is no TLS.
const NO_RSA: &str = "RSA auth backend disabled";

/// What the library says of a SQLite file that somebody else keeps writing to: it is in reach, and speaks to programs.
const ANOTHER_WRITER: &str = "another writer was in the way";

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        use sqlx::Error;
        match &error {
            Error::Configuration(why) if why.to_string().starts_with(NO_RSA) => Self::Usage(
                "the server takes no password that is not encrypted: leave ssl-mode=DISABLED out of the database URL".to_owned(),
            ),
            Error::Configuration(why) => {
                Self::Usage(format!("the database URL cannot be used: {}", without_values(&why.to_string())))
            }
            Error::Io(why) if why.to_string().starts_with(ANOTHER_WRITER) => Self::Passing(
                "another process has been writing to the database for 30 s: try again when it is done".to_owned(),
            ),
            Error::Io(_) | Error::Tls(_) | Error::PoolTimedOut | Error::PoolClosed | Error::WorkerCrashed => {
                Self::OutOfReach(format!("the database is out of reach: {}", printable(&error.to_string())))
            }
            Error::Database(said) if keeps_us_out(&**said) => {
                Self::OutOfReach(format!("the database does not let us in: {}", printable(said.message())))
            }
            Error::Database(said) => Self::Problem(format!("the database says: {}", printable(said.message()))),
            _ => Self::Problem(printable(&error.to_string())),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_others_write_to_is_in_reach() {
        let late = io::Error::new(io::ErrorKind::TimedOut, format!("{ANOTHER_WRITER} for 30 s: …"));
        let failure = Failure::from(OutboxError::from(sqlx::Error::Io(late)));
        assert!(
            matches!(failure, Failure::Passing(why) if why.starts_with("another process has been writing"))
        );
    }

    #[test]
    fn no_url_is_repeated() {
        assert_eq!(
            without_urls("there is no queue \"postgres://u:S3CRET@h/db\": see\n  elsewhere"),
            "there is no queue (a URL) see\n  elsewhere"
        );
        let own = "it should begin with postgres://, mysql://, mariadb:// or sqlite:";
        assert_eq!(without_urls(own), own);
        assert_eq!(without_values(r#"unknown value "a\"b" for `ssl_mode`"#), "unknown value for `ssl_mode`");
    }
}
