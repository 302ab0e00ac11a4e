//! Who has a transaction open for long, or keeps dead rows alive.

use std::time::Duration;

use sqlx::PgConnection;

use crate::{
    command::doctor::{
        Patient,
        finding::{Examination, Finding},
        read_from, shortened,
    },
    output::span,
};

pub const SNAPSHOTS: Examination =
    Examination { code: "old-snapshot", fine: "no session keeps dead rows alive for long" };
pub const TRANSACTIONS: Examination =
    Examination { code: "long-transaction", fine: "no other transaction is open for long" };
pub const PREPARED: Examination =
    Examination { code: "prepared-transaction", fine: "no prepared transaction waits for its end" };
pub const REPLICATION: Examination =
    Examination { code: "replication", fine: "no standby keeps dead rows alive for long" };

/// A standby that is connected may be behind by so many transactions: what it reads takes its time.
const TOLERATED_AGE: i32 = 1_000_000;

#[derive(Debug, Clone)]
struct Session {
    pid: i32,
    who: String,
    application: String,
    client: String,
    state: String,
    open_s: f64,
    since: String,
    /// It has a snapshot, or has written: what is deleted since then cannot be removed.
    pins: bool,
}
read_from!(sqlx::postgres::PgRow => Session { pid, who, application, client, state, open_s, since, pins });

/// Findings of old snapshots and of other long transactions; each session is in one of them.
pub async fn sessions(
    conn: &mut PgConnection,
    patient: &Patient<'_>,
) -> Result<[Vec<Finding>; 2], sqlx::Error> {
    let sql = include_str!("../sql/postgres/sessions.sql");
    let sessions: Vec<Session> =
        sqlx::query_as(sql).persistent(false).bind(patient.long_s()).fetch_all(&mut *conn).await?;
    let (pinning, others): (Vec<_>, Vec<_>) = sessions.iter().partition(|session| session.pins);
    let found = |sessions: Vec<&Session>| shortened(sessions.into_iter().map(Session::finding).collect());
    let (mut pinning, others) = (found(pinning), found(others));
    pinning.extend(hidden(conn).await?);
    Ok([pinning, others])
}

/// What we cannot see is not all well.
async fn hidden(conn: &mut PgConnection) -> Result<Option<Finding>, sqlx::Error> {
    let sql = include_str!("../sql/postgres/hidden_sessions.sql");
    let (hidden, me): (i64, String) = sqlx::query_as(sql).persistent(false).fetch_one(conn).await?;
    Ok((hidden > 0).then(|| {
        Finding::notice(
            format!(
                "not examined: sessions of other users, {hidden} in this database, because {me} may not see what they do"
            ),
            format!("look as a superuser, or GRANT pg_read_all_stats TO {me}"),
        )
    }))
}

impl Session {
    fn finding(&self) -> Finding {
        let Self { pid, who, application, client, state, open_s, since, pins } = self;
        let application =
            if application.is_empty() { String::new() } else { format!(", application {application:?}") };
        let age = span(Duration::try_from_secs_f64(*open_s).unwrap_or_default());
        let harm = if *pins {
            "what is delivered since then cannot be removed, so that the tables and the work on them grow"
        } else {
            "what it has locked, others wait for"
        };
        let mut advice = format!("SELECT pg_terminate_backend({pid}) ends it, if nobody needs it");
        if state.starts_with("idle in transaction") {
            advice.push_str(
                "; idle_in_transaction_session_timeout = '1min' for its role ends such sessions by themselves",
            );
        }
        Finding::warning(
            format!(
                "session {pid} (user {who}{application}, from {client}, {state}) has a transaction open for {age}, since {since}: \
                 {harm}"
            ),
            advice,
        )
    }
}

struct Prepared {
    gid: String,
    owner: String,
    open_s: f64,
}
read_from!(sqlx::postgres::PgRow => Prepared { gid, owner, open_s });

pub async fn prepared(conn: &mut PgConnection, patient: &Patient<'_>) -> Result<Vec<Finding>, sqlx::Error> {
    let sql = include_str!("../sql/postgres/prepared.sql");
    let prepared: Vec<Prepared> =
        sqlx::query_as(sql).persistent(false).bind(patient.long_s()).fetch_all(conn).await?;
    let finding = |Prepared { gid, owner, open_s }: Prepared| {
        let age = span(Duration::try_from_secs_f64(open_s).unwrap_or_default());
        let literal = gid.replace('\'', "''");
        Finding::warning(
            format!(
                "transaction {gid:?} of {owner} was prepared {age} ago and has not ended: it keeps its locks, and all rows that were \
                 deleted since"
            ),
            format!(
                "ask whoever coordinates it; else, as {owner} or a superuser in this database: COMMIT PREPARED '{literal}' or \
                 ROLLBACK PREPARED '{literal}'"
            ),
        )
    };
    Ok(shortened(prepared.into_iter().map(finding).collect()))
}

#[derive(Debug)]
struct Standby {
    is_slot: bool,
    name: String,
    is_active: bool,
    /// In transactions.
    age: i32,
}
read_from!(sqlx::postgres::PgRow => Standby { is_slot, name, is_active, age });

pub async fn replication(conn: &mut PgConnection) -> Result<Vec<Finding>, sqlx::Error> {
    let sql = include_str!("../sql/postgres/replication.sql");
    let standbys: Vec<Standby> = sqlx::query_as(sql).persistent(false).fetch_all(conn).await?;
    Ok(shortened(standbys.iter().filter_map(Standby::finding).collect()))
}

impl Standby {
    fn finding(&self) -> Option<Finding> {
        let Self { is_slot, name, is_active, age } = self;
        let kept = format!("keeps all rows alive that were deleted in the last {age} transactions");
        if !is_active {
            let literal = name.replace('\'', "''");
            return Some(Finding::warning(
                format!("replication slot {name:?} {kept}, and nobody is connected to it"),
                format!(
                    "start its standby; or, if there is none any more, SELECT pg_drop_replication_slot('{literal}')"
                ),
            ));
        }
        let what = if *is_slot { "the standby of replication slot" } else { "standby" };
        (*age > TOLERATED_AGE).then(|| {
            Finding::warning(
                format!("{what} {name:?} {kept}: something long is read there"),
                "end what is read on the standby, or switch hot_standby_feedback off there",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_that_is_connected_may_be_a_little_behind() {
        let standby = |age, is_slot| Standby { is_slot, name: "s".to_owned(), is_active: true, age };
        assert!(standby(TOLERATED_AGE, true).finding().is_none());
        let found = standby(TOLERATED_AGE + 1, false).finding().unwrap();
        assert!(found.summary.starts_with("standby \"s\" keeps all rows"), "{found:?}");
    }

    #[test]
    fn a_slot_that_nobody_uses_is_found_at_once() {
        let slot = Standby { is_slot: true, name: "it's".to_owned(), is_active: false, age: 1 };
        let found = slot.finding().unwrap();
        assert!(found.advice.contains("pg_drop_replication_slot('it''s')"), "{found:?}");
    }
}
