//! What goes in: every way in, every limit, and what is refused before anything is written.

use posthaste::{EnqueueMessage, Outbox, OutboxError, Partitions, Target};
use sqlx::Connection;

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::{Fresh, Server},
    stage::{Memory, begin, builder, count, eventually, fresh, numbers, register},
};

cases! {
    []:
        a_transaction_a_connection_and_a_pool_are_ways_in,
        transaction_can_be_used_in_a_spawned_task,
        the_ids_of_a_batch_are_in_its_order,
        a_key_goes_where_the_database_says_too
            except(sqlite = "it has no MD5", mysql = "since 9.6 it has no MD5 unless a component is installed"),
        bad_input_is_refused_before_anything_is_written_and_the_transaction_stays_usable,
        everything_at_its_limit_is_taken_and_delivered_as_it_was,
        a_queue_that_another_process_registers_later_is_found,
        registering_with_another_count_or_twice_is_refused,
        a_pool_of_one_is_enough_for_a_producer_inside_its_transaction,
        calls_that_are_dropped_half_way_leave_the_pool_as_it_was;
}

const INCOMING: &str = "SELECT count(*) FROM posthaste_incoming";

/// A database with queue `q` of four partitions, and an outbox that only enqueues.
async fn producer<S: Server>() -> (Fresh<S>, Outbox<S::Db>) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(4)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    (db, outbox)
}

async fn a_transaction_a_connection_and_a_pool_are_ways_in<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    let message = || EnqueueMessage::new("x");
    let mut tx = begin(&db.pool).await;
    outbox.enqueue(&mut tx, "q", message()).await.unwrap();
    outbox.enqueue(Target::Connection(&mut *tx), "q", message()).await.unwrap();
    assert_eq!(count(&db.pool, INCOMING).await, 0);
    tx.commit().await.unwrap();
    let mut pooled = db.pool.acquire().await.unwrap();
    outbox.enqueue(&mut pooled, "q", message()).await.unwrap();
    let mut own =
        <S::Db as sqlx::Database>::Connection::connect_with(&db.pool.connect_options()).await.unwrap();
    outbox.enqueue(Target::Connection(&mut own), "q", message()).await.unwrap();
    outbox.enqueue(&db.pool, "q", message()).await.unwrap();
    assert_eq!(count(&db.pool, INCOMING).await, 5);

    outbox
        .transaction(async |tx| {
            outbox.enqueue(&mut *tx, "q", EnqueueMessage::new("x")).await?;
            outbox.enqueue_batch(tx, "q", &[]).await.map(|ids| assert!(ids.is_empty()))
        })
        .await
        .unwrap();
    assert_eq!(count(&db.pool, INCOMING).await, 6);
    let failed = outbox
        .transaction(async |tx| {
            outbox.enqueue(tx, "q", EnqueueMessage::new("x")).await?;
            Err::<(), _>(OutboxError::Configuration("changed our minds".to_owned()))
        })
        .await;
    assert!(failed.is_err());
    assert_eq!(count(&db.pool, INCOMING).await, 6, "an error rolls back");
    drop((pooled, own));
    db.remove().await;
}

async fn transaction_can_be_used_in_a_spawned_task<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    let spawned = outbox.clone();
    let id = tokio::spawn(async move {
        spawned.transaction(async |tx| spawned.enqueue(tx, "q", EnqueueMessage::new("x")).await).await
    });
    assert!(id.await.unwrap().unwrap().0 > 0);
    db.remove().await;
}

async fn the_ids_of_a_batch_are_in_its_order<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    let messages: Vec<_> =
        (0..5000_u32).map(|n| EnqueueMessage::new(n.to_string()).partition(n % 4)).collect();
    let ids = outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    assert!(ids.is_sorted() && ids.len() == 5000);
    let stored = numbers(&db.pool, "SELECT id FROM posthaste_incoming ORDER BY id").await;
    let mut conn = db.pool.acquire().await.unwrap();
    let payloads =
        S::Db::bytes(&mut conn, "SELECT payload FROM posthaste_incoming ORDER BY id").await.unwrap();
    assert_eq!((stored.len(), payloads.len()), (5000, 5000));
    for ((id, message), (stored, payload)) in ids.iter().zip(&messages).zip(stored.iter().zip(&payloads)) {
        assert_eq!((id.0, &message.payload), (*stored, payload));
    }
    drop(conn);
    db.remove().await;
}

async fn a_key_goes_where_the_database_says_too<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    let keys: Vec<String> = (0..200).map(|n| format!("customer-{n} ü")).collect();
    // With a key the field is ignored, even if it is out of range.
    let messages: Vec<_> = keys.iter().map(|key| EnqueueMessage::new("").key(key).partition(99)).collect();
    outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    let wrong = format!(
        "SELECT count(*) FROM posthaste_incoming i JOIN posthaste_partition p ON p.id = i.partition_id
         WHERE p.number <> {} % 4",
        S::Db::KEY_AS_NUMBER
    );
    assert_eq!(count(&db.pool, &wrong).await, 0);
    let used = "SELECT count(DISTINCT partition_id) FROM posthaste_incoming";
    assert_eq!(count(&db.pool, used).await, 4);
    db.remove().await;
}

