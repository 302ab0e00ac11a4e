//! How far partitions are behind: `lag`.

use posthaste::{EnqueueMessage, HandlerResult, Outbox, PartitionLag, Partitions};
use sqlx::Pool;
use tokio::sync::watch;

use crate::{
    cases::cases,
    dialect::{Dialect, Tested},
    fresh::{Fresh, Server},
    modes::{InMode, Mode},
    stage::{
        Memory, Step, begin, builder, eventually, fresh, leave_lease, quick_retries, register, run, secs,
        settled,
    },
};

cases! {
    [leased, transactional, batch]:
        a_lease_has_its_owner_while_a_handler_runs_and_nobody_afterwards,
        attempts_and_the_last_error_are_told_while_a_message_is_retried;
    []:
        lag_is_exact_for_what_is_settled_what_waits_and_what_has_no_order_yet,
        the_oldest_message_is_as_old_as_the_databases_clock_says,
        a_lease_that_is_over_is_nobodys,
        a_paused_queue_is_told_as_paused,
        without_queues_there_is_no_lag;
}

/// Lets a sequencer of its own give every message its order; nobody processes.
pub async fn sequence<S: Server>(db: &Fresh<S>, head: u64) {
    let handle = builder(db).start().await.unwrap();
    eventually("all have their order", async || {
        handle.outbox().lag().await.unwrap().iter().map(|lag| lag.head_seq.cast_unsigned()).sum::<u64>()
            == head
    })
    .await;
    handle.stop().await;
}

/// How far the only partition is, as a process without workers sees it.
pub async fn lag_of_one<DB: Tested>(pool: &Pool<DB>) -> PartitionLag {
    let lags = Outbox::connect(pool.clone()).await.unwrap().lag().await.unwrap();
    let [lag] = &lags[..] else { panic!("one partition: {lags:?}") };
    lag.clone()
}

async fn lag_is_exact_for_what_is_settled_what_waits_and_what_has_no_order_yet<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queues = builder(&db).queue("q", Partitions::of(2)).leased(memory.handler());
    let handle = queues.queue("Q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
    let send = async |queue: &str, partition: u32, messages: usize| {
        let messages = vec![EnqueueMessage::new("x").partition(partition); messages];
        handle.outbox().enqueue_batch(&db.pool, queue, &messages).await.unwrap();
    };
    send("q", 0, 3).await;
    memory.has(3).await;
    eventually("they are settled", async || settled(&db.pool).await == 3).await;
    handle.stop().await;

    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let send = async |queue: &str, partition: u32, messages: usize| {
        let messages = vec![EnqueueMessage::new("x").partition(partition); messages];
        outbox.enqueue_batch(&db.pool, queue, &messages).await.unwrap();
    };
    send("q", 0, 300).await;
    send("q", 1, 2).await;
    sequence(&db, 305).await;
    send("Q", 1, 1).await;
    // Not committed, so nobody knows of it.
    let mut open = begin(&db.pool).await;
    outbox.enqueue(&mut open, "Q", EnqueueMessage::new("x")).await.unwrap();
    let lags = outbox.lag().await.unwrap();
    open.rollback().await.unwrap();
    let places: Vec<_> = lags
        .iter()
        .map(|lag| (&*lag.queue, lag.partition, lag.head_seq, lag.cursor_seq, lag.depth))
        .collect();
    assert_eq!(places, [("Q", 0, 0, 0, 0), ("Q", 1, 0, 0, 0), ("q", 0, 303, 3, 300), ("q", 1, 2, 0, 2)]);
    let has_old: Vec<_> = lags.iter().map(|lag| lag.oldest.is_some()).collect();
    assert_eq!(has_old, [false, true, true, true], "what has no order yet is not settled either");
    let mut ids: Vec<_> = lags.iter().map(|lag| lag.partition_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 4, "each partition has its own");
    for lag in &lags {
        assert_eq!((lag.owner, lag.lease_left, lag.attempts), (None, None, 0), "{lag:?}");
        assert_eq!((&lag.last_error, lag.is_paused), (&None, false), "{lag:?}");
    }
    db.remove().await;
}

