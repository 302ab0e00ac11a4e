//! The two tiers of the suite: the gate, which runs before every commit, and `--long`, which runs everything.
//!
//! A test is in the gate unless a [`Rule`] leaves it to `--long`. A rule says which tests it leaves out and why;
//! there is no other way to leave one out.

use crate::database::Database;

/// Leaves tests to `--long`.
pub struct Rule {
    /// What the tests have in common.
    pub what: &'static str,
    /// Why the gate does without them.
    pub why: &'static str,
    /// A filterset of nextest.
    pub tests: &'static str,
}

pub const LONG: &[Rule] = &[
    Rule {
        what: "torture",
        why: "two minutes per database; the gate replays a plan with a kill",
        tests: "package(xtask) & test(/^torture::every_promise_is_kept_on_/)",
    },
    Rule {
        what: "benchmark workloads other than batch",
        why: "the gate runs the batch workload on each database",
        tests: "package(xtask) & test(/^bench::.*every_other_workload/)",
    },
    Rule {
        what: "large volumes",
        why: "a million messages, a thousand queues; the gate sends tens of thousands",
        tests: "test(/a_million|a_thousand_queues|a_hundred_thousand_messages|max_inner_iterations|g15_a_session_that_pins/)",
    },
    Rule {
        what: "timings at full length",
        why: "10 to 30 s of waiting per database; the gate scales them down by ten",
        tests: "test(/^full_length::|_stays_open_for_30_s_/)",
    },
    Rule {
        what: "many kills",
        why: "200 kills in a row; the gate kills twice per case",
        tests: "test(/_killed_200_times/)",
    },
    Rule {
        what: "the largest state spaces of the model",
        why: "half a minute each; the gate explores the smaller ones and finds every broken rule",
        tests: "package(posthaste) & kind(lib) & test(/^model::.*(leased_rules|transactional_rules)_keep_their_promises/)",
    },
    Rule {
        what: "batch mode on databases other than PostgreSQL",
        why: "it shares its SQL with per-message mode, which the gate runs on each database",
        tests: "kind(test) & test(/(^|::)(mariadb|mysql|sqlite)::batch::/) & not test(/(^|::)spread::/)",
    },
    Rule {
        what: "MySQL where it shares its code with MariaDB",
        why: "the gate runs one case per promise on MySQL, and all of what differs",
        tests: "kind(test) & (test(/(^|::)mysql::/) \
                & not test(/(^|::)spread::|^mysql_family::|^doctor::|::g[0-9]+_|^schema::|^enqueueing::|^dialect::|^ground::/) \
                | test(/(^|::)mysql::transactional::g/))",
    },
];

/// The filterset of the tests that some rule leaves to `--long`.
pub fn long() -> String {
    LONG.iter().map(|rule| format!("({})", rule.tests)).collect::<Vec<_>>().join(" or ")
}

/// The filterset of the tests that need this database: they are in a module of its name, are called after it, or end
/// with `_on_` and its name.
pub fn of(database: Database) -> String {
    format!("kind(test) and test(/(^|::|_on_){database}(::|$)/)")
}
