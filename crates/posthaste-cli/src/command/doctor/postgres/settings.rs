//! The server's settings.

use crate::command::doctor::{
    finding::{Examination, Finding},
    read_from,
};

pub const VERSION: Examination =
    Examination { code: "server-version", fine: "the server has all that the outbox needs" };
pub const READ_ONLY: Examination = Examination { code: "read-only", fine: "the server can be written to" };
pub const DURABILITY: Examination =
    Examination { code: "durability", fine: "what is committed survives a crash of the machine" };

/// The oldest version that the outbox works on: it needs `xid8` and `pg_current_xact_id`.
const OLDEST: i32 = 13;

#[derive(Debug, Clone)]
pub struct Settings {
    pub version: String,
    pub version_num: i32,
    pub is_standby: bool,
    pub is_read_only: bool,
    pub has_autovacuum: bool,
    pub has_counts: bool,
    pub has_fsync: bool,
    pub has_full_pages: bool,
    pub has_durable_commits: bool,
}
read_from!(sqlx::postgres::PgRow => Settings { version, version_num, is_standby, is_read_only, has_autovacuum, has_counts, has_fsync, has_full_pages, has_durable_commits });

impl Settings {
    pub fn version(&self) -> Vec<Finding> {
        if self.version_num / 10_000 >= OLDEST {
            return Vec::new();
        }
        vec![Finding::problem(
            format!("the server is PostgreSQL {}: the outbox needs {OLDEST} or later", self.version),
            "upgrade the server",
        )]
    }

    pub fn read_only(&self) -> Vec<Finding> {
        if self.is_standby {
            return vec![Finding::problem(
                "this server is a standby, which takes no messages and delivers none",
                "use the URL of the primary",
            )];
        }
        if self.is_read_only {
            return vec![Finding::warning(
                "default_transaction_read_only is on: transactions of this role cannot enqueue unless they begin as READ WRITE",
                "ALTER ROLE … RESET default_transaction_read_only, or take it out of the URL, the database or postgresql.conf",
            )];
        }
        Vec::new()
    }

    /// Somebody may have chosen it, so it is no warning; but who lost messages would like to have been told.
    pub fn durability(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !self.has_fsync || !self.has_full_pages {
            let which = if self.has_fsync { "full_page_writes" } else { "fsync" };
            findings.push(Finding::notice(
                format!(
                    "{which} is off: a crash of the machine may destroy the whole cluster, the outbox with it"
                ),
                format!("switch {which} on, unless all of it can be made again"),
            ));
        }
        if !self.has_durable_commits {
            findings.push(Finding::notice(
                "synchronous_commit is off for this role: a crash of the server may lose the messages of the last moments, with \
                 the transactions that sent them",
                "SET synchronous_commit = on where that matters; the outbox's own order is durable in any case",
            ));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> Settings {
        Settings {
            version: "15.4".to_owned(),
            version_num: 150_004,
            is_standby: false,
            is_read_only: false,
            has_autovacuum: true,
            has_counts: true,
            has_fsync: true,
            has_full_pages: true,
            has_durable_commits: true,
        }
    }

    #[test]
    fn usual_settings_are_fine() {
        let settings = well();
        assert_eq!([settings.version(), settings.read_only(), settings.durability()].concat(), []);
    }

    #[test]
    fn an_old_server_is_found() {
        let old = Settings { version_num: 120_017, version: "12.17".to_owned(), ..well() };
        assert!(old.version()[0].summary.contains("PostgreSQL 12.17"));
        assert_eq!(Settings { version_num: 130_000, ..well() }.version(), []);
    }

    #[test]
    fn a_standby_is_found() {
        let standby = Settings { is_standby: true, is_read_only: true, ..well() };
        assert!(standby.read_only()[0].summary.contains("standby"));
        assert_eq!(standby.read_only().len(), 1);
    }

    #[test]
    fn what_a_crash_may_destroy_is_said() {
        assert!(Settings { has_fsync: false, ..well() }.durability()[0].summary.starts_with("fsync"));
        assert!(
            Settings { has_full_pages: false, ..well() }.durability()[0].summary.starts_with("full_page")
        );
    }
}
