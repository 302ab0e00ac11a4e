//! G13: a message is delivered because a notification triggered it, not because a timer found it.
//!
//! The timers that would find a message anyway are set to an hour. A message that is delivered at all was triggered by a
//! notification. How long that takes is measured by `cargo xtask bench`.

use std::time::Duration;

use posthaste::{EnqueueMessage, Outbox, Partitions, testing::Timings};

use crate::{
    cases::cases,
    dialect::Tested,
    fresh::Server,
    stage::{
        Memory, begin, builder, builder_on, eventually, fresh, idle_for_ever, insert_by_hand, millis, secs,
        settled, timings,
    },
};

cases! {
    []:
        g13_in_the_same_process_the_enqueue_triggers_the_delivery,
        g13_a_transaction_that_was_open_for_long_is_delivered_after_its_commit,
        g13_from_another_process_a_notification_triggers_the_delivery,
        g13_what_another_process_sequenced_is_delivered_by_its_notification,
        g13_a_message_without_a_notification_is_found_by_the_beat;
}

/// More than the checks of everything that a start begins with could find.
const ROUNDS: usize = 12;

/// Sends messages one by one, each in a transaction that stays open for a while, and each after the one before is settled.
async fn assert_each_is_delivered<DB: Tested>(
    outbox: &Outbox<DB>,
    pool: &sqlx::Pool<DB>,
    memory: &Memory,
    open_for: impl Fn(usize) -> Duration,
) {
    let before = memory.all().len();
    for n in 1..=ROUNDS {
        let message = EnqueueMessage::new("x").partition(u32::try_from(n % 4).unwrap());
        let mut tx = begin(pool).await;
        outbox.enqueue(&mut tx, "q", message).await.unwrap();
        tokio::time::sleep(open_for(n)).await;
        tx.commit().await.unwrap();
        memory.has(before + n).await;
        let all = i64::try_from(before + n).unwrap();
        eventually("it is settled", async || settled(pool).await == all).await;
    }
}

/// Without watchers too: what happens in this process is enough.
async fn g13_in_the_same_process_the_enqueue_triggers_the_delivery<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    // For as long as a transaction may take on a busy machine, the sequencer polls for its end.
    let timings = Timings { open_for_long: secs(3600), ..Timings::without_timers().without_watchers() };
    let queue = idle_for_ever(builder(&db)).timings(timings).queue("q", Partitions::of(4));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    assert_each_is_delivered(&outbox, &db.pool, &memory, |n| millis([0, 5, 60][n % 3])).await;
    handle.stop().await;
    db.remove().await;
}

/// Where the database does not tell which transactions are open, the watcher finds its messages.
async fn g13_a_transaction_that_was_open_for_long_is_delivered_after_its_commit<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let timings = Timings { open_for_long: timings().open_for_long, ..Timings::without_timers() };
    let queue = idle_for_ever(builder(&db)).timings(timings).queue("q", Partitions::of(4));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    assert_each_is_delivered(&outbox, &db.pool, &memory, |_| timings.open_for_long * 2).await;
    handle.stop().await;
    db.remove().await;
}

async fn g13_from_another_process_a_notification_triggers_the_delivery<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queue = idle_for_ever(builder(&db)).timings(Timings::without_timers()).queue("q", Partitions::of(4));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    // An outbox without workers shares nothing with them: it is to them as another process.
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    // The workers look for messages when they start, and when they begin to listen. The third message is heard of, so they listen.
    for n in 1..=3 {
        producer.enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        memory.has(n).await;
    }
    assert_each_is_delivered(&producer, &db.pool, &memory, |n| millis([0, 5, 200][n % 3])).await;
    handle.stop().await;
    db.remove().await;
}

/// A process that has workers sequences its messages itself, and does not notify others of the enqueue: the process that has the
/// processors is notified of the tick.
async fn g13_what_another_process_sequenced_is_delivered_by_its_notification<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let start = || idle_for_ever(builder(&db)).timings(Timings::without_timers());
    let processors = start().queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let sequencer = start().start().await.unwrap();
    assert_each_is_delivered(&sequencer.outbox(), &db.pool, &memory, |_| Duration::ZERO).await;
    sequencer.stop().await;
    processors.stop().await;
    db.remove().await;
}

async fn g13_a_message_without_a_notification_is_found_by_the_beat<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    // No timer but the beat, and the watcher where there is one.
    let queue = idle_for_ever(builder_on(db.pool.clone())).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    // The checks at the start find one or two.
    for n in 1..=4 {
        // By hand, as any client may.
        insert_by_hand(&db.pool, 1, "by hand").await;
        memory.has(n).await;
    }
    handle.stop().await;
    db.remove().await;
}
