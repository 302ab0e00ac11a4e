//! Mutants of what is PostgreSQL's alone.

use super::Mutant;

pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "postgres_forgets_open_transactions",
        breaks: "Messages of a transaction that was open when others were sequenced wait for the reconciler to find them.",
        guarantees: &[11, 13],
        file: "crates/posthaste/src/store/postgres/sql/tick.sql",
        old: "WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(p.seen) FROM previous p))",
        new: "WHERE i.stamp = ANY (ARRAY(SELECT pg_snapshot_xip(p.seen) FROM previous p WHERE false))",
        tests: &[
            "delivery::postgres::leased::g11_eight_producers_with_overlapping_transactions_are_delivered_while_they_overlap",
        ],
    },
    Mutant {
        name: "postgres_waits_for_the_oldest_transaction",
        breaks: "While a producer's transaction is open, what began after it is not sequenced.",
        guarantees: &[11],
        file: "crates/posthaste/src/store/postgres/sql/tick.sql",
        old: "WHERE i.stamp >= (SELECT xmax FROM previous)",
        new: "WHERE i.stamp >= (SELECT xmax FROM previous) AND pg_snapshot_xmin((SELECT now FROM gate)) = pg_snapshot_xmax((SELECT now FROM gate))",
        tests: &[
            "delivery::postgres::leased::g11_a_transaction_that_stays_open_delays_only_its_own_messages",
        ],
    },
    Mutant {
        name: "postgres_sequences_in_reverse",
        breaks: "Inside a transaction, the message that was enqueued last comes first.",
        guarantees: &[5],
        file: "crates/posthaste/src/store/postgres/sql/tick.sql",
        old: "array_agg(t.id ORDER BY t.id)",
        new: "array_agg(t.id ORDER BY t.id DESC)",
        tests: &[
            "transactional::postgres::a_reject_at_any_place_of_a_batch_buries_that_message_without_effect_and_the_others_go_on",
            "order::postgres::leased::g5_sixteen_producers_mixing_long_and_short_transactions_across_four_partitions",
        ],
    },
    Mutant {
        name: "postgres_does_not_lock_what_it_builds_on",
        breaks: "A settlement that stalls while its partition is taken over and the chain trimmed gets in.",
        guarantees: &[7],
        file: "crates/posthaste/src/store/postgres/sql/settle.sql",
        old: "        WHERE c.reader = $1 AND c.partition_id = t.partition_id AND c.epoch = t.epoch
        FOR KEY SHARE",
        new: "        WHERE c.reader = $1 AND c.partition_id = t.partition_id AND c.epoch = t.epoch",
        tests: &[
            "postgres::chains::leased::g7_a_settle_that_stalls_while_its_partition_is_taken_over_and_the_chain_trimmed_changes_nothing",
        ],
    },
    Mutant {
        name: "postgres_takes_over_from_a_slow_handler",
        breaks: "The lease of a transactional handler that is slow but alive is taken over.",
        guarantees: &[3],
        file: "crates/posthaste/src/store/postgres/sql/acquire.sql",
        old: "WHERE t.is_for_us AND (NOT $2 OR t.partition_id = ANY (ARRAY(SELECT id FROM partition)))",
        new: "WHERE t.is_for_us",
        tests: &["exactly_once::postgres::g3_nobody_takes_over_from_a_handler_that_is_slower_than_its_lease"],
    },
    Mutant {
        name: "postgres_takes_leases_before_their_end",
        breaks: "A lease is taken over ten seconds before it ends.",
        guarantees: &[4, 7],
        file: "crates/posthaste/src/store/postgres/sql/acquire.sql",
        old: "c.owner = a.owner OR c.lease_until <= clock_timestamp()\n",
        new: "c.owner = a.owner OR c.lease_until <= clock_timestamp() + interval '10 s'\n",
        tests: &[
            "stopping::postgres::leased::g12_a_dead_workers_lease_is_taken_over_at_its_end_however_much_else_is_said",
        ],
    },
    Mutant {
        name: "postgres_attempts_overflow",
        breaks: "At the 2^31st try the statement that takes the lease fails, each time.",
        guarantees: &[10],
        file: "crates/posthaste/src/store/postgres/sql/acquire.sql",
        old: "least(l.attempts::bigint + CASE WHEN l.owner = l.claimant AND l.epoch <> l.handled_epoch THEN 0 ELSE 1 END, 2147483647)",
        new: "l.attempts + CASE WHEN l.owner = l.claimant AND l.epoch <> l.handled_epoch THEN 0 ELSE 1 END",
        tests: &["dead_letters::postgres::leased::g10_two_to_the_31_attempts_do_not_overflow"],
    },
    Mutant {
        name: "postgres_keeps_the_newest_messages",
        breaks: "The messages of a partition's newest segment are never removed, although they are settled.",
        guarantees: &[15],
        file: "crates/posthaste/src/store/postgres/sql/vacuum.sql",
        old: "WHERE p.head <= p.to_seq",
        new: "WHERE p.head < p.to_seq",
        tests: &["vacuum::postgres::g15_what_a_process_left_behind_is_removed_by_another"],
    },
    Mutant {
        name: "postgres_removes_what_is_unsettled",
        breaks: "Vacuum goes as far as there are segments, not as far as they are settled.",
        guarantees: &[1, 16],
        file: "crates/posthaste/src/store/postgres/sql/vacuum.sql",
        old: "least(p.to_seq, tip.processed_seq) AS to_seq",
        new: "greatest(p.to_seq, head.last_seq) AS to_seq",
        tests: &["vacuum::postgres::g16_nothing_unsettled_is_removed"],
    },
    Mutant {
        name: "postgres_tells_nobody_what_it_releases",
        breaks: "A process that stops lets its partitions go, and others find out seconds later.",
        guarantees: &[14],
        file: "crates/posthaste/src/store/postgres/wake.rs",
        old: "notify(store, &format!(\"sequenced {} {partition_id}\", store.shared.process_id.simple())).await",
        new: "notify(store, &format!(\"released {} {partition_id}\", store.shared.process_id.simple())).await",
        tests: &[
            "stopping::postgres::leased::g14_a_running_process_takes_over_at_once_what_another_one_lets_go",
        ],
    },
    Mutant {
        name: "postgres_tells_nobody_what_it_sequenced",
        breaks: "A tick does not notify the other processes, whose processors sleep on.",
        guarantees: &[13],
        file: "crates/posthaste/src/store/postgres/sql/tick.sql",
        old: "WHEN $3::text IS NOT NULL AND touched.partitions <> '{}' THEN",
        new: "WHEN $3::text IS NOT NULL AND touched.partitions IS NULL THEN",
        tests: &["wake::postgres::g13_what_another_process_sequenced_is_delivered_by_its_notification"],
    },
    Mutant {
        name: "postgres_retries_in_another_process_at_once",
        breaks: "Another process does not keep the back-off of a failed message.",
        guarantees: &[19],
        file: "crates/posthaste/src/store/postgres/sql/acquire.sql",
        old: "(c.lease_until IS NULL OR c.owner = a.owner",
        new: "(c.owner IS NULL OR c.owner = a.owner",
        tests: &["retries::postgres::leased::g19_the_back_off_is_the_same_whichever_process_tries"],
    },
];
