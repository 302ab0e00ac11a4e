//! From enqueue to delivery, in each mode.

use posthaste::{EnqueueMessage, Partitions};

use super::stage::{Memory, assert_consistent, builder, count, eventually, fresh, settled};

#[tokio::test]
async fn messages_are_delivered_in_order_and_as_they_are_in_each_mode() {
    for mode in ["leased", "transactional", "batch"] {
        let (db, memory) = (fresh().await, Memory::new());
        let queue = builder(&db.pool).queue("orders", Partitions::of(2));
        let handle = match mode {
            "leased" => queue.leased(memory.clone()).start().await.unwrap(),
            "transactional" => queue.transactional(memory.clone()).start().await.unwrap(),
            _ => queue.batch_transactional(memory.clone()).start().await.unwrap(),
        };
        let outbox = handle.outbox();
        let mut tx = db.pool.begin().await.unwrap();
        let messages: Vec<_> = (0..600)
            .map(|n| {
                EnqueueMessage::new(format!("{n}"))
                    .partition(n % 2)
                    .payload_type("order.created")
                    .header("n", n.to_string())
            })
            .collect();
        let ids = outbox.enqueue_batch(&mut tx, "orders", &messages).await.unwrap();
        tx.commit().await.unwrap();
        outbox.enqueue(&db.pool, "orders", EnqueueMessage::new("").key("Ä\"'\\")).await.unwrap();
        memory.has(601).await;
        eventually("all is settled", async || settled(&db.pool).await == 601).await;
        let seen = memory.all();
        for (n, id) in ids.iter().enumerate() {
            let message = seen.iter().find(|message| message.id == *id).unwrap();
            assert_eq!(message.payload, n.to_string().into_bytes());
            assert_eq!(
                (message.partition, message.seq),
                (u32::try_from(n % 2).unwrap(), i64::try_from(n / 2 + 1).unwrap())
            );
            assert_eq!((&*message.payload_type, message.key.as_deref()), ("order.created", None));
            assert_eq!(message.headers, [("n".to_owned(), n.to_string())]);
        }
        assert_eq!(
            seen.iter().find(|message| message.payload.is_empty()).unwrap().key.as_deref(),
            Some("Ä\"'\\")
        );
        for partition in 0..2 {
            let seqs: Vec<_> = seen.iter().filter(|m| m.partition == partition).map(|m| m.seq).collect();
            assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{mode}: {seqs:?}");
        }
        if mode != "leased" {
            assert_eq!(count(&db.pool, "SELECT count(DISTINCT id) FROM effects").await, 601);
            assert_eq!(count(&db.pool, "SELECT count(*) FROM effects").await, 601);
        }
        eventually("what is settled is removed", async || {
            count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
        })
        .await;
        assert_consistent(&db.pool).await;
        handle.stop().await;
        db.remove().await;
    }
}
