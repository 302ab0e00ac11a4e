//! Whether what is dead in our tables is removed.

use sqlx::PgConnection;

use super::settings::Settings;
use crate::command::doctor::{
    finding::{Examination, Finding},
    read_from,
};

pub const BLOAT: Examination =
    Examination { code: "bloat", fine: "the tables are as large as they should be" };
pub const AUTOVACUUM: Examination =
    Examination { code: "autovacuum", fine: "autovacuum is on, and comes to the tables in time" };

/// Fewer dead rows than this are everyday: a busy outbox makes them between two rounds of autovacuum.
const MANY_DEAD: i64 = 100_000;
/// Autovacuum looks once a minute; what it has not come to in this time, in seconds, it will not.
const LONG_UNVACUUMED_S: f64 = 600.0;
/// Less empty room than this, in bytes, is what a burst of messages leaves.
const MUCH_ROOM: i64 = 256 * 1024 * 1024;
/// How many pieces of large values fill a page.
const PIECES_A_PAGE: i64 = 4;
/// With a factor above, autovacuum waits until there is more than one dead row for each live one …
const LARGEST_SCALE_FACTOR: f64 = 1.0;
/// … and with this threshold, until that alone is a burden.
const LARGEST_THRESHOLD: i64 = 1_000_000;

#[derive(Debug, Clone)]
pub struct Upkeep {
    /// As SQL has it.
    name: String,
    /// Whether the statistics know all of it: they are empty after a crash, and after `pg_stat_reset()`.
    is_counted: bool,
    live: i64,
    dead: i64,
    /// Seconds since the last vacuum, if there was one.
    vacuumed_s: Option<f64>,
    /// Without indexes, and without values that are kept elsewhere because they are large.
    bytes: i64,
    /// The same of those values, which are in pieces.
    toast_bytes: i64,
    toast_live: i64,
    toast_is_counted: bool,
    page: i64,
    is_enabled: bool,
    scale_factor: f64,
    threshold: i64,
}
read_from!(sqlx::postgres::PgRow => Upkeep {
    name, is_counted, live, dead, vacuumed_s, bytes, toast_bytes, toast_live, toast_is_counted, page, is_enabled, scale_factor,
    threshold
});

pub async fn upkeep(
    conn: &mut PgConnection,
    schema: Option<&str>,
    tables: &[String],
) -> Result<Vec<Upkeep>, sqlx::Error> {
    let sql = include_str!("../sql/postgres/upkeep.sql");
    sqlx::query_as(sql).persistent(false).bind(schema).bind(tables).fetch_all(conn).await
}

pub fn bloat(tables: &[Upkeep]) -> Vec<Finding> {
    tables.iter().filter_map(Upkeep::bloat).collect()
}

pub fn autovacuum(settings: &Settings, tables: &[Upkeep]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !settings.has_autovacuum {
        findings.push(Finding::warning(
            "autovacuum is off: what is delivered is deleted, but its room is never used again",
            "ALTER SYSTEM SET autovacuum = on, then SELECT pg_reload_conf()",
        ));
    }
    if !settings.has_counts {
        findings.push(Finding::warning(
            "track_counts is off: autovacuum does not know what there is to do",
            "ALTER SYSTEM SET track_counts = on, then SELECT pg_reload_conf()",
        ));
    }
    findings.extend(tables.iter().filter_map(Upkeep::autovacuum));
    findings
}

impl Upkeep {
    fn bloat(&self) -> Option<Finding> {
        let Self { name, live, dead, .. } = self;
        let is_neglected = self.vacuumed_s.is_none_or(|ago| ago > LONG_UNVACUUMED_S);
        if *dead >= MANY_DEAD && dead >= live && is_neglected {
            return Some(Finding::warning(
                format!(
                    "{name} has {dead} dead rows and {live} live ones: every look at it passes the dead ones too"
                ),
                format!(
                    "VACUUM {name}; if that does not help, somebody keeps them alive: see old-snapshot, prepared-transaction and \
                         replication"
                ),
            ));
        }
        let bytes = self.bytes.saturating_add(self.toast_bytes);
        let is_known = (self.is_counted || self.bytes < MUCH_ROOM)
            && (self.toast_is_counted || self.toast_bytes < MUCH_ROOM);
        if !is_known {
            return Some(Finding::notice(
                format!(
                    "{name} takes {} MiB, and how much of it is in use is not known: the statistics were lost, by a crash or by \
                     pg_stat_reset()",
                    mib(bytes)
                ),
                format!("VACUUM ANALYZE {name}, and look again"),
            ));
        }
        // No row takes more than a page: what is longer is kept elsewhere, in pieces that take no more than a quarter of one.
        let used = live.saturating_mul(self.page).min(self.bytes);
        let toast_used = self.toast_live.saturating_mul(self.page / PIECES_A_PAGE).min(self.toast_bytes);
        let room = bytes.saturating_sub(used).saturating_sub(toast_used);
        (room >= MUCH_ROOM).then(|| {
            Finding::warning(
                format!("{name} takes {} MiB, of which at least {} MiB are empty or dead", mib(bytes), mib(room)),
                format!("new messages use that room; to give it back to the disk, VACUUM FULL {name} while nothing is enqueued or \
                         delivered"),
            )
        })
    }

