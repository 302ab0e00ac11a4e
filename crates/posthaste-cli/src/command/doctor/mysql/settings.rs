//! The server's settings.

use std::collections::HashMap;

use posthaste::DEFAULT_MAX_PAYLOAD;

use crate::command::doctor::finding::{Examination, Finding};

pub const VERSION: Examination =
    Examination { code: "server-version", fine: "the server has all that the outbox needs" };
pub const READ_ONLY: Examination = Examination { code: "read-only", fine: "the server can be written to" };
pub const LOCK_MODE: Examination =
    Examination { code: "autoinc-lock-mode", fine: "producers do not wait for each other's ids" };
pub const ISOLATION: Examination =
    Examination { code: "isolation", fine: "transactions do not lock what they only read" };
pub const BINLOG: Examination =
    Examination { code: "binlog-format", fine: "the binary log can take our transactions" };
pub const PACKET: Examination =
    Examination { code: "packet", fine: "the largest message fits into a packet" };
pub const SQL_MODE: Examination = Examination { code: "sql-mode", fine: "an empty payload is kept as one" };
pub const DURABILITY: Examination =
    Examination { code: "durability", fine: "what is committed survives a crash of the machine" };

/// The oldest versions that have what the statements need.
const OLDEST_MARIADB: (u32, u32) = (10, 6);
const OLDEST_MYSQL: (u32, u32) = (8, 0);

/// What is left of a packet for anything but the payload: its headers, and the statement.
const PACKET_RESERVE: usize = 64 * 1024;

/// By name, as the server shows them.
pub struct Settings(pub HashMap<String, String>);

impl Settings {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", |value| value)
    }

    fn is_on(&self, name: &str) -> bool {
        !matches!(self.get(name).to_ascii_uppercase().as_str(), "" | "OFF" | "0")
    }

    pub fn is_mariadb(&self) -> bool {
        self.get("version").contains("MariaDB")
    }

    /// What the server calls itself.
    pub fn name(&self) -> String {
        let kind = if self.is_mariadb() { "MariaDB" } else { "MySQL" };
        format!("{kind} {}", self.get("version"))
    }

    pub fn version(&self) -> Vec<Finding> {
        let oldest = if self.is_mariadb() { OLDEST_MARIADB } else { OLDEST_MYSQL };
        if leading_numbers(self.get("version")) >= oldest {
            return Vec::new();
        }
        let (major, minor) = oldest;
        vec![Finding::problem(
            format!("the server is {}: the outbox needs {major}.{minor} or later", self.name()),
            "upgrade the server",
        )]
    }

    pub fn read_only(&self) -> Vec<Finding> {
        let on =
            ["super_read_only", "read_only", "innodb_read_only"].into_iter().find(|name| self.is_on(name));
        on.map_or_else(Vec::new, |name| {
            vec![Finding::problem(
                format!(
                    "{name} is {}: no message can be enqueued or delivered here, unless by an administrator",
                    self.get(name)
                ),
                "use the URL of the primary, if this is a replica; else SET GLOBAL read_only = OFF",
            )]
        })
    }

    pub fn lock_mode(&self) -> Vec<Finding> {
        if self.get("innodb_autoinc_lock_mode") != "0" {
            return Vec::new();
        }
        vec![Finding::warning(
            "innodb_autoinc_lock_mode is 0: who enqueues locks the table of messages until the statement is over, so that producers \
             take turns",
            "set innodb_autoinc_lock_mode = 2 in the server's configuration and restart it; the outbox works either way",
        )]
    }

    pub fn isolation(&self) -> Vec<Finding> {
        let name = if self.0.contains_key("transaction_isolation") {
            "transaction_isolation"
        } else {
            "tx_isolation"
        };
        if !self.get(name).eq_ignore_ascii_case("SERIALIZABLE") {
            return Vec::new();
        }
        vec![Finding::warning(
            format!(
                "{name} is SERIALIZABLE: every read locks, and the batches of several producers can deadlock"
            ),
            format!(
                "SET GLOBAL {name} = 'READ-COMMITTED' or 'REPEATABLE-READ', or try transactions again that deadlock; the workers \
                     use READ COMMITTED in any case"
            ),
        )]
    }

    pub fn binlog(&self) -> Vec<Finding> {
        if !self.is_on("log_bin") || !self.get("binlog_format").eq_ignore_ascii_case("STATEMENT") {
            return Vec::new();
        }
        vec![Finding::problem(
            "binlog_format is STATEMENT, which cannot log READ COMMITTED: workers refuse to start",
            "SET GLOBAL binlog_format = 'ROW', and the same in the server's configuration",
        )]
    }

    pub fn packet(&self) -> Vec<Finding> {
        let Ok(packet) = self.get("max_allowed_packet").parse::<usize>() else { return Vec::new() };
        if packet >= DEFAULT_MAX_PAYLOAD + PACKET_RESERVE {
            return Vec::new();
        }
        vec![Finding::warning(
            format!(
                "max_allowed_packet is {packet} bytes: a payload of {DEFAULT_MAX_PAYLOAD} bytes, which the outbox takes, fails"
            ),
            "SET GLOBAL max_allowed_packet = 67108864, and the same in the server's configuration; or set a smaller max_payload in the \
             services",
        )]
    }

    pub fn sql_mode(&self) -> Vec<Finding> {
        if !self.get("sql_mode").split(',').any(|mode| mode == "EMPTY_STRING_IS_NULL") {
            return Vec::new();
        }
        vec![Finding::warning(
            "sql_mode has EMPTY_STRING_IS_NULL: an empty payload is taken for none, and refused",
            "take it out of sql_mode, or enqueue no empty payloads",
        )]
    }

    /// Somebody may have chosen it, so it is no warning; but who lost messages would like to have been told.
    pub fn durability(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let flush = self.get("innodb_flush_log_at_trx_commit");
        if flush != "1" {
            findings.push(Finding::notice(
                format!(
                    "innodb_flush_log_at_trx_commit is {flush}: a crash of the machine may lose the messages of the last second, with \
                     the transactions that sent them"
                ),
                "SET GLOBAL innodb_flush_log_at_trx_commit = 1, unless that is as it should be",
            ));
        }
        let sync = self.get("sync_binlog");
        if self.is_on("log_bin") && sync != "1" {
            findings.push(Finding::notice(
                format!("sync_binlog is {sync}: after a crash of the machine, a replica may know more or less than the primary"),
                "SET GLOBAL sync_binlog = 1, unless there are no replicas",
            ));
        }
        findings
    }
}

