//! G14: stopping, and going on.

use posthaste::{EnqueueMessage, Partitions, testing::Timings};
use sqlx::Pool;
use tokio::time::Instant;

use crate::{
    cases::cases,
    dialect::{Dialect, Wire},
    fresh::Server,
    modes::{InMode, Mode},
    stage::{
        Memory, NEWEST_LINKS, SOON, Step, builder, builder_on, count, eventually, fresh, leave_lease, millis,
        quick_retries, register, secs, settled,
    },
};

cases! {
    [leased]:
        g14_stop_returns_whatever_handlers_await,
        g14_a_running_process_takes_over_at_once_what_another_one_lets_go;
    [transactional, batch]:
        g14_stop_returns_whatever_handlers_await
            except(sqlite = "one writer at a time is its nature: four handlers are not in transactions at once");
    [transactional]:
        g14_a_running_process_takes_over_at_once_what_another_one_lets_go
            except(sqlite = "one writer at a time is its nature: nobody starts, or enqueues, beside an open transaction");
    [leased, transactional, batch]:
        g14_a_handler_that_ends_within_the_grace_period_is_settled;
    [leased]:
        g14_a_handler_that_outlasts_the_grace_period_is_dropped;
    [leased, transactional]:
        g12_a_dead_workers_lease_is_taken_over_at_its_end_however_much_else_is_said,
        dropping_the_handle_cancels_the_workers;
    []:
        a_server_that_says_nothing_is_an_error except(sqlite = "there is no server");
}

/// The handler would be done long after the grace period, and before a stop that takes three times as long.
async fn g14_a_handler_that_outlasts_the_grace_period_is_dropped<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queue = builder(&db).grace(secs(4)).queue("q", Partitions::of(1));
    let handler = memory.scripted(|_, _| Step::AckAfter(secs(11)));
    let handle = queue.handled(mode, handler).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    assert_eq!(settled(&db.pool).await, 0, "the handler was dropped");
    db.remove().await;
}

async fn g14_stop_returns_whatever_handlers_await<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .grace(millis(500))
        .queue("q", Partitions::of(4))
        .handled(mode, memory.scripted(|_, _| Step::Hang))
        .start()
        .await
        .unwrap();
    for partition in 0..4 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(partition)).await.unwrap();
    }
    memory.has(4).await;
    // Not when the handlers end, which is never, nor with their leases.
    tokio::time::timeout(SOON, handle.stop()).await.expect("stop ends the handlers");
    let held =
        format!("SELECT count(*) FROM {NEWEST_LINKS} AS links WHERE owner IS NOT NULL OR attempts <> 0");
    assert_eq!(count(&db.pool, &held).await, 0, "leases are released, and a stop is no try");

    // A new process goes on at once, however long the lease was.
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    memory.has_within(4, SOON).await;
    assert!(memory.all().iter().all(|seen| seen.message.attempts == 0));
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g14_a_handler_that_ends_within_the_grace_period_is_settled<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .queue("q", Partitions::of(1))
        .handled(mode, memory.scripted(|_, _| Step::AckAfter(millis(500))))
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    assert_eq!(settled(&db.pool).await, 1);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn dropping_the_handle_cancels_the_workers<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    drop(handle);
    eventually("the workers' connections are closed", async || {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        S::Db::worker_sessions(&db.pool).await.unwrap() == 0
    })
    .await;
    assert_eq!(memory.all().len(), 1, "nobody delivers any more");
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Another process goes on at once, although it believes the partition held for long, and however much else is said.
async fn g14_a_running_process_takes_over_at_once_what_another_one_lets_go<S: Server>(mode: Mode) {
    let db = fresh::<S>().await;
    let (hangs, goes_on) = (Memory::new(), Memory::new());
    let first = builder(&db)
        .grace(millis(200))
        .queue("q", Partitions::of(1))
        .handled(mode, hangs.scripted(|_, _| Step::Hang))
        .start()
        .await
        .unwrap();
    first.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    hangs.has(1).await;
    let second = builder(&db)
        .timings(Timings::without_timers())
        .queue("q", Partitions::of(1))
        .handled(mode, goes_on.handler())
        .queue("noise", Partitions::of(1))
        .handled(mode, Memory::new().handler())
        .start()
        .await
        .unwrap();
    let noise = tokio::spawn({
        let (outbox, pool) = (second.outbox(), db.pool.clone());
        async move {
            loop {
                outbox.enqueue(&pool, "noise", EnqueueMessage::new("x")).await.unwrap();
                tokio::time::sleep(millis(50)).await;
            }
        }
    });
    tokio::time::sleep(millis(500)).await;
    assert!(goes_on.all().is_empty(), "it is held");
    first.stop().await;
    goes_on.has_within(1, SOON).await;
    noise.abort();
    second.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g12_a_dead_workers_lease_is_taken_over_at_its_end_however_much_else_is_said<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    // The database counts from a moment between the two.
    let ends_after = Instant::now() + secs(3);
    leave_lease(&db.pool, 1, 3000).await;
    let ends_before = Instant::now() + secs(3);
    let handle = builder(&db)
        .timings(Timings::without_timers())
        .queue("q", Partitions::of(1))
        .handled(mode, memory.handler())
        .queue("noise", Partitions::of(1))
        .handled(mode, Memory::new().handler())
        .start()
        .await
        .unwrap();
    while Instant::now() < ends_before + SOON && memory.all().is_empty() {
        handle.outbox().enqueue(&db.pool, "noise", EnqueueMessage::new("x")).await.unwrap();
        tokio::time::sleep(millis(50)).await;
    }
    assert_eq!(memory.all().len(), 1);
    assert!(memory.all()[0].at >= ends_after - millis(100), "not before its end");
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// A server that takes the connection and says nothing, a half-open balancer for instance.
async fn a_server_that_says_nothing_is_an_error<S: Server>() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let listening = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok(connection) = silent.accept().await {
            held.push(connection);
        }
    });
    let scheme = match S::Db::WIRE {
        Wire::Postgres => "postgres",
        Wire::Mysql => "mysql",
        Wire::None => unreachable!("there is no server"),
    };
    let options = S::Db::options(&format!("{scheme}://nobody@127.0.0.1:{port}/nothing"));
    let pool = Pool::<S::Db>::connect_lazy_with(options);
    // It would wait forever.
    let error = builder_on(pool.clone()).start().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(posthaste::Outbox::connect(pool).await.unwrap_err().is_retryable());
    listening.abort();
}