#[test]
fn json_is_serialised_and_named() {
    let message = EnqueueMessage::json(&serde_json::json!({ "total": 42 })).unwrap();
    assert_eq!(
        (message.payload.as_slice(), message.payload_type),
        (&b"{\"total\":42}"[..], "application/json")
    );
    let unserialisable = std::collections::HashMap::from([((1, 2), 3)]);
    assert!(matches!(EnqueueMessage::json(&unserialisable), Err(OutboxError::Json(_))));
}

/// Everything that is refused, in a transaction that must stay usable.
async fn bad_input_is_refused_before_anything_is_written_and_the_transaction_stays_usable<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    let new = || EnqueueMessage::new("x");
    let long = "x".repeat(300);
    let mut tx = begin(&db.pool).await;

    type Check = fn(&OutboxError) -> bool;
    let cases: Vec<(EnqueueMessage<'_>, Check, &str)> = vec![
        (
            new().partition(4),
            |e| matches!(e, OutboxError::PartitionOutOfRange { partition: 4, max: 3, .. }),
            "partition 4",
        ),
        (
            new().partition(u32::MAX),
            |e| matches!(e, OutboxError::PartitionOutOfRange { .. }),
            "the last one is 3",
        ),
        (
            EnqueueMessage::new(vec![0; 1024 * 1024 + 1]),
            |e| matches!(e, OutboxError::PayloadTooLarge { size: 1_048_577, max: 1_048_576 }),
            "1048577 bytes",
        ),
        (
            new().payload_type(""),
            |e| matches!(e, OutboxError::InvalidPayloadType(_)),
            "\"\" is not a payload type",
        ),
        (new().payload_type("a\nb"), |e| matches!(e, OutboxError::InvalidPayloadType(_)), "a\\nb"),
        (new().payload_type("ä"), |e| matches!(e, OutboxError::InvalidPayloadType(_)), "255 printable"),
        (new().payload_type(&long), |e| matches!(e, OutboxError::InvalidPayloadType(_)), "(300 bytes)"),
        (new().key(""), |e| matches!(e, OutboxError::InvalidKey { bytes: 0 }), "a key of 0 bytes"),
        (new().key("a\0b"), |e| matches!(e, OutboxError::InvalidKey { bytes: 3 }), "without NUL"),
        (new().key(long.as_str()), |e| matches!(e, OutboxError::InvalidKey { bytes: 300 }), "300 bytes"),
        (
            EnqueueMessage { headers: vec![("a".into(), "b".into()); 65], ..new() },
            |e| matches!(e, OutboxError::TooManyHeaders { count: 65, bytes: 130 }),
            "65 headers",
        ),
        (
            new().header("big", "x".repeat(16 * 1024)),
            |e| matches!(e, OutboxError::TooManyHeaders { count: 1, bytes: 16_387 }),
            "16387 bytes",
        ),
    ];
    for (bad, is_right, telling) in cases {
        // One bad message rejects the whole batch, wherever it is.
        let error = outbox.enqueue_batch(&mut tx, "q", &[new(), bad.clone(), new()]).await.unwrap_err();
        assert!(is_right(&error), "{error:?}");
        assert!(error.to_string().contains(telling), "{error} should say {telling:?}");
        assert!(!error.is_retryable());
        assert!(outbox.enqueue(&mut tx, "q", bad).await.is_err());
    }
    for name in ["", "a b", "ä", "a\0", "a/b", "q\"; DROP TABLE x; --", "'", &long] {
        let error = outbox.enqueue(&mut tx, name, new()).await.unwrap_err();
        assert!(matches!(error, OutboxError::InvalidQueueName(_)), "{name:?}: {error}");
    }
    for name in ["nobody", "Q", "q.", "q-", "posthaste_queue"] {
        let error = outbox.enqueue(&mut tx, name, new()).await.unwrap_err();
        assert!(
            matches!(&error, OutboxError::QueueNotRegistered(queue) if queue == name),
            "{name:?}: {error}"
        );
    }
    outbox.enqueue(&mut tx, "q", new()).await.expect("the transaction is usable");
    tx.commit().await.unwrap();
    assert_eq!(count(&db.pool, INCOMING).await, 1);
    db.remove().await;
}

