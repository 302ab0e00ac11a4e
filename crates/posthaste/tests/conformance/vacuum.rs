//! G15 and G16: what is settled goes, soon, and nothing else does.

use posthaste::{EnqueueMessage, HandlerResult, Partitions, WorkerTuning, testing::Timings};

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::Server,
    stage::{
        Memory, Step, assert_consistent, builder, count, eventually, fresh, grows_to, millis, numbers,
        quick_retries, register, secs, settled, timings,
    },
};

cases! {
    []:
        g15_after_the_last_message_is_settled_no_message_rows_are_left,
        g16_nothing_unsettled_is_removed,
        g16_vacuum_in_four_outboxes_whose_sessions_are_killed_removes_what_is_settled_and_nothing_else
            (flavor = "multi_thread", worker_threads = 2) except(sqlite = "there are no sessions to kill"),
        g15_what_a_process_left_behind_is_removed_by_another,
        g16_a_queue_that_no_running_process_has_a_handler_for_is_vacuumed,
        old_ticks_go_although_nobody_handles_the_messages;
}

/// The rows of all messages.
const MESSAGES: &str = "SELECT count(*) FROM posthaste_incoming";

/// How many links, segments and ticks there are beyond the newest of each chain, and rows that only this database has.
async fn old_rows<DB: Dialect>(pool: &sqlx::Pool<DB>) -> i64 {
    const OLD_ROWS: &str = "SELECT (SELECT count(*) FROM posthaste_tick WHERE id < (SELECT max(id) FROM posthaste_tick))
        + (SELECT count(*) FROM posthaste_cursor c WHERE epoch < (SELECT max(epoch) FROM posthaste_cursor n
           WHERE n.partition_id = c.partition_id))
        + (SELECT count(*) FROM posthaste_outgoing o WHERE last_seq < (SELECT max(last_seq) FROM posthaste_outgoing n
           WHERE n.partition_id = o.partition_id))";
    count(pool, OLD_ROWS).await + count(pool, DB::OTHER_ROWS).await
}

async fn g15_after_the_last_message_is_settled_no_message_rows_are_left<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    // Many segments in one partition, few in another, a single message in a third, none in the last.
    for round in 0..30 {
        let messages: Vec<_> = (0..100)
            .map(|n| EnqueueMessage::new("x").partition(u32::from(n == 0 && round % 7 == 0)))
            .collect();
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(2)).await.unwrap();
    grows_to(3001, "are settled", async || settled(&db.pool).await).await;
    eventually("no message is left", async || count(&db.pool, MESSAGES).await == 0).await;
    eventually("nor anything else", async || old_rows(&db.pool).await == 0).await;
    eventually("it is counted", async || handle.stats().vacuum.messages == 3001).await;
    // Seqs go on where they were.
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("last").partition(2)).await.unwrap();
    memory.has(3002).await;
    assert_eq!(memory.all()[3001].message.seq, 2);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A handler that never gets past one message: what is before it goes, it and everything behind it stays.
async fn g16_nothing_unsettled_is_removed<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let script = |_: usize, message: &posthaste::OutboxMessage| match message.seq {
        700 => Step::Return(HandlerResult::Retry { reason: "not yet".to_owned() }),
        _ => Step::Ack,
    };
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .vacuum_tuning(
            WorkerTuning::vacuum().batch_size(100).min_interval(millis(50)).active_interval(millis(50)),
        )
        .queue("q", Partitions::of(1))
        .leased(memory.scripted(script))
        .start()
        .await
        .unwrap();
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(
            handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap(),
        );
    }
    grows_to(699, "are settled before it is stuck", async || settled(&db.pool).await).await;
    let unsettled = format!(
        "SELECT count(*) FROM posthaste_incoming WHERE id >= (
             SELECT min(p.id) FROM {} AS p JOIN {} AS s ON p.seq BETWEEN s.first_seq AND s.last_seq
             WHERE s.last_seq = (SELECT min(last_seq) FROM posthaste_outgoing WHERE last_seq >= 700))",
        S::Db::PLACES,
        S::Db::SEGMENTS
    );
    // Whole segments go; the one that message 700 is in stays with all its messages.
    eventually("the settled segments are removed", async || count(&db.pool, MESSAGES).await < 600).await;
    assert!(count(&db.pool, &unsettled).await >= 301);
    let left = numbers(&db.pool, "SELECT id FROM posthaste_incoming ORDER BY id").await;
    let expected: Vec<i64> = ids[699..].iter().map(|id| id.0).collect();
    assert!(left.ends_with(&expected), "nothing at or behind the cursor is gone");
    assert_eq!(settled(&db.pool).await, 699);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// At any point, those that vacuum among them.
