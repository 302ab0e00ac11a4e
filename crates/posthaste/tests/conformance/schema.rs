//! The tables: made once, by whoever is first, and refused when they do not fit.

use posthaste::{OutboxError, Partitions, Tables, migrate, migrate_with, migration_sql};

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::{Fresh, Server},
    stage::{Memory, builder, count, register, run, texts, unmigrated},
};

cases! {
    []:
        eight_starters_at_once_make_the_tables_once,
        a_migration_that_fails_leaves_nothing_half_done
            except(
                mariadb = "each statement of a migration commits by itself",
                mysql = "each statement of a migration commits by itself"
            ),
        a_newer_schema_is_refused_unless_it_says_that_it_is_compatible,
        without_tables_a_producer_is_told_to_migrate,
        two_outboxes_live_in_one_database_under_other_names,
        the_printed_sql_makes_the_same_tables;
}

async fn eight_starters_at_once_make_the_tables_once<S: Server>() {
    let db = unmigrated::<S>().await;
    let starters: Vec<_> = (0..8)
        .map(|_| {
            let pool = db.pool.clone();
            tokio::spawn(async move { migrate(&pool).await })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap().unwrap();
    }
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_meta").await, 1);
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_tick").await, 1);
    migrate(&db.pool).await.unwrap();
    db.remove().await;
}

/// A migration that cannot finish: the last table's name is taken.
async fn a_migration_that_fails_leaves_nothing_half_done<S: Server>() {
    let db = Fresh::<S>::empty().await;
    run(&db.pool, "CREATE TABLE posthaste_dead_letter (mine INT)").await;
    assert!(matches!(migrate(&db.pool).await.unwrap_err(), OutboxError::Database(_)));
    assert_eq!(S::count_tables(&db.pool).await, 1, "only the one that was there");
    run(&db.pool, "DROP TABLE posthaste_dead_letter").await;
    migrate(&db.pool).await.unwrap();
    db.remove().await;
}

async fn a_newer_schema_is_refused_unless_it_says_that_it_is_compatible<S: Server>() {
    let db = unmigrated::<S>().await;
    migrate(&db.pool).await.unwrap();
    run(&db.pool, "UPDATE posthaste_meta SET schema_version = 7, least_library = 1").await;
    migrate(&db.pool).await.unwrap();
    register(&db, Partitions::of(1)).await;

    run(&db.pool, "UPDATE posthaste_meta SET least_library = 6").await;
    for error in [
        migrate(&db.pool).await.unwrap_err(),
        builder(&db).start().await.unwrap_err(),
        posthaste::Outbox::connect(db.pool.clone()).await.unwrap_err(),
    ] {
        assert!(matches!(error, OutboxError::SchemaTooNew { found: 7, least: 6, ours: 1 }), "{error}");
    }
    db.remove().await;
}

async fn without_tables_a_producer_is_told_to_migrate<S: Server>() {
    let db = unmigrated::<S>().await;
    for error in [
        posthaste::Outbox::connect(db.pool.clone()).await.unwrap_err(),
        builder(&db).migrate(false).start().await.unwrap_err(),
    ] {
        assert!(matches!(error, OutboxError::NotMigrated { found: 0, needed: 1 }), "{error}");
        assert!(error.to_string().contains("run posthaste::migrate"), "{error}");
    }
    db.remove().await;
}

async fn two_outboxes_live_in_one_database_under_other_names<S: Server>() {
    let db = unmigrated::<S>().await;
    let (one, two) = (Tables::default().prefix("one_").unwrap(), Tables::default().prefix("two_").unwrap());
    let mut delivered = Vec::new();
    for tables in [&one, &two] {
        migrate_with(&db.pool, tables).await.unwrap();
        let memory = Memory::new();
        let handle = builder(&db)
            .tables(tables.clone())
            .queue("q", Partitions::of(1))
            .leased(memory.handler())
            .start()
            .await
            .unwrap();
        let text = tables.clone();
        let message = posthaste::EnqueueMessage::new(format!("{text:?}"));
        handle.outbox().enqueue(&db.pool, "q", message).await.unwrap();
        memory.has(1).await;
        delivered.push((handle, memory));
    }
    for (handle, memory) in delivered {
        assert_eq!(memory.all().len(), 1, "each sees its own");
        handle.stop().await;
    }
    assert_eq!(count(&db.pool, "SELECT max(processed_seq) FROM one_cursor").await, 1);
    assert_eq!(count(&db.pool, "SELECT max(processed_seq) FROM two_cursor").await, 1);
    db.remove().await;
}

async fn the_printed_sql_makes_the_same_tables<S: Server>() {
    let (printed, made) = (unmigrated::<S>().await, unmigrated::<S>().await);
    for tables in [Tables::default(), Tables::default().prefix("x_").unwrap()] {
        run(&printed.pool, &migration_sql::<S::Db>(&tables)).await;
        migrate_with(&made.pool, &tables).await.unwrap();
        migrate_with(&printed.pool, &tables).await.expect("it finds nothing to do");
    }
    let (found, expected) =
        (texts(&printed.pool, S::Db::COLUMNS).await, texts(&made.pool, S::Db::COLUMNS).await);
    assert!(found.len() > 20, "{found:?}");
    assert_eq!(found, expected);
    printed.remove().await;
    made.remove().await;
}
