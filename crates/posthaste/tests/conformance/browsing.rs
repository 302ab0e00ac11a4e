//! What operators see of a queue from outside, and what they can have removed.

use posthaste::{EnqueueMessage, MAX_BROWSE_LIMIT, Outbox, OutboxError, OutboxMessage, Partitions, Tables};

use crate::{
    cases::cases,
    fresh::{Fresh, Server},
    stage::{Memory, assert_consistent, builder, count, eventually, fresh, unmigrated},
};

cases! {
    []:
        what_is_not_sequenced_yet_is_shown_as_it_was_enqueued,
        a_partition_is_browsed_in_the_order_of_delivery,
        a_partition_is_browsed_page_by_page_from_any_place,
        what_vacuum_removed_is_missing,
        vacuum_can_be_asked_for_without_workers,
        a_queue_or_partition_that_is_not_there_cannot_be_browsed,
        a_queue_can_be_registered_before_there_are_workers,
        the_tables_can_be_removed;
}

/// A queue that somebody registered; nobody works on it.
async fn registered<S: Server>(db: &Fresh<S>, partitions: Partitions) -> Outbox<S::Db> {
    builder(db).queue("q", partitions).leased(Memory::new().handler()).start().await.unwrap().stop().await;
    Outbox::connect(db.pool.clone()).await.unwrap()
}

fn payloads(messages: &[OutboxMessage]) -> Vec<(i64, String)> {
    messages
        .iter()
        .map(|message| (message.seq, String::from_utf8(message.payload.clone()).unwrap()))
        .collect()
}

async fn what_is_not_sequenced_yet_is_shown_as_it_was_enqueued<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = registered(&db, Partitions::of(2)).await;
    assert!(outbox.unsequenced("q", None, None, 10).await.unwrap().is_empty());
    let message = EnqueueMessage::new([0, 255]).key("käse").payload_type("t").header("a", "b");
    let id = outbox.enqueue(&db.pool, "q", message).await.unwrap();
    let mut open = db.pool.begin().await.unwrap();
    if S::NAME != "sqlite" {
        // What is not committed is not shown, although later messages are.
        outbox.enqueue(&mut open, "q", EnqueueMessage::new("open")).await.unwrap();
    }
    let later: Vec<_> = (0..3).map(|n| EnqueueMessage::new(n.to_string()).partition(n % 2)).collect();
    outbox.enqueue_batch(&db.pool, "q", &later).await.unwrap();
    let found = outbox.unsequenced("q", None, None, 3).await.unwrap();
    assert_eq!((found.len(), found[0].id, &*found[0].payload), (3, id, &[0, 255][..]));
    assert_eq!(
        (found[0].key.as_deref(), &*found[0].payload_type, found[0].header("a")),
        (Some("käse"), "t", Some("b"))
    );
    assert_eq!((&*found[1].payload, found[1].partition, found[2].partition), (&b"0"[..], 0, 1));
    let behind = outbox.unsequenced("q", None, Some(found[1].id), 10).await.unwrap();
    assert_eq!((behind.len(), behind[0].id), (2, found[2].id), "page by page");
    let of_second = outbox.unsequenced("q", Some(1), Some(id), 10).await.unwrap();
    assert_eq!(of_second.iter().map(|message| message.id).collect::<Vec<_>>(), [found[2].id]);
    assert!(outbox.unsequenced("q", None, Some(behind[1].id), 10).await.unwrap().is_empty());
    assert!(outbox.browse("q", 0, 0, 10).await.unwrap().is_empty(), "nothing has its place yet");
    open.rollback().await.unwrap();
    db.remove().await;
}

async fn a_partition_is_browsed_in_the_order_of_delivery<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    outbox.pause("q").await.unwrap();
    for n in 0..3 {
        let message =
            EnqueueMessage::new(format!("{n}")).partition(1).header("a", "b").payload_type("t").key("k");
        outbox.enqueue(&db.pool, "q", message).await.unwrap();
    }
    let of_key = posthaste_partition(&outbox).await;
    eventually("they are sequenced", async || outbox.browse("q", of_key, 0, 10).await.unwrap().len() == 3)
        .await;
    let shown = outbox.browse("q", of_key, 0, 10).await.unwrap();
    assert_eq!(payloads(&shown), [(1, "0".to_owned()), (2, "1".to_owned()), (3, "2".to_owned())]);
    assert_eq!(shown[0].headers, [("a".to_owned(), "b".to_owned())]);
    assert!(outbox.browse("q", 1 - of_key, 0, 10).await.unwrap().is_empty());
    assert!(outbox.unsequenced("q", None, None, 10).await.unwrap().is_empty());
    assert!(memory.given().is_empty(), "a look takes nothing");
    outbox.resume("q").await.unwrap();
    memory.has(3).await;
    let mut delivered = memory.all().into_iter().map(|seen| seen.message).collect::<Vec<_>>();
    delivered.sort_by_key(|message| message.seq);
    assert_eq!(delivered, shown, "they are delivered as they were shown");
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Which partition the messages went to.
async fn posthaste_partition<DB: posthaste::Backend>(outbox: &Outbox<DB>) -> u32 {
    let mut found = None;
    eventually("one has them", async || {
        found = outbox.lag().await.unwrap().into_iter().find(|lag| lag.head_seq > 0).map(|lag| lag.partition);
        found.is_some()
    })
    .await;
    found.unwrap()
}