/// The version as it is written, without what some servers put before it for old clients.
fn leading_numbers(version: &str) -> (u32, u32) {
    let version = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(changed: &[(&str, &str)]) -> Settings {
        let usual = [
            ("version", "8.0.36"),
            ("read_only", "OFF"),
            ("super_read_only", "OFF"),
            ("innodb_read_only", "OFF"),
            ("transaction_isolation", "REPEATABLE-READ"),
            ("innodb_autoinc_lock_mode", "2"),
            ("log_bin", "ON"),
            ("binlog_format", "ROW"),
            ("sync_binlog", "1"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("max_allowed_packet", "67108864"),
            ("sql_mode", "STRICT_TRANS_TABLES"),
        ];
        let all = usual.iter().chain(changed).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings(all.collect())
    }

    fn all(settings: &Settings) -> Vec<Finding> {
        [
            settings.version(),
            settings.read_only(),
            settings.lock_mode(),
            settings.isolation(),
            settings.binlog(),
            settings.packet(),
            settings.sql_mode(),
            settings.durability(),
        ]
        .concat()
    }

    #[test]
    fn usual_settings_are_fine() {
        assert_eq!(all(&with(&[])), []);
        assert_eq!(all(&with(&[("version", "5.5.5-10.6.16-MariaDB")])), []);
        assert_eq!(
            all(&with(&[("innodb_autoinc_lock_mode", "1"), ("transaction_isolation", "READ-COMMITTED")])),
            []
        );
        assert_eq!(
            all(&with(&[("log_bin", "OFF"), ("binlog_format", "STATEMENT"), ("sync_binlog", "0")])),
            []
        );
    }

    #[test]
    fn each_unusual_setting_is_one_finding() {
        for changed in [
            ("version", "5.7.44-log"),
            ("version", "10.5.23-MariaDB"),
            ("read_only", "ON"),
            ("super_read_only", "ON"),
            ("innodb_read_only", "ON"),
            ("transaction_isolation", "SERIALIZABLE"),
            ("innodb_autoinc_lock_mode", "0"),
            ("binlog_format", "STATEMENT"),
            ("sync_binlog", "0"),
            ("innodb_flush_log_at_trx_commit", "2"),
            ("max_allowed_packet", "1048576"),
            ("sql_mode", "STRICT_TRANS_TABLES,EMPTY_STRING_IS_NULL"),
        ] {
            assert_eq!(all(&with(&[changed])).len(), 1, "{changed:?}");
        }
    }
}
