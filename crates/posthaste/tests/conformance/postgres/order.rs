//! G5, G6, G8: the order of assignment, checked exactly.

use std::collections::HashMap;

use posthaste::{EnqueueMessage, Partitions};
use tokio::time::Instant;

use super::stage::{Memory, assert_consistent, builder, fresh, millis, secs};

/// One transaction of a producer.
struct Transaction {
    began: Instant,
    committed: Instant,
    /// Partition and id of its messages, in the order in which they were enqueued.
    messages: Vec<(u32, i64)>,
}

#[tokio::test]
async fn g5_sixteen_producers_mixing_long_and_short_transactions_across_four_partitions() {
    let db = fresh().await;
    let memory = Memory::new();
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let pool = sqlx::postgres::PgPoolOptions::new()
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
                    let mut tx = pool.begin().await.unwrap();
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
    memory.has_within(total, secs(20)).await;
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
    db.remove().await;
}