async fn the_oldest_message_is_as_old_as_the_databases_clock_says<S: Server>() {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let written = async |hours_ago: i64| {
        let id = outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        let then = S::Db::moment(-hours_ago * 3_600_000);
        run(&db.pool, &format!("UPDATE posthaste_incoming SET created_at = {then} WHERE id = {id}")).await;
    };
    let assert_hours = async |hours: u64, what: &str| {
        let oldest = lag_of_one(&db.pool).await.oldest.unwrap();
        assert!((secs(hours * 3600)..secs(hours * 3600 + 60)).contains(&oldest), "{what}: {oldest:?}");
        oldest
    };
    assert_eq!(lag_of_one(&db.pool).await.oldest, None);
    written(3).await;
    let oldest = assert_hours(3, "it has no order yet").await;
    sequence(&db, 1).await;
    assert!(assert_hours(3, "it has its order").await > oldest, "it grows older");
    written(1).await;
    assert_hours(3, "the first of two").await;
    written(7).await;
    assert_hours(7, "whether it has its order or not").await;
    sequence(&db, 3).await;
    assert_hours(3, "the next one that is delivered").await;
    db.remove().await;
}

async fn a_lease_has_its_owner_while_a_handler_runs_and_nobody_afterwards<S: Server>(mode: Mode) {
    let (db, memory, told) = (fresh::<S>().await, Memory::new(), watch::Sender::new(false));
    let waiting = told.subscribe();
    let handler = memory.scripted(move |_, _| Step::AckWhen(waiting.clone()));
    let handle = builder(&db).queue("q", Partitions::of(1)).handled(mode, handler).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let lag = lag_of_one(&db.pool).await;
    assert_eq!((lag.owner, lag.attempts, lag.depth), (Some(handle.worker_id()), 1, 1), "{lag:?}");
    assert!(lag.lease_left.is_some_and(|left| left > secs(10) && left <= secs(30)), "{lag:?}");
    told.send_replace(true);
    eventually("it is settled", async || lag_of_one(&db.pool).await.depth == 0).await;
    let lag = lag_of_one(&db.pool).await;
    assert_eq!((lag.owner, lag.lease_left, lag.attempts, lag.oldest), (None, None, 0, None), "{lag:?}");
    handle.stop().await;
    db.remove().await;
}

async fn attempts_and_the_last_error_are_told_while_a_message_is_retried<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let retry =
        |_: usize, _: &_| Step::Return(HandlerResult::Retry { reason: "no such street: Ä".to_owned() });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.handled(mode, memory.scripted(retry)).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    eventually("it is told", async || {
        let lag = lag_of_one(&db.pool).await;
        lag.attempts >= 3 && lag.last_error.as_deref() == Some("no such street: Ä")
    })
    .await;
    handle.stop().await;
    db.remove().await;
}

async fn a_lease_that_is_over_is_nobodys<S: Server>() {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    // It lasts 30 s, so one that ends in an hour was taken before the clock was set back.
    for (ends_in, is_held) in [(-1000, false), (20_000, true), (3_600_000, false)] {
        leave_lease(&db.pool, 4, ends_in).await;
        let lag = lag_of_one(&db.pool).await;
        assert_eq!((lag.owner.is_some(), lag.lease_left.is_some()), (is_held, is_held), "{ends_in}: {lag:?}");
        assert!(lag.lease_left.is_none_or(|left| left > secs(10) && left <= secs(20)), "{lag:?}");
        assert_eq!(lag.attempts, 4);
    }
    db.remove().await;
}

async fn a_paused_queue_is_told_as_paused<S: Server>() {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    run(&db.pool, &format!("UPDATE posthaste_queue SET paused_at = {}", S::Db::moment(0))).await;
    assert!(lag_of_one(&db.pool).await.is_paused);
    run(&db.pool, "UPDATE posthaste_queue SET paused_at = NULL").await;
    assert!(!lag_of_one(&db.pool).await.is_paused);
    db.remove().await;
}

async fn without_queues_there_is_no_lag<S: Server>() {
    let db = fresh::<S>().await;
    posthaste::migrate(&db.pool).await.unwrap();
    assert_eq!(Outbox::connect(db.pool.clone()).await.unwrap().lag().await.unwrap(), []);
    db.remove().await;
}
