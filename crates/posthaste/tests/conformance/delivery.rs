//! G1, G2, G4, G6, G9, G11: what is committed is delivered, once, as it was, and nothing else.

use std::time::Duration;

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use tokio::time::Instant;

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::Server,
    modes::{InMode, Mode},
    stage::{
        Memory, SOON, assert_consistent, begin, builder, count, fresh, grows_to, insert_by_hand, millis,
        numbers, register, secs, settled,
    },
};

cases! {
    [leased, transactional, batch]:
        g1_nothing_lost_and_g4_no_duplicates_without_faults,
        g2_no_phantom_is_sequenced_delivered_or_buried,
        g9_a_message_never_reaches_another_queues_handler;
    [leased, transactional]:
        g11_a_transaction_that_stays_open_delays_only_its_own_messages
            except(sqlite = "one writer at a time is its nature: who stays in a transaction delays everybody"),
        g11_eight_producers_with_overlapping_transactions_are_delivered_while_they_overlap
            except(sqlite = "one writer at a time is its nature: transactions do not overlap");
    [leased, batch]:
        a_hundred_thousand_messages_in_one_transaction_arrive_in_order;
    []:
        g11_a_transaction_that_stays_open_for_30_s_delays_only_its_own_messages
            except(sqlite = "one writer at a time is its nature: who stays in a transaction delays everybody"),
        a_backlog_of_many_parts_is_sequenced_whole,
        a_backlog_of_many_parts_is_sequenced_whole_while_a_transaction_is_open
            except(sqlite = "one writer at a time is its nature: nobody enqueues beside an open transaction"),
        max_inner_iterations_and_the_sequencers_pace_decide_how_a_backlog_is_sequenced;
}