async fn a_partition_is_browsed_page_by_page_from_any_place<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    outbox.pause("q").await.unwrap();
    // Segments of several sizes, some of them full.
    for batch in [1, 700, 3, 256, 255, 257, 40] {
        let messages: Vec<_> = (0..batch).map(|n| EnqueueMessage::new(n.to_string())).collect();
        outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    eventually("all have their place", async || outbox.lag().await.unwrap()[0].head_seq == 1512).await;
    for (from, page) in [(0, 100), (1, 256), (255, 257), (256, 1000), (700, 7), (1500, 1000), (-5, 3)] {
        let mut after = from;
        let mut last = from.max(0);
        loop {
            let messages = outbox.browse("q", 0, after, page).await.unwrap();
            assert!(messages.len() <= usize::try_from(page).unwrap());
            for message in &messages {
                last += 1;
                assert_eq!(message.seq, last, "from {from}, {page} at a time");
            }
            let Some(end) = messages.last() else { break };
            after = end.seq;
            if from == 0 && after > 400 {
                break;
            }
        }
        assert!(from == 0 || last == 1512, "from {from}, {page} at a time: {last}");
    }
    let most = outbox.browse("q", 0, 0, u32::MAX).await.unwrap().len();
    assert_eq!(most, usize::try_from(MAX_BROWSE_LIMIT).unwrap());
    assert!(outbox.browse("q", 0, i64::MAX - 2000, 10).await.unwrap().is_empty());
    assert!(outbox.browse("q", 0, 0, 0).await.unwrap().is_empty());
    handle.stop().await;
    db.remove().await;
}

async fn what_vacuum_removed_is_missing<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    for _ in 0..3 {
        outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("old"); 300]).await.unwrap();
    }
    memory.has(900).await;
    eventually("they are settled", async || outbox.lag().await.unwrap()[0].cursor_seq == 900).await;
    outbox.pause("q").await.unwrap();
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("new")).await.unwrap();
    eventually("it has its place", async || outbox.lag().await.unwrap()[0].head_seq == 901).await;
    outbox.vacuum().await.unwrap();
    // The worker's own may have been faster, or be at it.
    eventually("what is settled is gone", async || {
        payloads(&outbox.browse("q", 0, 0, 10).await.unwrap()) == [(901, "new".to_owned())]
    })
    .await;
    handle.stop().await;
    db.remove().await;
}

async fn vacuum_can_be_asked_for_without_workers<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let never = posthaste::WorkerTuning::vacuum().batch_size(u32::MAX);
    let handle = builder(&db)
        .vacuum_tuning(never)
        .queue("q", Partitions::of(2))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 600]).await.unwrap();
    memory.has(600).await;
    handle.stop().await;
    let left = u64::try_from(count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await).unwrap();
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    assert_eq!(outbox.vacuum().await.unwrap(), left);
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await, 0);
    assert_eq!(outbox.vacuum().await.unwrap(), 0);
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn a_queue_or_partition_that_is_not_there_cannot_be_browsed<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = registered(&db, Partitions::of(2)).await;
    let unknown = outbox.browse("p", 0, 0, 1).await.unwrap_err();
    assert!(matches!(unknown, OutboxError::QueueNotRegistered(name) if name == "p"));
    let unknown = outbox.unsequenced("Q", None, None, 1).await.unwrap_err();
    assert!(matches!(unknown, OutboxError::QueueNotRegistered(name) if name == "Q"));
    let out = outbox.browse("q", 2, 0, 1).await.unwrap_err();
    assert!(matches!(out, OutboxError::PartitionOutOfRange { partition: 2, max: 1, .. }));
    let out = outbox.unsequenced("q", Some(2), None, 1).await.unwrap_err();
    assert!(matches!(out, OutboxError::PartitionOutOfRange { partition: 2, max: 1, .. }));
    assert!(matches!(outbox.browse("a b", 0, 0, 1).await, Err(OutboxError::InvalidQueueName(_))));
    db.remove().await;
}

async fn a_queue_can_be_registered_before_there_are_workers<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    posthaste::migrate(&db.pool).await.unwrap();
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    for _ in 0..2 {
        outbox.register("q", Partitions::of(4)).await.unwrap();
    }
    let other = outbox.register("q", Partitions::of(8)).await.unwrap_err();
    assert!(matches!(other, OutboxError::PartitionCountMismatch { expected: 8, found: 4, .. }), "{other}");
    assert!(matches!(outbox.register("a b", Partitions::of(1)).await, Err(OutboxError::InvalidQueueName(_))));
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("early").partition(3)).await.unwrap();
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    memory.has(1).await;
    assert_eq!(memory.payloads(), ["early"]);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn the_tables_can_be_removed<S: Server>() {
    let db = unmigrated::<S>().await;
    let before = S::count_tables(&db.pool).await;
    let tables = Tables::default().prefix("other_").unwrap();
    posthaste::migrate(&db.pool).await.unwrap();
    let with_ours = S::count_tables(&db.pool).await;
    posthaste::migrate_with(&db.pool, &tables).await.unwrap();
    assert!(S::count_tables(&db.pool).await > with_ours && with_ours > before);
    posthaste::drop_tables(&db.pool, &tables).await.unwrap();
    assert_eq!(S::count_tables(&db.pool).await, with_ours, "those of others stay");
    // Whether or not they are there.
    for _ in 0..2 {
        posthaste::drop_tables(&db.pool, &Tables::default()).await.unwrap();
    }
    // SQLite keeps a table to count with.
    let own = i64::from(S::NAME == "sqlite");
    assert_eq!(S::count_tables(&db.pool).await, before + own);
    posthaste::migrate(&db.pool).await.unwrap();
    db.remove().await;
}
