//! What a handler may do in good faith, and what may happen to it, that must not hurt its partition.

use std::time::Duration;

use posthaste::{EnqueueMessage, HandlerResult, Partitions};

use super::{
    effects::{
        Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, reject, stage_with, write,
    },
    stage::{Memory, builder, count, eventually, fresh, quick_retries, secs},
};

#[tokio::test]
async fn what_a_handler_leaves_open_is_closed_before_the_next_message() {
    for leaves in [
        "DECLARE c CURSOR FOR SELECT 1",
        "CREATE TEMP TABLE t (n INT) ON COMMIT DROP",
        "CREATE TEMP TABLE t (n INT) ON COMMIT DROP; DECLARE c CURSOR FOR SELECT * FROM t",
    ] {
        let (db, memory) = (stage_with(&["x"; 10]).await, Memory::new());
        let handler = each(&memory, move |conn, msg| {
            Box::pin(async move {
                let opened = sqlx::raw_sql(leaves).execute(&mut *conn).await;
                opened.unwrap();
                write(conn, msg).await.into()
            })
        });
        let handle = builder(&db).queue("q", Partitions::of(1)).transactional(handler).start().await.unwrap();
        all_settled(&db.pool, 10).await;
        handle.stop().await;
        assert_eq!(memory.all().len(), 10, "each was called for once: {leaves}");
        assert_exactly_once(&db.pool, 1, 10).await;
        db.remove().await;
    }
}

#[tokio::test]
async fn g3_a_savepoint_of_the_handlers_own_keeps_nothing_of_what_is_rejected() {
    let (db, memory) = (stage_with(&["x"; 3]).await, Memory::new());
    let handler = each(&memory, move |conn, msg| {
        Box::pin(async move {
            write(&mut *conn, msg).await.unwrap();
            for savepoint in ["SAVEPOINT posthaste", "SAVEPOINT outbox_check", "SAVEPOINT _sqlx_savepoint_1"]
            {
                sqlx::raw_sql(savepoint).execute(&mut *conn).await.unwrap();
            }
            reject("no")
        })
    });
    let handle = builder(&db).queue("q", Partitions::of(1)).transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, Vec::<i64>::new());
    assert_eq!(dead_letters(&db.pool).await.len(), 3);
    db.remove().await;
}

#[tokio::test]
async fn a_handler_timeout_without_end_is_a_long_one() {
    let (db, memory) = (stage_with(&["x"; 3]).await, Memory::new());
    let handler = each(&memory, move |conn, msg| Box::pin(async move { write(conn, msg).await.into() }));
    let outbox = builder(&db).handler_timeout(Duration::MAX).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// The session dies under a handler that does not ask it anything any more, and returns Success.
#[tokio::test]
async fn no_message_is_given_up_for_the_death_of_its_handlers_session() {
    let (db, memory) = (stage_with(&["x"; 3]).await, Memory::new());
    let (turnstile, written) = (Turnstile::shut(), Memory::new());
    let (gate, wrote) = (turnstile.clone(), written.clone());
    let handler = each(&memory, move |conn, msg| {
        let (gate, wrote) = (gate.clone(), wrote.clone());
        Box::pin(async move {
            write(conn, msg).await.unwrap();
            wrote.note(msg);
            gate.pass().await;
            HandlerResult::Success
        })
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .transactional(handler)
        .max_attempts(1)
        .start()
        .await
        .unwrap();
    for round in 0..3 {
        written.has(round + 1).await;
        let kill = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                    WHERE datname = current_database() AND state = 'idle in transaction'";
        assert_eq!(count(&db.pool, kill).await, 1);
        turnstile.let_pass(1);
    }
    turnstile.let_pass(100);
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(dead_letters(&db.pool).await.len(), 0);
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// As after a restart of the server: every connection is dead, and nobody knows yet.
#[tokio::test]
async fn g12_many_dead_connections_delay_delivery_no_longer_than_one() {
    let (db, memory) = (fresh().await, Memory::new());
    let handler = each(&memory, |conn, msg| {
        Box::pin(async move {
            sqlx::raw_sql("SELECT pg_sleep(0.3)").execute(&mut *conn).await.unwrap();
            write(conn, msg).await.into()
        })
    });
    let outbox = builder(&db).processors(16).queue("q", Partitions::of(16));
    let handle = outbox.transactional(handler).start().await.unwrap();
    let messages: Vec<_> = (0..16).map(|n| EnqueueMessage::new("x").partition(n)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    all_settled(&db.pool, 16).await;
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
                AND application_name LIKE '%posthaste'";
    eventually("many are idle", async || count(&db.pool, idle).await >= 16).await;
    let kill = "SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE '%posthaste'";
    assert!(count(&db.pool, kill).await >= 16);
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has_within(17, secs(3)).await;
    all_settled(&db.pool, 17).await;
    handle.stop().await;
    db.remove().await;
}
