//! G5, G6, G8: the order of assignment, checked exactly.

use std::collections::HashMap;

use posthaste::{EnqueueMessage, Partitions};
use tokio::time::Instant;

use crate::{
    cases::cases,
    dialect::Tested,
    fresh::Server,
    modes::{InMode, Mode},
    stage::{
        Memory, Seen, Step, assert_consistent, begin, builder, eventually, fresh, millis, numbers,
        quick_retries, run, secs, settled,
    },
};

cases! {
    [leased, transactional, batch]:
        g5_sixteen_producers_mixing_long_and_short_transactions_across_four_partitions,
        g6_a_batch_is_a_run_of_consecutive_seqs_and_the_next_one_starts_right_behind_what_is_settled;
    // A batch handler cannot reject one message of several.
    [leased, transactional]:
        g8_the_cursor_never_goes_back_and_never_passes_an_unsettled_message,
        g8_a_message_that_is_gone_stops_its_partition_and_none_behind_it_is_delivered;
}

/// One transaction of a producer.
struct Transaction {
    began: Instant,
    committed: Instant,
    /// Partition and id of its messages, in the order in which they were enqueued.
    messages: Vec<(u32, i64)>,
}

async fn g5_sixteen_producers_mixing_long_and_short_transactions_across_four_partitions<S: Server>(
    mode: Mode,
) {
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handle =
        builder(&db).queue("q", Partitions::of(4)).handled(mode, memory.handler()).start().await.unwrap();
    let pool = sqlx::pool::PoolOptions::new()
        .max_connections(20)
        .connect_with((*db.pool.connect_options()).clone())
        .await
        .unwrap();
    let producers: Vec<_> = (0..16_u64)
        .map(|producer| {
            let (outbox, pool) = (handle.outbox(), pool.clone());
            tokio::spawn(async move {
                let mut done = Vec::new();
                let start = Instant::now();
                let mut n = producer;
                while start.elapsed() < secs(5) {
                    n += 1;
                    let began = Instant::now();
                    let mut tx = begin(&pool).await;
                    let mut messages = Vec::new();
                    for m in 0..1 + n % 4 {
                        let partition = u32::try_from((n + m * producer) % 4).unwrap();
                        let message = EnqueueMessage::new("x").partition(partition);
                        messages.push((partition, outbox.enqueue(&mut tx, "q", message).await.unwrap().0));
                        if producer % 4 == 0 {
                            tokio::time::sleep(millis(20 + n % 7 * 20)).await;
                        }
                    }
                    if n % 5 == 0 {
                        tx.rollback().await.unwrap();
                    } else {
                        tx.commit().await.unwrap();
                        done.push(Transaction { began, committed: Instant::now(), messages });
                    }
                }
                done
            })
        })
        .collect();
    let mut transactions = Vec::new();
    for producer in producers {
        transactions.extend(producer.await.unwrap());
    }
    let total = transactions.iter().map(|transaction| transaction.messages.len()).sum();
    memory.has(total).await;
    handle.stop().await;

    let seen = memory.all();
    assert_eq!(seen.len(), total);
    let seqs: HashMap<i64, i64> = seen.iter().map(|seen| (seen.message.id.0, seen.message.seq)).collect();
    for partition in 0..4 {
        // G6: delivered in the order of seqs, which have no gaps.
        let delivered: Vec<_> = seen
            .iter()
            .filter(|seen| seen.message.partition == partition)
            .map(|seen| seen.message.seq)
            .collect();
        assert!(delivered.iter().copied().eq(1..=i64::try_from(delivered.len()).unwrap()));

        let mut in_partition: Vec<_> = transactions
            .iter()
            .map(|transaction| {
                let seqs: Vec<_> = transaction
                    .messages
                    .iter()
                    .filter(|(p, _)| *p == partition)
                    .map(|(_, id)| seqs[id])
                    .collect();
                (transaction, seqs)
            })
            .filter(|(_, seqs)| !seqs.is_empty())
            .collect();
        // Inside a transaction, the order of enqueueing.
        assert!(in_partition.iter().all(|(_, seqs)| seqs.is_sorted()));
        // If the commit of one returned before another began, all of the one come before all of the other: going
        // through them by their beginnings, the highest seq of those committed before must be lower.
        in_partition.sort_by_key(|(transaction, _)| transaction.began);
        let mut by_commit: Vec<_> =
            in_partition.iter().map(|(t, seqs)| (t.committed, seqs[seqs.len() - 1])).collect();
        by_commit.sort_unstable();
        let (mut next, mut highest) = (0, 0);
        for (transaction, seqs) in &in_partition {
            while next < by_commit.len() && by_commit[next].0 < transaction.began {
                highest = highest.max(by_commit[next].1);
                next += 1;
            }
            assert!(
                seqs[0] > highest,
                "partition {partition}: seq {} was assigned before {highest}",
                seqs[0]
            );
        }
    }
    assert_consistent(&db.pool).await;
    pool.close().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g6_a_batch_is_a_run_of_consecutive_seqs_and_the_next_one_starts_right_behind_what_is_settled<
    S: Server,
>(
    mode: Mode,
) {
    use posthaste::{
        Batch, HandlerResult, LeasedHandler, OutboxMessage, TransactionalHandler, TransactionalMessageHandler,
    };
    use std::sync::Mutex;

    /// Takes and settles more or less of each batch, by its number.
    struct Picky(std::sync::Arc<Mutex<Vec<(i64, i64, i64)>>>);
    impl Picky {
        /// How many are acked. Unless that is all of them, nothing is settled: what was taken last is settled first.
        fn look_at(&self, all: &[OutboxMessage]) -> usize {
            assert!(all.windows(2).all(|pair| pair[1].seq == pair[0].seq + 1), "consecutive");
            assert!(
                all.iter().all(|message| message.partition_id == all[0].partition_id),
                "of one partition"
            );
            let mut calls = self.0.lock().unwrap();
            let acked = calls.len() * 7 % (all.len() + 1);
            let done = if acked == all.len() { all.len() } else { 0 };
            let last = all[0].seq + i64::try_from(done).unwrap() - 1;
            calls.push((i64::from(all[0].partition), all[0].seq, last));
            acked
        }
    }
    fn again() -> HandlerResult {
        HandlerResult::Retry { reason: "more later".to_owned() }
    }
    impl LeasedHandler for Picky {
        async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
            let acked = self.look_at(batch.next_chunk(usize::MAX));
            batch.ack_chunk(acked);
            again()
        }
    }
    impl<DB: Tested> TransactionalHandler<DB> for Picky {
        async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
            let acked = self.look_at(msgs);
            DB::write_effects(conn, msgs, true).await.unwrap();
            if acked == msgs.len() { HandlerResult::Success } else { again() }
        }
    }
    impl<DB: Tested> TransactionalMessageHandler<DB> for Picky {
        async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
            <Self as TransactionalHandler<DB>>::handle(self, conn, std::slice::from_ref(msg)).await
        }
    }
    let db = fresh::<S>().await;
    let calls = std::sync::Arc::new(Mutex::new(Vec::new()));
    let tuning = quick_retries().batch_size(5).retry_max(millis(10));
    let handle = builder(&db)
        .processor_tuning(tuning)
        .queue("q", Partitions::of(2))
        .handled(mode, Picky(std::sync::Arc::clone(&calls)))
        .start()
        .await
        .unwrap();
    let messages: Vec<_> = (0..60).map(|n| EnqueueMessage::new("x").partition(n % 2)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 60).await;
    handle.stop().await;
    for partition in 0..2 {
        let mut settled = 0;
        for (_, first, last) in calls.lock().unwrap().iter().filter(|call| call.0 == partition) {
            assert_eq!(*first, settled + 1, "right behind what is settled");
            settled = settled.max(*last);
        }
        assert_eq!(settled, 30);
    }
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Whatever handlers do: the cursor only goes forward, and every message is handled or buried before it is passed.
async fn g8_the_cursor_never_goes_back_and_never_passes_an_unsettled_message<S: Server>(mode: Mode) {
    use posthaste::HandlerResult;
    use std::{
        collections::HashSet,
        sync::{Arc, Mutex},
    };
    let db = fresh::<S>().await;
    let (memory, fates) = (Memory::new(), Arc::new(Mutex::new((HashSet::new(), HashSet::new()))));
    let told = Arc::clone(&fates);
    let handler = memory.scripted(move |call, message| {
        let (acked, rejected) = &mut *told.lock().unwrap();
        match (call * 31 + usize::try_from(message.seq).unwrap() * 17) % 9 {
            0 => Step::Return(HandlerResult::Retry { reason: "again".to_owned() }),
            1 => Step::Panic("on purpose".to_owned()),
            2 => {
                rejected.insert(message.id.0);
                Step::Reject("no".to_owned())
            }
            _ => {
                acked.insert(message.id.0);
                Step::Ack
            }
        }
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries().batch_size(7).retry_max(millis(10)).retry_base(millis(1)))
        .queue("q", Partitions::of(2))
        .handled(mode, handler)
        .start()
        .await
        .unwrap();
    let messages: Vec<_> = (0..300).map(|n| EnqueueMessage::new("x").partition(n % 2)).collect();
    let ids = handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 300).await;
    handle.stop().await;
    let buried: HashSet<i64> =
        numbers(&db.pool, "SELECT id FROM posthaste_dead_letter").await.into_iter().collect();
    assert_consistent(&db.pool).await;
    let (acked, rejected) = fates.lock().unwrap().clone();
    for id in ids {
        let fate = (acked.contains(&id.0), buried.contains(&id.0));
        assert!(fate == (true, false) || (fate.1 && rejected.contains(&id.0)), "message {id}: {fate:?}");
    }
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Somebody has removed a message by hand. What is behind it must not come as if it had never been.
async fn g8_a_message_that_is_gone_stops_its_partition_and_none_behind_it_is_delivered<S: Server>(
    mode: Mode,
) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queue = builder(&db).queue("q", Partitions::of(2)).handled(mode, memory.handler());
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    outbox.pause("q").await.unwrap();
    let ids = outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 5]).await.unwrap();
    eventually("they are sequenced", async || handle.stats().sequencer.messages == 5).await;
    run(&db.pool, &format!("DELETE FROM posthaste_incoming WHERE id = {}", ids[2])).await;
    outbox.resume("q").await.unwrap();
    let is_behind = |seen: &Seen| seen.message.partition == 0 && seen.message.seq > 2;
    eventually("it is noticed", async || {
        handle.stats().processor.failures > 0 || memory.all().iter().any(is_behind)
    })
    .await;
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("y").partition(1)).await.unwrap();
    eventually("others go on", async || memory.payloads().contains(&"y".to_owned())).await;
    handle.stop().await;
    assert!(!memory.all().iter().any(is_behind), "{:?}", memory.ids());
    assert!(settled(&db.pool).await <= 2 + 1);
    db.remove().await;
}
