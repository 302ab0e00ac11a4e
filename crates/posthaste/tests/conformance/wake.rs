//! G13: how fast a message is delivered in an idle system, and by which way the news travels.

use std::time::Duration;

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use tokio::time::Instant;

use crate::{
    cases::cases,
    fresh::Server,
    modes::{InMode, Mode},
    presence::{Presence, assert_p99},
    stage::{Memory, begin, fresh, insert_by_hand, millis, secs},
};

cases! {
    [leased, transactional]: g13_in_the_same_process_within_50_ms;
    []:
        g13_after_a_transaction_that_was_open_for_long_within_250_ms,
        g13_from_another_process_within_250_ms,
        g13_what_another_process_sequenced_is_delivered_within_250_ms,
        g13_a_message_that_nobody_announced_is_found_within_seconds;
}

/// Messages come one by one, each from a transaction that stays open for so long after its enqueue, so many of each kind; of
/// the times from commit to handler, less what the machine was away, the 99th percentile of each kind is within the limit.
///
/// One outbox for all kinds, and more than a hundred messages where the limit is tight, so that no single one decides: the very
/// first comes while the workers begin, and waits for a handler's first session. It counts, as one of many.
async fn assert_delivered_within<S: Server>(
    mode: Mode,
    own_process: bool,
    kinds: impl IntoIterator<Item = (Duration, usize)>,
    limit: Duration,
) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::default())
        .queue("q", Partitions::of(4))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    // An outbox without workers has no bell of theirs: it is to them as another process.
    let outbox = if own_process { handle.outbox() } else { Outbox::connect(db.pool.clone()).await.unwrap() };
    let mut sent = 0;
    for (open_for, rounds) in kinds {
        let (presence, mut spans) = (Presence::watch(), Vec::new());
        for _ in 0..rounds {
            let mut tx = begin(&db.pool).await;
            sent += 1;
            let partition = u32::try_from(sent % 4).unwrap();
            outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x").partition(partition)).await.unwrap();
            tokio::time::sleep(open_for).await;
            tx.commit().await.unwrap();
            let committed = Instant::now();
            memory.has(sent).await;
            spans.push((committed.into_std(), memory.all()[sent - 1].at.into_std()));
            // Idle again, at no particular moment.
            tokio::time::sleep(millis(5 + u64::try_from(sent * 7 % 30).unwrap())).await;
        }
        assert_p99(&format!("open for {open_for:?}"), &spans, &presence.absences(), limit);
    }
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g13_in_the_same_process_within_50_ms<S: Server>(mode: Mode) {
    assert_delivered_within::<S>(mode, true, [(Duration::ZERO, 200), (millis(60), 120)], millis(50)).await;
}

async fn g13_after_a_transaction_that_was_open_for_long_within_250_ms<S: Server>() {
    assert_delivered_within::<S>(Mode::Leased, true, [(millis(1200), 5)], millis(250)).await;
}

async fn g13_from_another_process_within_250_ms<S: Server>() {
    assert_delivered_within::<S>(
        Mode::Leased,
        false,
        [(Duration::ZERO, 120), (millis(300), 10)],
        millis(250),
    )
    .await;
}

/// A process that has workers gives its messages their order itself, and rings nobody else's bell at the enqueue: who has the
/// processors hears of the tick.
async fn g13_what_another_process_sequenced_is_delivered_within_250_ms<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let processors = Outbox::builder(db.pool.clone()).queue("q", Partitions::of(4));
    let processors = processors.leased(memory.handler()).start().await.unwrap();
    let sequencer = Outbox::builder(db.pool.clone()).start().await.unwrap();
    let (presence, mut spans) = (Presence::watch(), Vec::new());
    for n in 1..=100_usize {
        let mut tx = begin(&db.pool).await;
        let message = EnqueueMessage::new("x").partition(u32::try_from(n % 4).unwrap());
        sequencer.outbox().enqueue(&mut tx, "q", message).await.unwrap();
        tx.commit().await.unwrap();
        let committed = Instant::now();
        memory.has_within(n, secs(2)).await;
        spans.push((committed.into_std(), memory.all()[n - 1].at.into_std()));
        // Idle again; now and then for so long that everybody has gone back to looking rarely.
        let idle = if n % 20 == 0 { 1050 + n * 5 } else { 5 + n * 7 % 30 };
        tokio::time::sleep(millis(u64::try_from(idle).unwrap())).await;
    }
    assert_p99("sequenced by another", &spans, &presence.absences(), millis(250));
    sequencer.stop().await;
    processors.stop().await;
    db.remove().await;
}

async fn g13_a_message_that_nobody_announced_is_found_within_seconds<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .queue("q", Partitions::of(1))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    // Past the first look around, which every start begins with.
    tokio::time::sleep(secs(1)).await;
    // By hand, as any client may.
    insert_by_hand(&db.pool, 1, "by hand").await;
    memory.has_within(1, secs(6)).await;
    handle.stop().await;
    db.remove().await;
}
