//! Behind a transaction pooler: no LISTEN, no session settings, no prepared statements that last.

use posthaste::{DeadLetterFilter, DeadLetterScope, EnqueueMessage, Outbox, Partitions, Tables, testing};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::fresh;
use crate::{
    cases::in_modes,
    modes::{InMode, Mode},
    stage::{Memory, PATIENCE, SOON, Step, assert_consistent, builder_on, secs, settled, within},
};

in_modes! {
    [leased, transactional, batch]: everything_works_behind_a_transaction_pooler;
}

fn pooler_url() -> String {
    std::env::var("POSTHASTE_TEST_PGBOUNCER_URL").expect(
        "POSTHASTE_TEST_PGBOUNCER_URL is not set: run `cargo xtask test`, or set it to a pgbouncer's URL",
    )
}

/// A pooler that has one session for everybody, as `one_session` is set up by `cargo xtask`.
#[tokio::test]
async fn one_session_is_enough_for_a_process_that_enqueues() {
    let options: PgConnectOptions = pooler_url().parse().unwrap();
    let options = options.database("one_session").statement_cache_capacity(0);
    let pool = PgPoolOptions::new().max_connections(2).connect_with(options).await.unwrap();
    let tables = Tables::default().prefix(&format!("one_{}_", std::process::id())).unwrap();
    let using_it = async {
        posthaste::migrate_with(&pool, &tables).await.unwrap();
        let outbox = Outbox::connect_with(pool.clone(), &tables).await.unwrap();
        outbox.register("q", Partitions::of(2)).await.unwrap();
        outbox.enqueue(&pool, "q", EnqueueMessage::new("x")).await.unwrap();
        assert_eq!(outbox.unsequenced("q", None, None, 10).await.unwrap().len(), 1);
        outbox.close().await;
    };
    tokio::time::timeout(PATIENCE, using_it).await.expect("nobody waits for a second session");
    posthaste::drop_tables(&pool, &tables).await.unwrap();
}

async fn everything_works_behind_a_transaction_pooler(mode: Mode) {
    let url = pooler_url();
    let db = fresh().await;
    let direct = db.pool.connect_options();
    let timeout = format!("ALTER DATABASE {} SET statement_timeout = '7s'", direct.get_database().unwrap());
    sqlx::raw_sql(sqlx::AssertSqlSafe(timeout)).execute(&db.pool).await.unwrap();
    let options: PgConnectOptions = url.parse().unwrap();
    // As anybody does behind such a pooler.
    let options = options.database(direct.get_database().unwrap()).statement_cache_capacity(0);
    let pool = PgPoolOptions::new().max_connections(8).connect_with(options).await.unwrap();

    let memory = Memory::new();
    // Two, so that their sessions are mixed up as much as can be.
    let mut handles = Vec::new();
    for _ in 0..2 {
        let outbox = builder_on(pool.clone())
            .queue("q", Partitions::of(4))
            .handled(mode, memory.handler().unprepared());
        handles.push(outbox.start().await.unwrap());
    }
    let producer = Outbox::connect(pool.clone()).await.unwrap();
    for round in 0..30_u32 {
        for outbox in [&handles[0].outbox(), &handles[1].outbox(), &producer] {
            let mut tx = pool.begin().await.unwrap();
            outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x").partition(round % 4)).await.unwrap();
            tx.commit().await.unwrap();
        }
    }
    within(SOON, "all is settled", async || settled(&db.pool).await == 90).await;

    // From a process without workers, in an idle system.
    producer.enqueue(&pool, "q", EnqueueMessage::new("x")).await.unwrap();
    within(SOON, "it is settled", async || settled(&db.pool).await == 91).await;
    // Operators too, in transactions of their own, of the caller's, and in none.
    let scope = DeadLetterScope::default();
    let reject = Memory::new().scripted(|_, _| Step::Reject("no".to_owned())).unprepared();
    let rejecting =
        builder_on(pool.clone()).queue("r", Partitions::of(1)).handled(mode, reject).start().await.unwrap();
    producer.enqueue_batch(&pool, "r", &vec![EnqueueMessage::new("x"); 3]).await.unwrap();
    within(SOON, "they are buried", async || {
        producer.dead_letter_count(&pool, &DeadLetterFilter::default()).await.unwrap() == 3
    })
    .await;
    let mut conn = pool.acquire().await.unwrap();
    let claims = producer.dead_letter_replay(&mut conn, &scope.clone().limit(1), secs(60)).await.unwrap();
    producer.dead_letter_resolve(&pool, &claims).await.unwrap();
    assert_eq!(producer.dead_letter_list(&mut conn, &DeadLetterFilter::default()).await.unwrap().len(), 3);
    drop(conn);
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(producer.dead_letter_discard(&mut tx, &scope.clone().limit(1)).await.unwrap(), 1);
    assert_eq!(producer.dead_letter_count(&mut tx, &DeadLetterFilter::default()).await.unwrap(), 3);
    tx.commit().await.unwrap();
    producer.pause("r").await.unwrap();
    assert_eq!(producer.dead_letter_redeliver(&pool, &scope).await.unwrap().len(), 1);
    // Not for good: what has no effect is to be a dead letter.
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(producer.dead_letter_cleanup(&mut tx, &scope).await.unwrap(), 3);
    tx.rollback().await.unwrap();
    producer.resume("r").await.unwrap();
    within(SOON, "it is buried again", async || {
        producer.dead_letter_count(&pool, &DeadLetterFilter::default()).await.unwrap() == 4
    })
    .await;
    rejecting.stop().await;
    // The helpers for the tests of others look through it too.
    testing::wait_until_drained(&producer, "q").await;
    let mut conn = pool.acquire().await.unwrap();
    testing::assert_not_enqueued_in(&producer, &mut conn, "q", |message| message.payload != b"x").await;
    drop(conn);
    for handle in handles {
        handle.stop().await;
    }
    assert_eq!(memory.all().len(), 91, "each once");
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;

    // No session of the pooler has our settings, or listens: held all at once, so that each is looked at.
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let mut tx = pool.begin().await.unwrap();
        let found: (String, String, i64) = sqlx::query_as(
            "SELECT current_setting('enable_seqscan'), current_setting('statement_timeout'),
                    (SELECT count(*) FROM pg_listening_channels())",
        )
        .fetch_one(&mut *tx)
        .await
        .unwrap();
        assert_eq!(found, ("on".to_owned(), "7s".to_owned(), 0));
        sessions.push(tx);
    }
    drop(sessions);
    drop(producer);
    pool.close().await;
    db.remove().await;
}
