//! Back-off, poison isolation, leases: G7, G10, G12.

use std::time::Duration;

use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, LeasedMessageHandler, MessageResult, OutboxMessage,
    Partitions, TransactionalMessageHandler, testing::Timings,
};
use tokio::time::Instant;

use crate::{
    cases::{cases, spread},
    dialect::{Dialect, Tested},
    fresh::Server,
    modes::{HandledQueue, InMode, Mode},
    stage::{
        Memory, SOON, Step, assert_consistent, builder, count, eventually, fresh, grows_to, idle_for_ever,
        leave_lease, millis, numbers, quick_retries, register, remember_links, secs, settled, take_over,
        texts, timings,
    },
};

cases! {
    [leased, transactional, batch]:
        g12_a_retry_comes_after_its_back_off_and_new_messages_do_not_cut_it_short,
        g12_a_retry_comes_by_itself_where_nothing_else_happens,
        g19_the_back_off_is_the_same_whichever_process_tries,
        g19_a_message_is_not_delayed_by_the_attempts_of_another,
        g10_a_handler_that_hangs_is_dropped_with_its_lease_and_the_partition_goes_on,
        who_inherits_a_crash_gets_the_suspect_alone,
        no_message_is_buried_for_the_death_of_a_session except(sqlite = "there are no sessions to kill");
    [leased, transactional]:
        a_lease_further_ahead_than_it_is_long_counts_as_expired,
        g10_a_handler_that_blocks_its_thread_past_its_lease_is_settled_when_it_returns
            (flavor = "multi_thread", worker_threads = 4),
        a_batch_that_arrives_too_late_is_no_try
            except(sqlite = "whoever keeps the worker from writing keeps the producer from it too");
    []:
        a_poison_message_soon_comes_alone_and_the_batches_grow_again,
        g7_a_settle_by_a_worker_whose_lease_was_taken_over_changes_nothing;
}

spread! {
    sqlite => {
        [leased, transactional]: a_per_message_handler_is_not_started_on_a_message_when_the_time_is_up;
    }
}

fn retry() -> Step {
    Step::Return(HandlerResult::Retry { reason: "later".to_owned() })
}

async fn g12_a_retry_comes_after_its_back_off_and_new_messages_do_not_cut_it_short<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|call, _| if call <= 3 { retry() } else { Step::Ack });
    let tuning = quick_retries().retry_base(millis(200)).retry_max(millis(500));
    let handle = idle_for_ever(builder(&db))
        .timings(Timings::without_timers().without_watchers())
        .processor_tuning(tuning)
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("first")).await.unwrap();
    memory.has(1).await;
    let noise = tokio::spawn({
        let pool = db.pool.clone();
        async move {
            for _ in 0..50 {
                outbox.enqueue(&pool, "q", EnqueueMessage::new("noise")).await.unwrap();
                tokio::time::sleep(millis(10)).await;
            }
        }
    });
    memory.has(4).await;
    let firsts: Vec<Instant> = memory
        .all()
        .iter()
        .filter(|seen| seen.message.payload == b"first")
        .map(|seen| seen.at)
        .take(4)
        .collect();
    let gaps: Vec<_> = firsts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, least) in gaps.iter().zip([50, 200, 400].map(millis)) {
        assert!(*gap >= least, "{gaps:?}");
    }
    noise.await.unwrap();
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Beside noise, something else might have brought it. No timer is left that could.
async fn g12_a_retry_comes_by_itself_where_nothing_else_happens<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|call, _| if call <= 3 { retry() } else { Step::Ack });
    let tuning = quick_retries().retry_base(millis(200)).retry_max(millis(200));
    let handle = idle_for_ever(builder(&db))
        .timings(Timings::without_timers().without_watchers())
        .processor_tuning(tuning.idle_interval(secs(3600)))
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(4).await;
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Four outboxes on one partition. Each is woken again and again, and none tries before the time that the last attempt left
/// with the cursor. No clock of theirs is involved, so a busy machine only makes the gaps longer.
async fn g19_the_back_off_is_the_same_whichever_process_tries<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let tuning = quick_retries().retry_base(millis(200)).retry_max(secs(3600));
    let mut handles = Vec::new();
    for _ in 0..4 {
        let handler = memory.scripted(|_, message| match &*message.payload {
            b"bad" => retry(),
            _ => Step::Ack,
        });
        let outbox = builder(&db).processor_tuning(tuning).queue("q", Partitions::of(1));
        handles.push(outbox.handled(mode, handler).max_attempts(4).start().await.unwrap());
    }
    let outbox = handles[0].outbox();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("bad")).await.unwrap();
    eventually("it is given up", async || {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new("good")).await.unwrap();
        settled(&db.pool).await > 0
    })
    .await;
    let attempts: Vec<_> =
        memory.all().into_iter().filter(|seen| seen.message.payload == b"bad").map(|seen| seen.at).collect();
    let gaps: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(gaps.len(), 3, "four attempts, by all processes together: {gaps:?}");
    for (gap, least) in gaps.iter().zip([50, 200, 400].map(millis)) {
        // SQLite's clock counts milliseconds.
        assert!(*gap + millis(2) >= least, "{gaps:?}");
    }
    for handle in handles {
        handle.stop().await;
    }
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Each message fails once. The second attempt of any of them would be followed by an hour.
async fn g19_a_message_is_not_delayed_by_the_attempts_of_another<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, message| if message.attempts == 0 { retry() } else { Step::Ack });
    // A call of several messages would fail for each of them.
    let size = if mode == Mode::Batch { 1 } else { 10 };
    let tuning = quick_retries().retry_base(secs(3600)).retry_max(secs(3600)).batch_size(size);
    let handle = builder(&db)
        .processor_tuning(tuning)
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 10]).await.unwrap();
    grows_to(10, "are settled", async || settled(&db.pool).await).await;
    assert_eq!(memory.all().len(), 20);
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn a_poison_message_soon_comes_alone_and_the_batches_grow_again<S: Server>() {
    use posthaste::{Batch, LeasedHandler};
    use std::sync::{Arc, Mutex};
    struct Sizes(Arc<Mutex<Vec<usize>>>);
    impl LeasedHandler for Sizes {
        async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
            let tries = {
                let mut sizes = self.0.lock().unwrap();
                sizes.push(batch.len());
                sizes.len()
            };
            while let Some(message) = batch.next_msg() {
                if message.payload == b"poison" && tries < 6 {
                    return HandlerResult::Retry { reason: "poison".to_owned() };
                }
                batch.ack();
            }
            HandlerResult::Success
        }
    }
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    let messages: Vec<_> =
        (0..40).map(|n| EnqueueMessage::new(if n == 3 { "poison" } else { "x" })).collect();
    outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let handle = builder(&db)
        .processor_tuning(quick_retries().batch_size(10).degradation_threshold(2))
        .queue("q", Partitions::of(1))
        .leased(Sizes(Arc::clone(&sizes)))
        .start()
        .await
        .unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 40).await;
    handle.stop().await;
    // Twice the whole batch, then the poison alone until it goes; then 2, 4, 8, 10 …
    assert_eq!(*sizes.lock().unwrap(), [10, 10, 1, 1, 1, 1, 2, 4, 8, 10, 10, 2]);
    db.remove().await;
}