async fn g1_nothing_lost_and_g4_no_duplicates_without_faults<S: Server>(mode: Mode) {
    const PRODUCERS: u32 = 8;
    const TRANSACTIONS: u32 = 50;
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let (outbox, pool) = (handle.outbox(), db.pool.clone());
            tokio::spawn(async move {
                for n in 0..TRANSACTIONS {
                    let mut tx = begin(&pool).await;
                    let messages: Vec<_> =
                        (0..5).map(|m| EnqueueMessage::new("x").partition((n + m) % 4)).collect();
                    let ids = outbox.enqueue_batch(&mut tx, "q", &messages).await.unwrap();
                    for id in ids {
                        let sql =
                            format!("INSERT INTO ledger (id, producer, n) VALUES ({id}, {producer}, {n})");
                        S::Db::run(&mut tx, &sql).await.unwrap();
                    }
                    // G2: a third of them change their minds.
                    if n % 3 == 2 { tx.rollback().await.unwrap() } else { tx.commit().await.unwrap() }
                }
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    let committed = numbers(&db.pool, "SELECT id FROM ledger ORDER BY id").await;
    memory.has(committed.len()).await;
    handle.stop().await;
    let mut delivered = memory.ids();
    delivered.sort_unstable();
    assert_eq!(delivered, committed, "each once, and nothing that was rolled back");
    assert_eq!(settled(&db.pool).await, i64::try_from(committed.len()).unwrap());
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g2_no_phantom_is_sequenced_delivered_or_buried<S: Server>(mode: Mode) {
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    for _ in 0..20 {
        let mut tx = begin(&db.pool).await;
        handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("phantom")).await.unwrap();
        tx.rollback().await.unwrap();
    }
    let mut tx = begin(&db.pool).await;
    S::Db::run(&mut tx, "SAVEPOINT s").await.unwrap();
    handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("phantom")).await.unwrap();
    S::Db::run(&mut tx, "ROLLBACK TO s").await.unwrap();
    handle.outbox().enqueue(&mut tx, "q", EnqueueMessage::new("real")).await.unwrap();
    tx.commit().await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["real"]);
    assert_eq!(memory.all()[0].message.seq, 1, "a seq is not spent on what was rolled back");
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g9_a_message_never_reaches_another_queues_handler<S: Server>(mode: Mode) {
    let names = ["orders", "Orders", "ORDERS", "a.b", "a_b", "a-b", "q", &"x".repeat(128), &"X".repeat(128)];
    let db = fresh::<S>().await;
    let memories: Vec<_> = names.iter().map(|_| Memory::new()).collect();
    let mut outbox = builder(&db);
    for (name, memory) in names.iter().zip(&memories) {
        outbox = outbox.queue(name, Partitions::of(2)).handled(mode, memory.handler()).outbox();
    }
    let handle = outbox.start().await.unwrap();
    for round in 0..10 {
        for name in names {
            handle
                .outbox()
                .enqueue(&db.pool, name, EnqueueMessage::new(name).partition(round % 2))
                .await
                .unwrap();
        }
    }
    for (name, memory) in names.iter().zip(&memories) {
        memory.has(10).await;
        assert!(
            memory
                .all()
                .iter()
                .all(|seen| &*seen.message.queue == *name && seen.message.payload == name.as_bytes())
        );
    }
    handle.stop().await;
    assert!(memories.iter().all(|memory| memory.all().len() == 10));
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// All of them arrive while it is open, which shows that none waits for it.
async fn delays_only_its_own<S: Server>(mode: Mode, open_for: Duration) {
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut open = begin(&db.pool).await;
    outbox.enqueue(&mut open, "q", EnqueueMessage::new("slow")).await.unwrap();
    let (began, mut n) = (Instant::now(), 0);
    while began.elapsed() < open_for || n < 50 {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new(format!("quick {n}"))).await.unwrap();
        n += 1;
        memory.has_within(n, SOON).await;
        tokio::time::sleep(millis(20)).await;
    }
    open.commit().await.unwrap();
    memory.has_within(n + 1, SOON).await;
    assert_eq!(memory.payloads()[n], "slow");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g11_a_transaction_that_stays_open_delays_only_its_own_messages<S: Server>(mode: Mode) {
    delays_only_its_own::<S>(mode, Duration::ZERO).await;
}

/// For so long that workers have given up looking for it often.
async fn g11_a_transaction_that_stays_open_for_30_s_delays_only_its_own_messages<S: Server>() {
    delays_only_its_own::<S>(Mode::Leased, secs(30)).await;
}

/// In the default profile, and in the one for latency. At every moment some transaction is open: a sequencer that waits for a
/// moment without one delivers nothing before the end.
async fn g11_eight_producers_with_overlapping_transactions_are_delivered_while_they_overlap<S: Server>(
    mode: Mode,
) {
    for profile in [OutboxProfile::default(), OutboxProfile::low_latency()] {
        let db = fresh::<S>().await;
        let memory = Memory::new();
        let outbox = Outbox::builder(db.pool.clone()).profile(profile).grace(secs(5));
        let handle =
            outbox.queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
        let producers: Vec<_> = (0..8)
            .map(|_| {
                let (outbox, pool) = (handle.outbox(), db.pool.clone());
                tokio::spawn(async move {
                    for _ in 0..40 {
                        let mut tx = begin(&pool).await;
                        outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
                        tokio::time::sleep(millis(50)).await;
                        tx.commit().await.unwrap();
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await.unwrap();
        }
        let meanwhile = memory.all().len();
        assert!(meanwhile >= 8 * 40 / 10, "{meanwhile} of {} were delivered meanwhile", 8 * 40);
        memory.has(8 * 40).await;
        handle.stop().await;
        assert_consistent(&db.pool).await;
        mode.assert_effects(&db.pool).await;
        db.remove().await;
    }
}

async fn a_hundred_thousand_messages_in_one_transaction_arrive_in_order<S: Server>(mode: Mode) {
    const MESSAGES: usize = 100_000;
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handle = builder(&db)
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(2))
        .handled(mode, memory.handler())
        .start()
        .await
        .unwrap();
    let mut tx = begin(&db.pool).await;
    for chunk in 0..10 {
        let messages: Vec<_> = (0..MESSAGES / 10)
            .map(|n| EnqueueMessage::new("x").partition(u32::try_from((chunk + n) % 2).unwrap()))
            .collect();
        handle.outbox().enqueue_batch(&mut tx, "q", &messages).await.unwrap();
    }
    tx.commit().await.unwrap();
    memory.has(MESSAGES).await;
    handle.stop().await;
    for partition in 0..2 {
        let of: Vec<_> =
            memory.all().into_iter().filter(|seen| seen.message.partition == partition).collect();
        assert!(of.iter().map(|seen| seen.message.seq).eq(1..=50_000));
        assert!(of.is_sorted_by_key(|seen| seen.message.id));
    }
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// More than one tick takes: many transactions, one of them larger than a part itself.
async fn a_backlog_of_many_parts_is_sequenced_whole<S: Server>() {
    backlog_of_many_parts::<S>(false).await;
}

async fn a_backlog_of_many_parts_is_sequenced_whole_while_a_transaction_is_open<S: Server>() {
    backlog_of_many_parts::<S>(true).await;
}

async fn backlog_of_many_parts<S: Server>(with_open_transaction: bool) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    for rows in [30_000, 15_000, 70_000, 1, 49_999, 20_000] {
        insert_by_hand(&db.pool, rows, "").await;
    }
    let total = 185_000;
    let mut open = None;
    if with_open_transaction {
        let mut tx = begin(&db.pool).await;
        S::Db::insert_by_hand(&mut tx, 5, "").await.unwrap();
        open = Some(tx);
    }
    insert_by_hand(&db.pool, 1, "").await;
    let handle = builder(&db).start().await.unwrap();
    let sequenced = format!("SELECT coalesce(sum(size), 0) FROM {} AS s", S::Db::SEGMENTS);
    let wait = async |expected: i64| {
        grows_to(expected, "are sequenced", async || count(&db.pool, &sequenced).await).await;
    };
    wait(total + 1).await;
    if let Some(open) = open {
        open.commit().await.unwrap();
        wait(total + 6).await;
    }
    let ticks = count(&db.pool, "SELECT max(id) FROM posthaste_tick").await;
    assert!(ticks >= 4, "in parts: {ticks} ticks");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Three parts: in one go, or one by one at the sequencer's pace.
async fn max_inner_iterations_and_the_sequencers_pace_decide_how_a_backlog_is_sequenced<S: Server>() {
    // A part, also where the batch size decides.
    const PART: u32 = 49_000;
    // A pause that is not to be is one that nobody could take for a slow machine.
    for (in_one_go, pauses, pace) in [(8, 0_u32, secs(30)), (1, 2, secs(3))] {
        let db = fresh::<S>().await;
        register(&db, Partitions::of(1)).await;
        for _ in 0..3 {
            insert_by_hand(&db.pool, PART, "").await;
        }
        let tuning =
            posthaste::WorkerTuning::sequencer().batch_size(PART).min_interval(pace).active_interval(pace);
        let outbox =
            Outbox::builder(db.pool.clone()).sequencer_tuning(tuning).max_inner_iterations(in_one_go);
        let handle = outbox.start().await.unwrap();
        let sequenced = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
        grows_to(147_000, "are sequenced", async || count(&db.pool, sequenced).await).await;
        let span = S::Db::micros("sequenced_at");
        let span = format!("SELECT max({span}) - min({span}) FROM posthaste_outgoing");
        let span = Duration::from_micros(count(&db.pool, &span).await.unsigned_abs());
        assert_eq!(
            span.as_secs() >= pace.as_secs() * u64::from(pauses.max(1)),
            pauses > 0,
            "{in_one_go}: {span:?}"
        );
        handle.stop().await;
        db.remove().await;
    }
}