async fn g16_vacuum_in_four_outboxes_whose_sessions_are_killed_removes_what_is_settled_and_nothing_else<
    S: Server,
>() {
    const ROUNDS: i64 = 20;
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let often = WorkerTuning::vacuum().batch_size(50).min_interval(millis(5)).active_interval(millis(5));
    let mut handles = Vec::new();
    for _ in 0..4 {
        let outbox = builder(&db).vacuum_tuning(often).queue("q", Partitions::of(2)).leased(memory.handler());
        handles.push(outbox.start().await.unwrap());
    }
    for round in 1..=ROUNDS {
        let messages: Vec<_> = (0..100).map(|n| EnqueueMessage::new("x").partition(n % 2)).collect();
        let handle = &handles[usize::try_from(round % 4).unwrap()];
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        // Each time a little later.
        tokio::time::sleep(millis(round.unsigned_abs() * 3)).await;
        assert!(S::Db::kill_workers(&db.pool).await.unwrap() > 0, "there are workers to kill");
        eventually("the round is settled", async || settled(&db.pool).await == round * 100).await;
    }
    let mut distinct: Vec<_> =
        memory.all().iter().map(|seen| (seen.message.partition, seen.message.seq)).collect();
    distinct.sort_unstable();
    distinct.dedup();
    let expected: Vec<_> =
        (0..2).flat_map(|partition| (1..=ROUNDS * 50).map(move |seq| (partition, seq))).collect();
    assert_eq!(distinct, expected, "nothing was removed before it was delivered");
    eventually("all is removed", async || count(&db.pool, MESSAGES).await + old_rows(&db.pool).await == 0)
        .await;
    for handle in handles {
        handle.stop().await;
    }
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A process that dies leaves its waste to the others.
async fn g15_what_a_process_left_behind_is_removed_by_another<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let first = builder(&db).queue("q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
    let second = builder(&db).queue("q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
    first.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 50]).await.unwrap();
    eventually("all is settled", async || settled(&db.pool).await == 50).await;
    first.stop().await;
    eventually("all is removed", async || count(&db.pool, MESSAGES).await + old_rows(&db.pool).await == 0)
        .await;
    second.stop().await;
    db.remove().await;
}

async fn g16_a_queue_that_no_running_process_has_a_handler_for_is_vacuumed<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let never = secs(3600);
    let never = WorkerTuning::vacuum().min_interval(never).active_interval(never).idle_interval(never);
    let first = builder(&db)
        .timings(Timings { beat: secs(3600), ..timings() })
        .vacuum_tuning(never)
        .queue("q", Partitions::of(2))
        .leased(memory.handler());
    let first = first.start().await.unwrap();
    // The vacuum makes its only pass at the start, before there is anything to remove.
    eventually("the vacuum has passed", async || first.stats().vacuum.executions > 0).await;
    for n in 0..50 {
        first.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(n % 2)).await.unwrap();
    }
    grows_to(50, "are settled", async || settled(&db.pool).await).await;
    first.stop().await;
    assert!(count(&db.pool, MESSAGES).await > 0);

    let other = builder(&db).queue("other", Partitions::of(1)).leased(memory.handler());
    let other = other.start().await.unwrap();
    eventually("all is removed", async || count(&db.pool, MESSAGES).await + old_rows(&db.pool).await == 0)
        .await;
    other.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Nobody handles the queue, but the sequencer goes on: its chain must not grow without end.
async fn old_ticks_go_although_nobody_handles_the_messages<S: Server>() {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let handle =
        builder(&db).queue("other", Partitions::of(1)).leased(Memory::new().handler()).start().await.unwrap();
    for _ in 0..20 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        tokio::time::sleep(millis(20)).await;
    }
    eventually("one tick is left", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_tick").await == 1
    })
    .await;
    assert_eq!(count(&db.pool, MESSAGES).await, 20, "and every message");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}