    fn autovacuum(&self) -> Option<Finding> {
        let Self { name, scale_factor, threshold, .. } = self;
        if !self.is_enabled {
            return Some(Finding::warning(
                format!("autovacuum is off for {name}: its dead rows stay, and every look at it gets slower"),
                format!("ALTER TABLE {name} RESET (autovacuum_enabled)"),
            ));
        }
        (*scale_factor > LARGEST_SCALE_FACTOR || *threshold > LARGEST_THRESHOLD).then(|| {
            Finding::warning(
                format!(
                    "autovacuum comes to {name} only after {threshold} dead rows and {scale_factor} for each live one, which is late \
                     for a table whose rows come and go"
                ),
                format!("ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.2, autovacuum_vacuum_threshold = 1000)"),
            )
        })
    }
}

const fn mib(bytes: i64) -> i64 {
    bytes / (1024 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::doctor::finding::Severity;

    fn table() -> Upkeep {
        Upkeep {
            name: "posthaste_incoming".to_owned(),
            is_counted: true,
            live: 1000,
            dead: 1000,
            vacuumed_s: Some(30.0),
            bytes: 8192 * 100,
            toast_bytes: 0,
            toast_live: 0,
            toast_is_counted: false,
            page: 8192,
            is_enabled: true,
            scale_factor: 0.2,
            threshold: 50,
        }
    }

    #[test]
    fn what_a_busy_outbox_leaves_between_two_rounds_of_autovacuum_is_no_finding() {
        let busy = Upkeep { dead: 5_000_000, ..table() };
        let small = Upkeep { dead: MANY_DEAD - 1, vacuumed_s: None, ..table() };
        let backlog = Upkeep { dead: MANY_DEAD, live: MANY_DEAD + 1, vacuumed_s: None, ..table() };
        let full = Upkeep { live: 1_000_000, bytes: 4 << 30, ..table() };
        assert_eq!(bloat(&[table(), busy, small, backlog, full]), []);
    }

    #[test]
    fn large_values_count_by_their_pieces() {
        let full = Upkeep { toast_bytes: 1 << 30, toast_live: 1 << 19, toast_is_counted: true, ..table() };
        assert_eq!(bloat(std::slice::from_ref(&full)), []);
        let empty = Upkeep { toast_live: 0, ..full };
        assert!(bloat(&[empty])[0].summary.contains("of which at least 1024 MiB are empty"));
    }

    #[test]
    fn lost_statistics_say_nothing_of_the_room() {
        let lost = Upkeep { is_counted: false, live: 0, dead: 0, vacuumed_s: None, ..table() };
        assert_eq!(bloat(std::slice::from_ref(&lost)), [], "it is small");
        for large in
            [Upkeep { bytes: MUCH_ROOM, ..lost.clone() }, Upkeep { toast_bytes: MUCH_ROOM, ..table() }]
        {
            let found = bloat(&[large]);
            assert_eq!(found[0].severity, Severity::Notice, "{found:?}");
            assert!(found[0].advice.starts_with("VACUUM ANALYZE posthaste_incoming"), "{found:?}");
        }
    }

    #[test]
    fn dead_rows_that_stay_are_found() {
        for vacuumed_s in [None, Some(LONG_UNVACUUMED_S + 1.0)] {
            let found = bloat(&[Upkeep { dead: MANY_DEAD, vacuumed_s, ..table() }]);
            assert!(found[0].summary.contains("100000 dead rows and 1000 live"), "{found:?}");
        }
    }
}
