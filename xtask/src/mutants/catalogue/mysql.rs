//! Mutants of what is MySQL's and MariaDB's alone.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "mysql_settles_without_the_lease",
        breaks: "A settlement is not guarded by epoch and owner: who was taken over moves the cursor all the same.",
        guarantees: &[7],
        file: "crates/posthaste/src/store/mysql/sql/settle.sql",
        old: "AND c.epoch = ? AND c.owner = ?",
        new: "AND c.epoch >= ? AND (c.owner = ? OR c.epoch > 0)",
        tests: &["retries::mariadb::g7_a_settle_by_a_worker_whose_lease_was_taken_over_changes_nothing"],
    },
    Mutant {
        name: "mysql_keeps_what_was_undone",
        breaks: "What a handler wrote stays although it returned Retry or Reject.",
        guarantees: &[3],
        file: "crates/posthaste/src/store/mysql/transaction.rs",
        old: "format!(\"ROLLBACK TO SAVEPOINT {savepoint}{then}\")",
        new: "format!(\"SAVEPOINT {savepoint}{then}\")",
        tests: &[
            "transactional::mariadb::a_batch_handlers_reject_buries_the_whole_call_without_effect",
            "transactional::mariadb::several_rejects_in_one_batch_bury_each_with_its_reason",
        ],
    },
    Mutant {
        name: "mysql_tick_waits_for_producers",
        breaks: "A tick locks what is pending, and so waits for every producer's transaction.",
        guarantees: &[11],
        file: "crates/posthaste/src/store/mysql/sql/take.sql",
        old: "ORDER BY p.id LIMIT {most}",
        new: "ORDER BY p.id LIMIT {most} FOR UPDATE",
        tests: &["delivery::mariadb::leased::g11_a_transaction_that_stays_open_delays_only_its_own_messages"],
    },
    Mutant {
        name: "mysql_sequences_in_reverse",
        breaks: "Of the messages that wait for a tick, the newest come first.",
        guarantees: &[5],
        file: "crates/posthaste/src/store/mysql/sql/take.sql",
        old: "ORDER BY p.id LIMIT {most}",
        new: "ORDER BY p.id DESC LIMIT {most}",
        tests: &[
            "mysql_family::order::mariadb::eight_producers_with_overlapping_transactions_are_sequenced_in_their_order",
        ],
    },
    Mutant {
        name: "mysql_names_lose_their_case",
        breaks: "Who asks for the queue `orders` may be given `Orders`.",
        guarantees: &[9],
        file: "crates/posthaste/src/store/mysql/sql/find_queue.sql",
        old: "WHERE q.name = ?",
        new: "WHERE lower(q.name) = lower(?)",
        tests: &["delivery::mariadb::leased::g9_a_message_never_reaches_another_queues_handler"],
    },
    Mutant {
        name: "mysql_removes_what_is_unsettled",
        breaks: "Vacuum goes further than the cursor.",
        guarantees: &[1, 16],
        file: "crates/posthaste/src/store/mysql/sql/vacuum_look.sql",
        old: "least(x.to_seq, c.processed_seq) AS to_seq",
        new: "x.to_seq + 256 AS to_seq",
        tests: &["vacuum::mariadb::g16_nothing_unsettled_is_removed"],
    },
    Mutant {
        name: "mysql_batches_begin_one_too_late",
        breaks: "A batch begins behind the first message that is not settled.",
        guarantees: &[6, 8],
        file: "crates/posthaste/src/store/mysql/sql/read.sql",
        old: "AND o.first_seq + u.n - 1 BETWEEN ? AND ?",
        new: "AND o.first_seq + u.n - 2 BETWEEN ? AND ?",
        tests: &[
            "order::mariadb::leased::g6_a_batch_is_a_run_of_consecutive_seqs_and_the_next_one_starts_right_behind_what_is_settled",
        ],
    },
    Mutant {
        name: "mysql_does_not_hear_of_others",
        breaks: "The watcher sees what another process sequenced, and does not wake the reconciler.",
        guarantees: &[13],
        file: "crates/posthaste/src/store/mysql/wake.rs",
        old: "wake.reconciler_bell().notify_one();",
        new: "",
        tests: &["wake::mariadb::g13_what_another_process_sequenced_is_delivered_by_its_notification"],
    },
    Mutant {
        name: "mysql_retries_in_another_process_at_once",
        breaks: "Another process does not keep the back-off of a failed message.",
        guarantees: &[19],
        file: "crates/posthaste/src/store/mysql/cursor.rs",
        old: "else { settlement.backoff }.map(millis);",
        new: "else { None }.map(millis);",
        tests: &["retries::mariadb::leased::g19_the_back_off_is_the_same_whichever_process_tries"],
    },
];
