//! The promised timings, at full length: every other test scales them down. Only in `cargo xtask test --long`.

use posthaste::{HandlerResult, Outbox, Partitions, StallCause, testing::Timings};
use tokio::sync::watch;

use crate::{
    cases::cases,
    fresh::Server,
    stage::{Memory, SOON, Step, count, fresh, idle_for_ever, insert_by_hand, within},
};

cases! {
    []: the_promised_timings_at_full_length;
}

/// Without a notification, a message is found by the beat of 5 s, or sooner by a watcher. While its handler fails, the partition is reported as stalled
/// after 5 s. Once it is settled, its row is removed after 3 s.
async fn the_promised_timings_at_full_length<S: Server>() {
    let (db, memory, is_up) = (fresh::<S>().await, Memory::new(), watch::Sender::new(true));
    let destination = is_up.subscribe();
    let handler = memory.scripted(move |_, _| {
        if *destination.borrow() {
            return Step::Ack;
        }
        Step::Return(HandlerResult::Retry { reason: "the destination is down".to_owned() })
    });
    let outbox = idle_for_ever(Outbox::builder(db.pool.clone())).queue("q", Partitions::of(1));
    let handle = outbox.leased(handler).start().await.unwrap();
    // The checks at the start find one or two.
    for n in 1..=3 {
        insert_by_hand(&db.pool, 1, "by hand").await;
        memory.has_within(n, SOON).await;
    }
    is_up.send_replace(false);
    insert_by_hand(&db.pool, 1, "by hand").await;
    let mut stalls = Vec::new();
    within(SOON, "the partition is reported as stalled", async || {
        stalls = handle.health().await.stalled;
        !stalls.is_empty()
    })
    .await;
    assert!(stalls[0].since >= Timings::default().stalled_after, "{stalls:?}");
    assert!(matches!(stalls[0].cause, StallCause::Retrying { .. }), "{stalls:?}");
    is_up.send_replace(true);
    within(SOON, "all rows are removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    handle.stop().await;
    db.remove().await;
}