async fn everything_at_its_limit_is_taken_and_delivered_as_it_was<S: Server>() {
    let db = fresh::<S>().await;
    let longest = "q".repeat(128);
    let memory = Memory::new();
    let handle = builder(&db)
        .max_payload(2 * 1024 * 1024)
        .queue(&longest, Partitions::of(1))
        .leased(memory.handler())
        .queue("s", Partitions::of(1))
        .leased(Memory::new().handler())
        .start()
        .await
        .unwrap();
    let hostile = "'; DROP TABLE posthaste_incoming; -- \u{1F98A} \"\\ \n\r\t $1 %s {incoming}";
    let messages = [
        EnqueueMessage::new(""),
        EnqueueMessage::new(vec![0xff; 2 * 1024 * 1024]),
        EnqueueMessage::new((0..=255).collect::<Vec<u8>>()).payload_type(" ~!\"'\\"),
        EnqueueMessage::new(hostile)
            .key(hostile)
            .header(hostile, hostile)
            .header("", "")
            .header("nul", "a\0b"),
        EnqueueMessage { headers: vec![("n".into(), "v".into()); 64], ..EnqueueMessage::new("many") },
        EnqueueMessage::new("wide")
            .header("h", "x".repeat(16 * 1024 - 1))
            .key("k".repeat(255))
            .payload_type("t"),
    ];
    let ids = handle.outbox().enqueue_batch(&db.pool, &longest, &messages).await.unwrap();
    memory.has(messages.len()).await;
    for ((seen, sent), id) in memory.all().iter().zip(&messages).zip(ids) {
        let got = &seen.message;
        assert_eq!((got.id, &*got.queue, got.partition), (id, longest.as_str(), 0));
        assert_eq!(got.payload, sent.payload);
        assert_eq!(got.payload_type, sent.payload_type);
        assert_eq!(got.key.as_deref(), sent.key.as_deref());
        let headers: Vec<_> = sent.headers.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        assert_eq!(got.headers, headers);
        assert!(got.created_at.elapsed().is_ok_and(|age| age.as_secs() < 60));
        assert!(!format!("{got:?}").contains("DROP"), "no payload in a debug output");
    }
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_that_another_process_registers_later_is_found<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    assert!(outbox.enqueue(&db.pool, "late", EnqueueMessage::new("x")).await.is_err());
    let memory = Memory::new();
    let handle =
        builder(&db).queue("late", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    outbox.enqueue(&db.pool, "late", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    handle.stop().await;
    db.remove().await;
}

async fn registering_with_another_count_or_twice_is_refused<S: Server>() {
    let (db, _outbox) = producer::<S>().await;
    let start =
        async |partitions| builder(&db).queue("q", partitions).leased(Memory::new().handler()).start().await;
    let error = start(Partitions::of(8)).await.unwrap_err();
    assert!(matches!(&error, OutboxError::PartitionCountMismatch { expected: 8, found: 4, .. }), "{error}");
    start(Partitions::of(4)).await.unwrap().stop().await;
    let twice = builder(&db)
        .queue("q", Partitions::of(4))
        .leased(Memory::new().handler())
        .queue("q", Partitions::of(4))
        .leased(Memory::new().handler());
    assert!(twice.start().await.unwrap_err().to_string().contains("two handlers"));
    assert!(
        builder(&db)
            .queue("no good", Partitions::of(1))
            .leased(Memory::new().handler())
            .start()
            .await
            .is_err()
    );
    assert!(
        builder(&db)
            .processors(0)
            .start()
            .await
            .unwrap_err()
            .to_string()
            .contains("processors must not be 0")
    );
    db.remove().await;
}

async fn a_pool_of_one_is_enough_for_a_producer_inside_its_transaction<S: Server>() {
    let (db, _outbox) = producer::<S>().await;
    let options = (*db.pool.connect_options()).clone();
    let pool = sqlx::pool::PoolOptions::<S::Db>::new()
        .max_connections(1)
        .acquire_timeout(std::time::Duration::from_secs(20))
        .connect_with(options)
        .await
        .unwrap();
    let outbox = Outbox::connect(pool.clone()).await.unwrap();
    let mut tx = begin(&pool).await;
    outbox
        .enqueue(&mut tx, "q", EnqueueMessage::new("x"))
        .await
        .expect("it asks on the connection it was given");
    tx.commit().await.unwrap();
    pool.close().await;
    db.remove().await;
}

/// At ever later moments: no connection of the pool is left inside a transaction, and what was begun is whole or not there.
async fn calls_that_are_dropped_half_way_leave_the_pool_as_it_was<S: Server>() {
    let (db, outbox) = producer::<S>().await;
    for step in 0..60_u64 {
        let moment = std::time::Duration::from_micros(step * 50);
        let messages = vec![EnqueueMessage::new("x"); 3];
        tokio::time::timeout(moment, outbox.enqueue_batch(&db.pool, "q", &messages)).await.ok();
        let pairs = outbox.transaction(async |tx| {
            outbox.enqueue_batch(&mut *tx, "q", &messages).await?;
            outbox.enqueue_batch(&mut *tx, "q", &messages).await
        });
        tokio::time::timeout(moment, pairs).await.ok().map(Result::unwrap);
    }
    eventually("nothing is left open", async || S::Db::open_transactions(&db.pool).await.unwrap() == 0).await;
    for _ in 0..20 {
        let mut tx = S::Db::begin(&db.pool).await.expect("a connection that is not inside a transaction");
        outbox.enqueue(&mut tx, "q", EnqueueMessage::new("y")).await.unwrap();
        tx.rollback().await.unwrap();
    }
    assert_eq!(count(&db.pool, INCOMING).await % 3, 0, "whole or not there");
    let left =
        S::Db::bytes(&mut *db.pool.acquire().await.unwrap(), "SELECT payload FROM posthaste_incoming").await;
    assert!(left.unwrap().iter().all(|payload| payload == b"x"), "what was rolled back is not there");
    db.remove().await;
}
