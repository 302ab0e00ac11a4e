//! G15: what it costs does not grow: not with queues, not with the backlog.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use posthaste::{Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxProfile, Partitions};
use tokio::sync::watch;

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::Server,
    stage::{STANDSTILL, begin, count, eventually, fresh, grows_to, insert_by_hand, register, secs, settled},
};

cases! {
    []:
        a_thousand_queues_are_served_by_one_process (flavor = "multi_thread", worker_threads = 2),
        g15_memory_does_not_grow_with_a_backlog_of_160_mb (flavor = "multi_thread", worker_threads = 2),
        g15_memory_does_not_grow_with_a_backlog_of_a_million (flavor = "multi_thread", worker_threads = 2);
}

/// Counts, and keeps nothing.
#[derive(Clone)]
pub struct Count {
    pub seen: watch::Sender<usize>,
    largest: Arc<AtomicUsize>,
}

impl Count {
    pub fn new() -> Self {
        Self { seen: watch::Sender::new(0), largest: Arc::default() }
    }

    /// Waits until `n` messages were seen, for as long as some are coming.
    pub async fn has(&self, n: usize) {
        let mut seen = self.seen.subscribe();
        while *seen.borrow_and_update() < n {
            let more = tokio::time::timeout(STANDSTILL, seen.changed()).await;
            assert!(more.is_ok(), "{} of {n} messages, and no more for {STANDSTILL:?}", *self.seen.borrow());
        }
    }
}

impl LeasedHandler for Count {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let taken = batch.next_chunk(usize::MAX).len();
        self.largest.fetch_max(taken, Ordering::SeqCst);
        self.seen.send_modify(|seen| *seen += taken);
        HandlerResult::Success
    }
}

async fn a_thousand_queues_are_served_by_one_process<S: Server>() {
    const QUEUES: usize = 1000;
    let (db, seen) = (fresh::<S>().await, Count::new());
    let mut builder = Outbox::builder(db.pool.clone()).grace(secs(5));
    let names: Vec<_> = (0..QUEUES).map(|n| format!("queue-{n}")).collect();
    for name in &names {
        builder = builder.queue(name, Partitions::of(1)).leased(seen.clone()).outbox();
    }
    let handle = builder.start().await.unwrap();
    for round in 1..=3 {
        let mut tx = begin(&db.pool).await;
        for name in &names {
            handle.outbox().enqueue(&mut tx, name, EnqueueMessage::new(name.as_str())).await.unwrap();
        }
        tx.commit().await.unwrap();
        seen.has(round * QUEUES).await;
    }
    grows_to(3000, "are settled", async || settled(&db.pool).await).await;
    eventually("and removed", async || count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0)
        .await;
    assert!(S::Db::worker_sessions(&db.pool).await.unwrap() <= 9, "with a handful of connections");
    handle.stop().await;
    db.remove().await;
}

/// In kilobytes.
pub fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("this process");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

async fn g15_memory_does_not_grow_with_a_backlog_of_a_million<S: Server>() {
    memory_does_not_grow::<S>(1_000_000, 200, OutboxProfile::auto()).await;
}

/// More than twice as much as the memory may grow.
async fn g15_memory_does_not_grow_with_a_backlog_of_160_mb<S: Server>() {
    memory_does_not_grow::<S>(40_000, 4_000, OutboxProfile::default()).await;
}

async fn memory_does_not_grow<S: Server>(backlog: u32, payload_bytes: usize, profile: OutboxProfile) {
    let (db, seen) = (fresh::<S>().await, Count::new());
    register(&db, Partitions::of(16)).await;
    // By hand: the delivery is what is measured.
    insert_by_hand(&db.pool, backlog / 16, &"x".repeat(payload_bytes)).await;
    let handle = Outbox::builder(db.pool.clone())
        .profile(profile)
        .queue("q", Partitions::of(16))
        .leased(seen.clone())
        .start()
        .await
        .unwrap();
    seen.has(1000).await;
    let early = memory();
    let mut peak = early;
    grows_to(backlog.into(), "are handled", async || {
        peak = peak.max(memory());
        i64::try_from(*seen.seen.borrow()).expect("few enough")
    })
    .await;
    assert!(peak < early + 64 * 1024, "{early} KB at first, {peak} KB at most");
    if backlog == 1_000_000 {
        assert!(seen.largest.load(Ordering::SeqCst) > 100, "under load, the profile takes more at once");
    }
    grows_to(backlog.into(), "are settled", async || settled(&db.pool).await).await;
    handle.stop().await;
    db.remove().await;
}
