//! G5: transactions that overlap, sequencers that race, and an order that is checked exactly.

use std::collections::BTreeMap;

use posthaste::{EnqueueMessage, Partitions, WorkerTuning};
use sqlx::{MySql, MySqlPool};
use tokio::time::Instant;

use super::{Dice, Family, on_both};
use crate::{
    dialect::Dialect,
    stage::{Memory, SOON, assert_consistent, begin, builder, fresh, millis, settled, within},
};

on_both! {
    []:
        eight_producers_with_overlapping_transactions_are_sequenced_in_their_order (flavor = "multi_thread");
}

const PARTITIONS: u32 = 4;

/// A transaction that committed, as its producer saw it.
struct Committed {
    began: Instant,
    ended: Instant,
    /// In the order in which they were enqueued.
    ids: Vec<i64>,
}

/// Enqueues in transactions of a random length, of which every fourth is rolled back.
async fn produce(outbox: posthaste::Outbox<MySql>, pool: MySqlPool, mut dice: Dice) -> Vec<Committed> {
    let mut committed = Vec::new();
    for n in 0..30 {
        tokio::time::sleep(millis(dice.below(6))).await;
        let began = Instant::now();
        let mut tx = begin(&pool).await;
        // A snapshot that is older than its messages must change nothing.
        MySql::number(&mut tx, "SELECT count(*) FROM ledger").await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..=dice.below(3) {
            let messages: Vec<_> = (0..=dice.below(4))
                .map(|_| EnqueueMessage::new("x").partition(u32::try_from(dice.below(4)).unwrap()))
                .collect();
            ids.extend(outbox.enqueue_batch(&mut tx, "q", &messages).await.unwrap().iter().map(|id| id.0));
            tokio::time::sleep(millis(dice.below(8))).await;
        }
        if n % 4 == 3 {
            tx.rollback().await.unwrap();
            continue;
        }
        tx.commit().await.unwrap();
        committed.push(Committed { began, ended: Instant::now(), ids });
    }
    committed
}

/// Three processes tick at once, and few messages at a time, so that ticks cut transactions in two.
async fn eight_producers_with_overlapping_transactions_are_sequenced_in_their_order<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let mut handles = Vec::new();
    for _ in 0..3 {
        let queue = builder(&db)
            .sequencer_tuning(WorkerTuning::sequencer_low_latency().batch_size(10))
            .queue("q", Partitions::of(PARTITIONS));
        handles.push(queue.leased(memory.handler()).start().await.unwrap());
    }
    // Enqueued by way of all of them, so that all of their bells ring.
    let producers: Vec<_> = (0..8)
        .map(|who| tokio::spawn(produce(handles[who % 3].outbox(), db.pool.clone(), Dice::new())))
        .collect();
    let mut committed = Vec::new();
    for producer in producers {
        committed.extend(producer.await.unwrap());
    }
    let total: usize = committed.iter().map(|tx| tx.ids.len()).sum();
    memory.has(total).await;
    let all = i64::try_from(total).unwrap();
    within(SOON, "all is settled", async || settled(&db.pool).await == all).await;
    for handle in handles {
        handle.stop().await;
    }
    assert_order(&memory, &committed);
    assert_consistent(&db.pool).await;
    db.remove().await;
}

fn assert_order(memory: &Memory, committed: &[Committed]) {
    let transaction_of: BTreeMap<i64, (usize, usize)> = committed
        .iter()
        .enumerate()
        .flat_map(|(tx, of)| of.ids.iter().enumerate().map(move |(place, id)| (*id, (tx, place))))
        .collect();
    let mut partitions: BTreeMap<u32, BTreeMap<i64, i64>> = BTreeMap::new();
    for seen in memory.all() {
        let before =
            partitions.entry(seen.message.partition).or_default().insert(seen.message.seq, seen.message.id.0);
        assert_eq!(before, None, "a seq was delivered twice");
    }
    assert_eq!(
        partitions.values().map(BTreeMap::len).sum::<usize>(),
        transaction_of.len(),
        "all, and nothing else"
    );
    for (partition, messages) in partitions {
        let last = i64::try_from(messages.len()).unwrap();
        assert!(messages.keys().copied().eq(1..=last), "partition {partition}: seqs have gaps");
        let mut last_place: BTreeMap<usize, usize> = BTreeMap::new();
        // Of all that come later, the commit that returned first.
        let mut first_end: Option<(Instant, i64)> = None;
        for (seq, id) in messages.iter().rev() {
            let (tx, place) = transaction_of[id];
            let Committed { began, ended, .. } = &committed[tx];
            if let Some((end, later)) = first_end {
                assert!(
                    end >= *began,
                    "partition {partition}: {later} was committed before {seq} began, and comes later"
                );
            }
            if first_end.is_none_or(|(end, _)| *ended < end) {
                first_end = Some((*ended, *seq));
            }
            if let Some(next) = last_place.insert(tx, place) {
                assert!(place < next, "partition {partition}, {seq}: the order inside of a transaction");
            }
        }
    }
}
