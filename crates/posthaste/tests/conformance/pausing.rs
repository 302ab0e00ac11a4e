//! A paused queue is not delivered, anywhere, until it is resumed; everything else goes on.

use std::time::Duration;

use posthaste::{EnqueueMessage, Outbox, OutboxError, Partitions, testing::Timings};

use crate::{
    cases::cases,
    effects::all_settled,
    fresh::Server,
    modes::{InMode, Mode},
    stage::{
        Memory, Step, assert_consistent, builder, builder_on, eventually, fresh, millis, secs, settled,
        timings,
    },
};

cases! {
    [leased, transactional, batch]:
        a_paused_queue_is_delivered_nowhere_until_it_is_resumed,
        a_pause_survives_a_restart;
    [leased, transactional]:
        a_pause_stops_a_batch_that_is_at_work
            except(sqlite = "the pause waits for the handler's transaction, as every writer does");
    []:
        only_the_queue_that_is_named_is_paused,
        a_queue_that_nobody_registered_cannot_be_paused;
}

/// A tenth of what is promised, as all timings of the tests.
const PAUSED_WITHIN: Duration = millis(200);

/// Neither in the process that paused it nor in another one that knows it only from the database.
async fn a_paused_queue_is_delivered_nowhere_until_it_is_resumed<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let start = async || {
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap()
    };
    let (one, other) = (start().await, start().await);
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    let enqueue = async |n: u32| {
        let messages: Vec<_> = (0..n).map(|n| EnqueueMessage::new("x").partition(n % 4)).collect();
        producer.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    };
    enqueue(8).await;
    eventually("all is settled", async || settled(&db.pool).await == 8).await;
    // By a process that has no workers at all.
    producer.pause("q").await.unwrap();
    producer.pause("q").await.unwrap();
    tokio::time::sleep(PAUSED_WITHIN).await;
    let before = memory.given().len();
    // Round after round, so that the workers are told again and again.
    for _ in 0..10 {
        enqueue(4).await;
        tokio::time::sleep(millis(30)).await;
    }
    assert_eq!(memory.given().len(), before, "nothing is given to handlers");
    assert_eq!(settled(&db.pool).await, 8);
    producer.resume("q").await.unwrap();
    eventually("delivery goes on", async || memory.all().len() == 48).await;
    enqueue(4).await;
    memory.has(52).await;
    producer.resume("q").await.unwrap();
    one.stop().await;
    other.stop().await;
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn a_pause_survives_a_restart<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    // No timer finds out that the queue was resumed.
    let timings = Timings { pause_belief: secs(3600), ..timings() };
    let start = async || {
        let queue = builder(&db).timings(timings).queue("q", Partitions::of(1));
        queue.handled(mode, memory.handler()).start().await.unwrap()
    };
    let handle = start().await;
    handle.outbox().pause("q").await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    handle.stop().await;
    let handle = start().await;
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("y")).await.unwrap();
    tokio::time::sleep(PAUSED_WITHIN).await;
    assert!(memory.given().is_empty());
    handle.outbox().resume("q").await.unwrap();
    memory.has(2).await;
    assert_eq!(memory.payloads(), ["x", "y"]);
    // At once where it is resumed.
    for n in 2..7_usize {
        all_settled(&db.pool, i64::try_from(n).unwrap()).await;
        handle.outbox().pause("q").await.unwrap();
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("z")).await.unwrap();
        handle.outbox().resume("q").await.unwrap();
        memory.has(n + 1).await;
    }
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// A batch that would take 10 s or more: what was not begun comes after the pause.
async fn a_pause_stops_a_batch_that_is_at_work<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let slow = memory.scripted(|_, _| Step::AckAfter(millis(200)));
    let tuning = posthaste::WorkerTuning::processor_high_throughput();
    let handle = builder(&db)
        .processor_tuning(tuning)
        .queue("q", Partitions::of(1))
        .handled(mode, slow)
        .start()
        .await
        .unwrap();
    // By a process that does not tell the workers.
    let elsewhere = Outbox::connect(db.pool.clone()).await.unwrap();
    elsewhere.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap();
    memory.has(1).await;
    elsewhere.pause("q").await.unwrap();
    // A batch is settled when it ends.
    eventually("the batch ends", async || settled(&db.pool).await > 0).await;
    let begun = memory.given().len();
    assert!(begun < 50, "the pause ended the batch: {begun} of 100 were begun");
    tokio::time::sleep(millis(500)).await;
    assert_eq!(memory.given().len(), begun, "no more is begun");
    let done = i64::try_from(begun).unwrap();
    assert_eq!(settled(&db.pool).await, done, "what was begun is settled, and not a failure");
    assert!(memory.all().iter().all(|seen| seen.message.attempts == 0));
    elsewhere.resume("q").await.unwrap();
    memory.has(begun + 1).await;
    let ids = memory.given();
    assert!(ids.is_sorted_by(|one, next| one < next), "none came twice: {ids:?}");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn only_the_queue_that_is_named_is_paused<S: Server>() {
    let (db, upper, lower) = (fresh::<S>().await, Memory::new(), Memory::new());
    let handle = builder_on(db.pool.clone())
        .queue("Orders", Partitions::of(1))
        .leased(upper.handler())
        .queue("orders", Partitions::of(1))
        .leased(lower.handler())
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    outbox.pause("orders").await.unwrap();
    for name in ["orders", "Orders"] {
        outbox.enqueue(&db.pool, name, EnqueueMessage::new("x")).await.unwrap();
    }
    upper.has(1).await;
    tokio::time::sleep(millis(300)).await;
    assert!(lower.given().is_empty());
    outbox.resume("orders").await.unwrap();
    lower.has(1).await;
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_that_nobody_registered_cannot_be_paused<S: Server>() {
    let db = fresh::<S>().await;
    posthaste::migrate(&db.pool).await.unwrap();
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    for error in [outbox.pause("nobody").await.unwrap_err(), outbox.resume("nobody").await.unwrap_err()] {
        assert!(matches!(&error, OutboxError::QueueNotRegistered(name) if name == "nobody"), "{error}");
    }
    let error = outbox.pause("no name").await.unwrap_err();
    assert!(matches!(error, OutboxError::InvalidQueueName(_)), "{error}");
    db.remove().await;
}
