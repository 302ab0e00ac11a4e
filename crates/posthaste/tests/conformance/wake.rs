//! G13: how fast a message is delivered in an idle system, and by which way the news travels.

use std::time::Duration;

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use tokio::time::Instant;

use crate::{
    cases::cases,
    fresh::Server,
    modes::{InMode, Mode},
    stage::{Memory, begin, fresh, insert_by_hand, millis, secs},
};

cases! {
    [leased, transactional]: g13_in_the_same_process_within_50_ms;
    []:
        g13_after_a_transaction_that_was_open_for_long_within_250_ms,
        g13_from_another_process_within_250_ms,
        g13_a_message_that_nobody_announced_is_found_within_seconds;
}

/// The times from commit to handler of messages that come one by one, sorted.
async fn delays<S: Server>(
    mode: Mode,
    profile: OutboxProfile,
    own_process: bool,
    open_for: Duration,
    rounds: usize,
) -> Vec<Duration> {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .profile(profile)
        .queue("q", Partitions::of(4))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    // An outbox without workers has no bell of theirs: it is to them as another process.
    let outbox = if own_process { handle.outbox() } else { Outbox::connect(db.pool.clone()).await.unwrap() };
    let mut delays = Vec::new();
    for n in 1..=rounds {
        let mut tx = begin(&db.pool).await;
        let partition = u32::try_from(n % 4).unwrap();
        outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x").partition(partition)).await.unwrap();
        tokio::time::sleep(open_for).await;
        tx.commit().await.unwrap();
        let committed = Instant::now();
        memory.has(n).await;
        delays.push(memory.all()[n - 1].at.saturating_duration_since(committed));
        // Idle again, at no particular moment.
        tokio::time::sleep(millis(20 + u64::try_from(n * 7 % 40).unwrap())).await;
    }
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
    delays.sort_unstable();
    delays
}

fn assert_p99(delays: &[Duration], limit: Duration) {
    let p99 = delays[(delays.len() * 99).div_ceil(100) - 1];
    assert!(p99 <= limit, "p99 {p99:?}, median {:?}", delays[delays.len() / 2]);
}

async fn g13_in_the_same_process_within_50_ms<S: Server>(mode: Mode) {
    assert_p99(&delays::<S>(mode, OutboxProfile::default(), true, Duration::ZERO, 60).await, millis(50));
    assert_p99(&delays::<S>(mode, OutboxProfile::default(), true, millis(60), 20).await, millis(50));
}

async fn g13_after_a_transaction_that_was_open_for_long_within_250_ms<S: Server>() {
    assert_p99(
        &delays::<S>(Mode::Leased, OutboxProfile::default(), true, millis(1200), 5).await,
        millis(250),
    );
}

async fn g13_from_another_process_within_250_ms<S: Server>() {
    assert_p99(
        &delays::<S>(Mode::Leased, OutboxProfile::default(), false, Duration::ZERO, 40).await,
        millis(250),
    );
    assert_p99(
        &delays::<S>(Mode::Leased, OutboxProfile::default(), false, millis(300), 10).await,
        millis(250),
    );
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
