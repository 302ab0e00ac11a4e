//! Who has a transaction open for long, and what stays for their sake.

use std::time::Duration;

use sqlx::{MySqlConnection, mysql::MySqlDatabaseError};

use crate::{
    command::doctor::{
        Patient,
        finding::{Examination, Finding},
        read_from, shortened,
    },
    output::span,
};

pub const TRANSACTIONS: Examination =
    Examination { code: "long-transaction", fine: "no transaction is open for long" };
pub const HISTORY: Examination = Examination { code: "history", fine: "what is deleted is removed in time" };

/// More transactions than this that wait for their purge make every look at our tables slow.
const LONG_HISTORY: i64 = 1_000_000;

/// The right PROCESS is missing.
const DENIED: u16 = 1227;
/// MySQL's lists show what every session is doing, and cannot be read while somebody's statement has bytes that are no text.
const NO_TEXT: u16 = 3854;
/// Such a statement is over soon, as a rule: how often to look, and how long to wait in between.
const LOOKS: u32 = 10;
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

struct Session {
    id: i64,
    who: String,
    client: String,
    db: String,
    state: String,
    open_s: i64,
    since: String,
}
read_from!(sqlx::mysql::MySqlRow => Session { id, who, client, db, state, open_s, since });

pub async fn transactions(
    conn: &mut MySqlConnection,
    patient: &Patient<'_>,
) -> Result<Vec<Finding>, sqlx::Error> {
    let mut found = sessions(conn, patient).await;
    for _ in 1..LOOKS {
        if !found.as_ref().is_err_and(is_no_text) {
            break;
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
        found = sessions(conn, patient).await;
    }
    Ok(shortened(found?.iter().map(Session::finding).collect()))
}

async fn sessions(conn: &mut MySqlConnection, patient: &Patient<'_>) -> Result<Vec<Session>, sqlx::Error> {
    let sql = include_str!("../sql/mysql/sessions.sql");
    sqlx::query_as(sql).bind(patient.long_s()).fetch_all(conn).await
}

impl Session {
    fn finding(&self) -> Finding {
        let Self { id, who, client, db, state, open_s, since } = self;
        let age = span(Duration::from_secs(u64::try_from(*open_s).unwrap_or_default()));
        if *id == 0 {
            return Finding::warning(
                format!(
                    "a prepared transaction without a session has been open for {age}, since {since}: it keeps its locks"
                ),
                "XA RECOVER lists it; ask whoever coordinates it, then XA COMMIT or XA ROLLBACK",
            );
        }
        Finding::warning(
            format!(
                "session {id} (user {who}, from {client}, database {db:?}, {state}) has a transaction open for {age}, since {since}: \
                 what is delivered since then stays in the tables, which get slower"
            ),
            format!("KILL {id} ends it, if nobody needs it; see that its program commits"),
        )
    }
}

pub async fn history(conn: &mut MySqlConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let sql = include_str!("../sql/mysql/history.sql");
    let length: Option<i64> = sqlx::query_scalar(sql).fetch_optional(conn).await?;
    Ok(history_findings(length.unwrap_or_default()))
}

fn history_findings(length: i64) -> Vec<Finding> {
    if length <= LONG_HISTORY {
        return Vec::new();
    }
    vec![Finding::warning(
        format!(
            "InnoDB keeps what {length} transactions have deleted or changed: looking at the tables gets slower with it"
        ),
        "end old transactions (see long-transaction); if there are none, the purge is too slow: innodb_purge_threads, \
         innodb_max_purge_lag",
    )]
}

/// Whether we may not see what others do.
pub fn is_denied(error: &sqlx::Error) -> bool {
    number(error) == Some(DENIED)
}

/// Whether what others do cannot be shown.
pub fn is_no_text(error: &sqlx::Error) -> bool {
    number(error) == Some(NO_TEXT)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    let said = error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?;
    Some(said.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_history_is_found() {
        assert_eq!(history_findings(LONG_HISTORY), []);
        assert!(history_findings(LONG_HISTORY + 1)[0].summary.contains("1000001 transactions"));
    }
}
