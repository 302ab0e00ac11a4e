//! What is the same on every database.

use posthaste::Partitions;

use super::diagnose;
use crate::{
    ground::{Accept, Ground, Server},
    snapshots::assert_shape,
};

on_every_database!(
    empty:
    no_table_is_forgotten,
    an_outbox_at_work_is_well,
    tables_that_are_not_there_are_found,
    tables_elsewhere_are_pointed_to,
    tables_of_a_later_version_are_found,
    a_table_that_was_dropped_is_found,
);

/// Whatever table is not there, it is missed; so the list of them is that of the tables that `migrate` makes.
async fn no_table_is_forgotten(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    let tables = ground.tables().await;
    for table in tables.iter().filter(|table| *table != "posthaste_meta") {
        ground.sql(&format!("ALTER TABLE {table} RENAME TO {table}_away")).await;
        let diagnosis = diagnose(ground, &[]);
        let (summary, _) = diagnosis.only("schema", "problem");
        assert!(summary.starts_with(&format!("{table} is missing")), "{summary}");
        ground.sql(&format!("ALTER TABLE {table}_away RENAME TO {table}")).await;
    }
    assert_eq!(diagnose(ground, &[]).code, 0, "and of no others");
}

async fn an_outbox_at_work_is_well(ground: &Ground) {
    let delivering = Box::pin(ground.deliver("orders", Partitions::of(4), Accept)).await;
    let diagnosis = diagnose(ground, &[]);
    assert_eq!(diagnosis.code, 0, "{diagnosis:?}");
    // The servers of the tests are as quick as they are because they do not wait for the disk.
    assert!(diagnosis.findings().iter().all(|finding| finding["code"] == "durability"), "{diagnosis:?}");
    let checked = diagnosis.report["checked"].as_array().unwrap();
    let least = if ground.server == Server::Sqlite { 6 } else { 13 };
    assert!(checked.len() >= least, "{checked:?}");

    let said = ground.posthaste(&["doctor"]).succeeds();
    for code in checked {
        let code = code.as_str().unwrap();
        assert!(said.contains(&format!("  {code} ")), "{code}: {said}");
    }
    assert!(said.lines().last().unwrap().starts_with("all is well"), "{said}");
    delivering.stop().await;
}

async fn tables_that_are_not_there_are_found(ground: &Ground) {
    let diagnosis = diagnose(ground, &[]);
    assert_shape("doctor", &diagnosis.report);
    let (summary, advice) = diagnosis.only("schema", "problem");
    assert_eq!(summary, "the outbox's tables are not there: no posthaste_meta");
    assert!(advice.starts_with("`posthaste migrate` makes them"), "{advice}");
    diagnosis.finds_only("schema");
    // It goes on with what can be examined.
    assert!(diagnosis.has_checked("long-transaction"), "{diagnosis:?}");

    let ran = ground.posthaste(&["doctor"]).run();
    assert_eq!((ran.code, &*ran.err), (1, ""), "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    let place = lines.iter().position(|line| line.starts_with("problem  schema ")).expect("a line for it");
    assert!(
        lines[place + 1].starts_with("          ") && lines[place + 1].trim().starts_with("`posthaste"),
        "{ran:?}"
    );
    assert!(lines.last().unwrap().starts_with("1 problem"), "{ran:?}");
}

async fn tables_elsewhere_are_pointed_to(ground: &Ground) {
    ground.posthaste(&["migrate", "--table-prefix", "shop_"]).succeeds();
    let diagnosis = diagnose(ground, &[]);
    let (_, advice) = diagnosis.only("schema", "problem");
    assert!(advice.contains("or did you mean --") && advice.contains("--table-prefix shop_"), "{advice}");
    assert_eq!(diagnose(ground, &["--table-prefix", "shop_"]).code, 0);
}

async fn tables_of_a_later_version_are_found(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    ground.sql("UPDATE posthaste_meta SET schema_version = 99, least_library = 98").await;
    let diagnosis = diagnose(ground, &[]);
    let (summary, advice) = diagnosis.only("schema", "problem");
    assert!(
        summary.contains("have version 99, which needs a posthaste for version 98 or later"),
        "{summary}"
    );
    assert!(advice.contains("install a newer posthaste"), "{advice}");
    diagnosis.finds_only("schema");

    // Later, but it says that we may.
    ground.sql("UPDATE posthaste_meta SET least_library = 1").await;
    assert_eq!(diagnose(ground, &[]).code, 0);
}

async fn a_table_that_was_dropped_is_found(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    ground.sql("DROP TABLE posthaste_tick").await;
    ground.sql("DROP TABLE posthaste_cursor").await;
    let diagnosis = diagnose(ground, &[]);
    let (summary, _) = diagnosis.only("schema", "problem");
    assert!(summary.starts_with("posthaste_tick and posthaste_cursor are missing"), "{summary}");
    diagnosis.finds_only("schema");
}
