//! What a handler may do in good faith, and what may happen to it, that must not hurt its partition.

use std::time::Duration;

use posthaste::{EnqueueMessage, HandlerResult, Partitions, testing::Timings};

use crate::{
    cases::cases,
    dialect::Dialect,
    effects::{Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, reject, stage_with},
    fresh::Server,
    stage::{Memory, SOON, builder, eventually, fresh, millis, quick_retries, secs, timings},
};

cases! {
    []:
        g3_a_savepoint_of_the_handlers_own_keeps_nothing_of_what_is_rejected,
        a_handler_timeout_without_end_is_a_long_one,
        no_message_is_given_up_for_the_death_of_its_handlers_session
            except(sqlite = "there are no sessions to kill"),
        g12_many_dead_connections_delay_delivery_no_longer_than_one except(
            sqlite = "there are no sessions to kill",
            mariadb = "a handler's connection is closed after its use, so there are never many",
            mysql = "a handler's connection is closed after its use, so there are never many"
        );
}

async fn g3_a_savepoint_of_the_handlers_own_keeps_nothing_of_what_is_rejected<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x"; 3]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        Box::pin(async move {
            S::Db::write(&mut *conn, msg).await.unwrap();
            for savepoint in ["SAVEPOINT posthaste", "SAVEPOINT outbox_check", "SAVEPOINT _sqlx_savepoint_1"]
            {
                S::Db::run(&mut *conn, savepoint).await.unwrap();
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

async fn a_handler_timeout_without_end_is_a_long_one<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x"; 3]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        Box::pin(async move { S::Db::write(conn, msg).await.into() })
    });
    let outbox = builder(&db).handler_timeout(Duration::MAX).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// The session dies under a handler that does not ask it anything any more, and returns Success.
async fn no_message_is_given_up_for_the_death_of_its_handlers_session<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x"; 3]).await, Memory::new());
    let (turnstile, written) = (Turnstile::shut(), Memory::new());
    let (gate, wrote) = (turnstile.clone(), written.clone());
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        let (gate, wrote) = (gate.clone(), wrote.clone());
        Box::pin(async move {
            S::Db::write(conn, msg).await.unwrap();
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
        // The server may still be busy with saying that it is written.
        let kill = async || S::Db::kill_waiting_transactions(&db.pool).await.unwrap() == 1;
        eventually("the session is killed", kill).await;
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
async fn g12_many_dead_connections_delay_delivery_no_longer_than_one<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            tokio::time::sleep(millis(300)).await;
            S::Db::write(conn, msg).await.into()
        })
    });
    // One after the other, they would take longer than [`SOON`].
    let timings = Timings { unreachable: secs(2), ..timings() };
    let outbox = builder(&db).timings(timings).processors(16).queue("q", Partitions::of(16));
    let handle = outbox.transactional(handler).start().await.unwrap();
    let messages: Vec<_> = (0..16).map(|n| EnqueueMessage::new("x").partition(n)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    all_settled(&db.pool, 16).await;
    eventually("many are idle", async || S::Db::idle_worker_sessions(&db.pool).await.unwrap() >= 16).await;
    assert!(S::Db::kill_workers(&db.pool).await.unwrap() >= 16);
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has_within(17, SOON).await;
    all_settled(&db.pool, 17).await;
    handle.stop().await;
    db.remove().await;
}