/// Timers that could find the partition later are set to an hour: the end of the handler's time triggers the next attempt.
async fn g10_a_handler_that_hangs_is_dropped_with_its_lease_and_the_partition_goes_on<S: Server>(mode: Mode) {
    let lease = millis(700);
    let (db, memory) = (fresh::<S>().await, Memory::new());
    remember_links(&db).await;
    let handler = memory.scripted(|call, _| if call == 1 { Step::Hang } else { Step::Ack });
    let handle = idle_for_ever(builder(&db))
        .timings(Timings::without_timers())
        .processor_tuning(quick_retries().idle_interval(secs(3600)))
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .lease(LeaseConfig { duration: lease, headroom: millis(200) })
        .start()
        .await
        .unwrap();
    let asked = Instant::now();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(2).await;
    let seen = memory.all();
    // The handler's time is counted from before the acquire, which is behind the enqueue, however long it takes.
    assert!(seen[1].at - asked >= lease - millis(200), "{:?} of {lease:?}", seen[1].at - asked);
    assert_eq!(seen[1].message.attempts, 1);
    handle.stop().await;
    let errors = texts(&db.pool, "SELECT DISTINCT last_error FROM links WHERE last_error <> ''").await;
    let expected = match mode {
        Mode::Leased => "lease expired".to_owned(),
        Mode::Transactional | Mode::Batch => {
            format!("the handler took longer than its timeout of {lease:?}")
        }
    };
    assert_eq!(errors, [expected], "and it is written down why");
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn a_per_message_handler_is_not_started_on_a_message_when_the_time_is_up<S: Server>(mode: Mode) {
    struct Slow(Memory);
    impl Slow {
        async fn take_a_while(&self, msg: &OutboxMessage) {
            self.0.note(msg);
            tokio::time::sleep(millis(150)).await;
        }
    }
    impl LeasedMessageHandler for Slow {
        async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
            self.take_a_while(msg).await;
            MessageResult::Ok
        }
    }
    impl<DB: Tested> TransactionalMessageHandler<DB> for Slow {
        async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
            self.take_a_while(msg).await;
            DB::write(conn, msg).await.into()
        }
    }
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let slow = std::sync::Arc::new(Slow(memory.clone()));
    let queue = match mode {
        Mode::Leased => HandledQueue::Leased(queue.leased(slow)),
        Mode::Transactional | Mode::Batch => HandledQueue::Transactional(queue.transactional(slow)),
    };
    // Half a second for the handler, and far more for what comes behind it.
    let handle =
        queue.lease(LeaseConfig { duration: millis(5000), headroom: millis(4500) }).start().await.unwrap();
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 10]).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 10).await;
    handle.stop().await;
    let mut seqs: Vec<_> = memory.all().iter().map(|seen| seen.message.seq).collect();
    // The message that ran out of time came again; no other did. In a transaction it is let finish.
    if mode == Mode::Transactional {
        assert_eq!(seqs.len(), 10);
    }
    assert!(seqs.is_sorted());
    seqs.dedup();
    assert!(seqs.into_iter().eq(1..=10));
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g7_a_settle_by_a_worker_whose_lease_was_taken_over_changes_nothing<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let (taken_over, was_taken_over) = tokio::sync::watch::channel(false);
    struct Waits(Memory, tokio::sync::watch::Receiver<bool>);
    impl LeasedMessageHandler for Waits {
        async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
            self.0.note(msg);
            self.1.clone().wait_for(|over| *over).await.unwrap();
            MessageResult::Reject("from the grave".to_owned())
        }
    }
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .leased(Waits(memory.clone(), was_taken_over))
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    take_over(&db.pool).await;
    let newest = count(&db.pool, "SELECT max(epoch) FROM posthaste_cursor").await;
    taken_over.send(true).unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("next")).await.unwrap();
    memory.has(2).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["x", "next"]);
    let dead =
        S::Db::bytes(&mut *db.pool.acquire().await.unwrap(), "SELECT payload FROM posthaste_dead_letter")
            .await;
    let dead = dead.unwrap();
    assert_eq!(dead, [b"next"], "the late rejection of the first was not written");
    assert!(count(&db.pool, "SELECT max(epoch) FROM posthaste_cursor").await > newest);
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn a_lease_further_ahead_than_it_is_long_counts_as_expired<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    // A day ahead, although it lasts only 30 s: the clock was set back.
    leave_lease(&db.pool, 1, 24 * 3_600_000).await;
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has_within(1, SOON).await;
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn who_inherits_a_crash_gets_the_suspect_alone<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 5]).await.unwrap();
    leave_lease(&db.pool, 3, -1000).await;
    remember_links(&db).await;
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    memory.has(5).await;
    handle.stop().await;
    assert_eq!(memory.all()[0].message.attempts, 3);
    let settled = numbers(&db.pool, "SELECT DISTINCT processed_seq FROM links ORDER BY 1").await;
    assert_eq!(settled, [0, 1, 5], "one message, then the others");
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// It cannot be dropped, so it is awaited; and nobody took its lease over.
async fn g10_a_handler_that_blocks_its_thread_past_its_lease_is_settled_when_it_returns<S: Server>(
    mode: Mode,
) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, message| {
        if message.partition == 0 {
            // Shorter by so much than the time after which a server ends a session that does nothing.
            std::thread::sleep(millis(2200));
        }
        Step::Ack
    });
    let handle = builder(&db)
        .timings(Timings { session_silence: secs(30), ..timings() })
        .queue("q", Partitions::of(4))
        .handled(mode, handler)
        .lease(LeaseConfig { duration: secs(2), headroom: millis(200) })
        .start()
        .await
        .unwrap();
    let messages: Vec<_> = (0..4).map(|partition| EnqueueMessage::new("x").partition(partition)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 4).await;
    handle.stop().await;
    assert_eq!(memory.all().len(), 4, "each once");
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// The database is so slow that the lease is over when the batch arrives: the handler was not called, so it is no try.
async fn a_batch_that_arrives_too_late_is_no_try<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .handled(mode, memory.handler())
        .lease(LeaseConfig { duration: millis(700), headroom: millis(200) })
        .max_attempts(1)
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("0")).await.unwrap();
    eventually("it is settled", async || settled(&db.pool).await == 1).await;
    let mut slow = db.pool.acquire().await.unwrap();
    S::Db::keep_from_writing(&mut slow, "posthaste_cursor").await.unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("1")).await.unwrap();
    eventually("the acquire waits", async || S::Db::waiting_for_locks(&db.pool).await.unwrap() > 0).await;
    tokio::time::sleep(millis(1000)).await;
    S::Db::let_write(&mut slow).await.unwrap();
    drop(slow);
    eventually("it is settled", async || settled(&db.pool).await == 2).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["0", "1"]);
    assert_eq!(memory.all()[1].message.attempts, 0);
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_dead_letter").await, 0);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// The reply to an acquire is lost: the next one finds its own link, for which no handler was called. A message whose
/// handler was not called is not buried for it.
async fn no_message_is_buried_for_the_death_of_a_session<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .handled(mode, memory.handler())
        .max_attempts(1)
        .start()
        .await
        .unwrap();
    for n in 1..=30_i64 {
        // At a moment somewhere around its acquire.
        let outbox = handle.outbox();
        let pool = db.pool.clone();
        let enqueue =
            tokio::spawn(async move { outbox.enqueue(&pool, "q", EnqueueMessage::new("x")).await.unwrap() });
        tokio::time::sleep(Duration::from_micros(u64::try_from(n).unwrap() * 300)).await;
        S::Db::kill_workers(&db.pool).await.unwrap();
        enqueue.await.unwrap();
        eventually("it is settled", async || settled(&db.pool).await == n).await;
    }
    handle.stop().await;
    let given: std::collections::HashSet<_> = memory.given().into_iter().collect();
    let dead = numbers(&db.pool, "SELECT id FROM posthaste_dead_letter").await;
    assert!(dead.iter().all(|id| given.contains(id)), "buried without having been handled: {dead:?}");
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}
