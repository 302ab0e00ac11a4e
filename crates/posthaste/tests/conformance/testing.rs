//! What the helpers for the tests of others promise.

use std::{
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use posthaste::{
    Backend, EnqueueMessage, HandlerResult, Outbox, OutboxMessage, OutboxMessageId, Partitions, Target,
    TransactionalMessageHandler,
    testing::{self, Collector},
};
use sqlx::Connection;
use tokio::{sync::watch, time::Instant};

use crate::{
    cases::{cases, spread},
    fresh::{Fresh, Server},
    modes::{InMode, Mode},
    stage::{Memory, Step, begin, builder, eventually, fresh, millis, quick_retries, secs},
};

cases! {
    []:
        what_is_enqueued_is_seen_whole_in_order_page_by_page_and_without_other_queues,
        what_a_transaction_enqueued_is_seen_in_it_and_by_others_once_it_committed,
        a_queue_is_not_drained_before_a_slow_handler_is_done,
        a_queue_is_not_drained_before_what_handlers_enqueued_is,
        a_queue_is_drained_when_what_is_left_became_a_dead_letter,
        a_queue_that_is_not_drained_in_time_says_what_is_left_and_why,
        a_queue_is_drained_after_its_workers_stopped,
        an_outbox_without_workers_keeps_what_is_enqueued_until_it_delivers;
}

spread! {
    postgres => {
        []: an_assertion_that_fails_names_its_line_the_queue_and_what_is_there, an_empty_queue_is_drained_at_once;
    }
    sqlite => {
        []: assertions_return_what_they_found;
        [leased, transactional, batch]: a_collector_collects_in_order_in_every_mode;
    }
    mariadb => {
        []:
            an_unknown_queue_is_named_as_the_library_does,
            a_queue_that_nobody_handles_says_so,
            a_collector_says_what_came_instead;
    }
}

const QUEUES: [(&str, Partitions); 2] = [("q", Partitions::of(4)), ("other", Partitions::of(2))];

/// An outbox with the two queues, and no workers.
async fn outbox<S: Server>(db: &Fresh<S>) -> Outbox<S::Db> {
    testing::outbox_on(db.pool.clone(), &QUEUES).await.outbox
}

/// What a test that fails is told.
async fn panic_of<T: Send + 'static>(failing: impl Future<Output = T> + Send + 'static) -> String {
    let Err(failed) = tokio::spawn(failing).await else { panic!("it did not fail") };
    *failed.into_panic().downcast::<String>().unwrap()
}

async fn what_is_enqueued_is_seen_whole_in_order_page_by_page_and_without_other_queues<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    testing::assert_nothing_enqueued(&outbox, "q").await;
    let before = SystemTime::now();
    let mut ids = Vec::new();
    for round in 0..5_u32 {
        let many: Vec<_> = (0..50).map(|n| EnqueueMessage::new(vec![0xff, 0]).partition(n % 4)).collect();
        ids.extend(outbox.enqueue_batch(&db.pool, "q", &many).await.unwrap());
        let other = EnqueueMessage::new("other").partition(round % 2);
        outbox.enqueue(&db.pool, "other", other).await.unwrap();
    }
    let whole = EnqueueMessage::new("ä").key("Zürich").payload_type("t").header("a", "ß").header("a", "2");
    let last = outbox.enqueue(&db.pool, "q", whole).await.unwrap();

    let seen = testing::enqueued(&outbox, "q").await;
    assert_eq!(seen.iter().map(|message| message.id).collect::<Vec<_>>(), [ids, vec![last]].concat());
    assert_eq!(seen[..4].iter().map(|message| message.partition).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!((&*seen[0].payload, &*seen[0].payload_type), (&[0xff, 0][..], "application/octet-stream"));
    assert_eq!((seen[0].key.as_deref(), &*seen[0].headers), (None, &[][..]));
    let message = &seen[250];
    assert_eq!((&*message.queue, message.key.as_deref()), ("q", Some("Zürich")));
    assert_eq!(message.partition, Partitions::of(4).for_key("Zürich"));
    assert_eq!((message.payload.as_slice(), &*message.payload_type), ("ä".as_bytes(), "t"));
    assert_eq!(message.headers, [("a".into(), "ß".into()), ("a".into(), "2".into())]);
    assert_eq!((message.header("a"), message.header("b")), (Some("ß"), None));
    let minute = secs(60);
    assert!(message.created_at > before - minute && message.created_at < SystemTime::now() + minute);
    assert!(!format!("{message:?}").contains('ä'), "no payload where nobody asked for it");
    testing::assert_enqueued_count(&outbox, "other", 5).await;
    db.remove().await;
}

async fn what_a_transaction_enqueued_is_seen_in_it_and_by_others_once_it_committed<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    let message = || EnqueueMessage::new("x").payload_type("order.placed");
    let mut tx = begin(&db.pool).await;
    outbox.enqueue(&mut tx, "q", message()).await.unwrap();
    testing::assert_enqueued_in(&outbox, &mut tx, "q", |m| m.payload_type == "order.placed").await;
    testing::assert_enqueued_count_in(&outbox, &mut tx, "q", 1).await;
    testing::assert_nothing_enqueued_in(&outbox, &mut tx, "other").await;
    testing::assert_not_enqueued_in(&outbox, &mut tx, "q", |m| m.payload_type == "other").await;
    testing::assert_nothing_enqueued(&outbox, "q").await;
    testing::wait_until_drained(&outbox, "q").await;
    tx.rollback().await.unwrap();
    testing::assert_nothing_enqueued(&outbox, "q").await;

    let mut tx = begin(&db.pool).await;
    outbox.enqueue(&mut tx, "q", message()).await.unwrap();
    tx.commit().await.unwrap();
    // On whatever there is to look from.
    let mut pooled = db.pool.acquire().await.unwrap();
    testing::assert_enqueued_count_in(&outbox, &mut pooled, "q", 1).await;
    let mut tx = pooled.begin().await.unwrap();
    testing::assert_enqueued_count_in(&outbox, &mut tx, "q", 1).await;
    tx.rollback().await.unwrap();
    testing::assert_enqueued_count_in(&outbox, &db.pool, "q", 1).await;
    drop(pooled);
    db.remove().await;
}

async fn assertions_return_what_they_found<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    // More than one page before it.
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 150]).await.unwrap();
    let wanted = EnqueueMessage::json(&("a chair", 7)).unwrap().payload_type("order.placed");
    let ids = outbox.enqueue_batch(&db.pool, "q", &[wanted.clone(), wanted]).await.unwrap();
    let found = testing::assert_enqueued(&outbox, "q", |m| m.payload_type == "order.placed").await;
    assert_eq!(found.id, ids[0], "the first of those that match");
    assert_eq!(found.json::<(String, u32)>().unwrap(), ("a chair".to_owned(), 7));
    assert!(found.json::<u32>().is_err());
    let all = testing::assert_enqueued_count(&outbox, "q", 152).await;
    assert_eq!(all.last().unwrap().id, ids[1]);
    testing::assert_not_enqueued(&outbox, "q", |m| m.payload_type == "order.cancelled").await;
    testing::assert_nothing_enqueued(&outbox, "other").await;
    db.remove().await;
}

async fn an_assertion_that_fails_names_its_line_the_queue_and_what_is_there<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    let message = EnqueueMessage::new(r#"{"chairs":2}"#).partition(3).payload_type("order.placed");
    let OutboxMessageId(id) = outbox.enqueue(&db.pool, "q", message).await.unwrap();
    let there = format!("\n  message {id}: order.placed, partition 3: {{\"chairs\":2}}");

    let asked = outbox.clone();
    let line = line!() + 2;
    let text = panic_of(async move {
        testing::assert_enqueued(&asked, "q", |m| m.payload_type == "order.cancelled").await
    })
    .await;
    assert!(text.starts_with(&format!("{}:{line}:", file!())), "{text}");
    assert!(text.ends_with(&format!("queue \"q\" has no such message; it has 1 message{there}")), "{text}");

    let asked = outbox.clone();
    let text = panic_of(async move { testing::assert_enqueued(&asked, "other", |_| true).await }).await;
    assert!(text.ends_with("queue \"other\" has no such message; it has no messages"), "{text}");
    let asked = outbox.clone();
    let text = panic_of(async move { testing::assert_enqueued_count(&asked, "q", 3).await }).await;
    assert!(text.ends_with(&format!("queue \"q\" has 1 message, not 3{there}")), "{text}");
    let asked = outbox.clone();
    let text = panic_of(async move { testing::assert_nothing_enqueued(&asked, "q").await }).await;
    assert!(text.ends_with(&format!("queue \"q\" has 1 message, not none{there}")), "{text}");
    let (asked, pool) = (outbox.clone(), db.pool.clone());
    let text = panic_of(async move {
        let mut tx = begin(&pool).await;
        testing::assert_not_enqueued_in(&asked, &mut tx, "q", |m| m.partition == 3).await;
    })
    .await;
    assert!(text.ends_with(&format!("queue \"q\" has a message that it should not have{there}")), "{text}");
    db.remove().await;
}

async fn an_unknown_queue_is_named_as_the_library_does<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    let asked = outbox.clone();
    let text = panic_of(async move { testing::enqueued(&asked, "Q").await }).await;
    assert!(text.contains("queue \"Q\" is not registered"), "{text}");
    let asked = outbox.clone();
    let text = panic_of(async move { testing::assert_nothing_enqueued(&asked, "no name").await }).await;
    assert!(text.contains("\"no name\" is not a queue name"), "{text}");
    let line = line!() + 1;
    let text = panic_of(async move { testing::wait_until_drained(&outbox, "Q").await }).await;
    assert!(text.starts_with(&format!("{}:{line}:", file!())), "{text}");
    assert!(text.contains("queue \"Q\" is not registered"), "{text}");
    db.remove().await;
}

async fn an_empty_queue_is_drained_at_once<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    // What others have left is theirs.
    outbox.enqueue(&db.pool, "other", EnqueueMessage::new("x")).await.unwrap();
    testing::wait_until_drained(&outbox, "q").await;
    db.remove().await;
}

/// And not before what was committed a moment ago is even sequenced.
async fn a_queue_is_not_drained_before_a_slow_handler_is_done<S: Server>() {
    let (db, memory, done) = (fresh::<S>().await, Memory::new(), watch::Sender::new(false));
    let told = done.subscribe();
    let handler = memory.scripted(move |_, _| Step::AckWhen(told.clone()));
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(handler).start().await.unwrap();
    let outbox = handle.outbox();
    let mut tx = begin(&db.pool).await;
    for n in 0..20 {
        outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x").partition(n % 4)).await.unwrap();
    }
    tx.commit().await.unwrap();
    for limit in [millis(0), millis(300)] {
        let asked = outbox.clone();
        let wait = async move { testing::wait_until_drained_within(&asked, "q", limit).await };
        let text = panic_of(wait).await;
        assert!(text.contains(&format!("queue \"q\" is not drained after {limit:?}")), "{text}");
    }
    let waiting = tokio::spawn({
        let outbox = outbox.clone();
        async move { testing::wait_until_drained_within(&outbox, "q", secs(30)).await }
    });
    done.send_replace(true);
    waiting.await.unwrap();
    assert_eq!(memory.ids().len(), 20);
    for n in 0..20 {
        outbox.enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(n % 4)).await.unwrap();
        testing::wait_until_drained_within(&outbox, "q", secs(30)).await;
        assert_eq!(memory.ids().len(), 21 + usize::try_from(n).unwrap(), "it was there, and is settled");
    }
    handle.stop().await;
    db.remove().await;
}

/// Each message announces one that is smaller.
struct Countdown<DB: Backend> {
    outbox: OnceLock<Outbox<DB>>,
    handled: Collector,
}

impl<DB: Backend> TransactionalMessageHandler<DB> for Countdown<DB> {
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        let smaller = &msg.payload[1..];
        if !smaller.is_empty() {
            let outbox = self.outbox.get().unwrap();
            let enqueued = outbox.enqueue(Target::Connection(conn), "q", EnqueueMessage::new(smaller));
            if let Err(error) = enqueued.await {
                return HandlerResult::Retry { reason: error.to_string() };
            }
        }
        TransactionalMessageHandler::<DB>::handle(&self.handled, conn, msg).await
    }
}

async fn a_queue_is_not_drained_before_what_handlers_enqueued_is<S: Server>() {
    let (db, handled) = (fresh::<S>().await, Collector::new());
    let countdown = Arc::new(Countdown { outbox: OnceLock::new(), handled: handled.clone() });
    let queue = builder(&db).queue("q", Partitions::of(4)).transactional(Arc::clone(&countdown));
    let handle = queue.start().await.unwrap();
    assert!(countdown.outbox.set(handle.outbox()).is_ok());
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("xxxxx")).await.unwrap();
    testing::wait_until_drained_within(&handle.outbox(), "q", secs(30)).await;
    let lengths: Vec<_> = handled.messages().iter().map(|message| message.payload.len()).collect();
    assert_eq!(lengths, [5, 4, 3, 2, 1]);
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_is_drained_when_what_is_left_became_a_dead_letter<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, _| Step::Reject("no".into()));
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(handler).start().await.unwrap();
    let outbox = handle.outbox();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 3]).await.unwrap();
    testing::wait_until_drained_within(&outbox, "q", secs(30)).await;
    assert_eq!(memory.ids().len(), 3);
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_that_is_not_drained_in_time_says_what_is_left_and_why<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, message| match message.partition {
        1 => Step::Return(HandlerResult::Retry { reason: "no route to the broker".to_owned() }),
        _ => Step::Ack,
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(4)).leased(handler);
    let handle = queue.start().await.unwrap();
    let outbox = handle.outbox();
    let message = |n| EnqueueMessage::new("a chair").partition(n).payload_type("order.placed");
    let messages = [0, 1, 1, 1, 2].map(message);
    let ids = outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("it was tried more than once", async || {
        memory.given().iter().filter(|id| **id == ids[1].0).count() > 2
    })
    .await;
    eventually("the others are done", async || {
        memory.ids().contains(&ids[0].0) && memory.ids().contains(&ids[4].0)
    })
    .await;
    let asked = outbox.clone();
    let text = panic_of(async move { testing::wait_until_drained_within(&asked, "q", secs(2)).await }).await;
    let (first, rest) = text.split_once("\n  partition 1: 3 left; the first is ").unwrap();
    assert!(first.ends_with("queue \"q\" is not drained after 2s"), "{text}");
    assert!(rest.contains(" times; the last error: no route to the broker"), "{text}");
    let message = format!("\n    message {}: order.placed, partition 1: a chair", ids[1]);
    assert!(rest.ends_with(&message), "and nothing of the others: {text}");
    handle.stop().await;
    db.remove().await;
}

async fn a_queue_that_nobody_handles_says_so<S: Server>() {
    let db = fresh::<S>().await;
    let outbox = outbox(&db).await;
    let message = EnqueueMessage::new("x").partition(2);
    outbox.enqueue_batch(&db.pool, "q", &vec![message; 2]).await.unwrap();
    let asked = outbox.clone();
    let limit = millis(100);
    let text = panic_of(async move { testing::wait_until_drained_within(&asked, "q", limit).await }).await;
    assert!(text.contains("does an outbox run that has a handler for it, or is it paused?"), "{text}");
    assert!(text.contains("\n  partition 2: 2 left, 2 of them not sequenced yet; the first is "), "{text}");
    // Another outbox sequences them, and has no handler for them either.
    let others = builder(&db).queue("other", Partitions::of(2)).leased(Collector::new());
    let others = others.start().await.unwrap();
    eventually("they are sequenced", async || others.stats().sequencer.messages == 2).await;
    let text = panic_of(async move { testing::wait_until_drained_within(&outbox, "q", limit).await }).await;
    assert!(text.contains("\n  partition 2: 2 left; the first is "), "{text}");
    assert!(text.contains(" old, not tried\n    message "), "{text}");
    others.stop().await;
    db.remove().await;
}

async fn a_queue_is_drained_after_its_workers_stopped<S: Server>() {
    let db = fresh::<S>().await;
    let test = testing::outbox_on(db.pool.clone(), &QUEUES).await.delivering().await;
    test.outbox.enqueue(&test.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    testing::wait_until_drained_within(&test.outbox, "q", secs(30)).await;
    test.handle.stop().await;
    testing::wait_until_drained(&test.outbox, "q").await;
    db.remove().await;
}

async fn an_outbox_without_workers_keeps_what_is_enqueued_until_it_delivers<S: Server>() {
    let db = fresh::<S>().await;
    let test = testing::outbox_on(db.pool.clone(), &QUEUES).await;
    test.outbox.enqueue(&test.pool, "q", EnqueueMessage::new("before")).await.unwrap();
    testing::assert_enqueued(&test.outbox, "q", |m| m.payload == b"before").await;
    let (asked, producer) = (test.outbox.clone(), test.outbox.clone());
    let test = test.delivering().await;
    test.outbox.enqueue(&test.pool, "other", EnqueueMessage::new("after")).await.unwrap();
    // The outbox from before is one without workers of its own, and good all the same.
    producer.enqueue(&test.pool, "q", EnqueueMessage::new("late")).await.unwrap();
    let mut came = test.delivered.wait_for_within(3, secs(30)).await;
    came.sort_by_key(|message| message.id.0);
    let payloads: Vec<_> = came.iter().map(|m| String::from_utf8_lossy(&m.payload)).collect();
    assert_eq!(payloads, ["before", "after", "late"]);
    for queue in ["q", "other"] {
        testing::wait_until_drained_within(&asked, queue, secs(30)).await;
    }
    test.handle.stop().await;
    db.remove().await;
}

async fn a_collector_collects_in_order_in_every_mode<S: Server>(mode: Mode) {
    let (db, collector) = (fresh::<S>().await, Collector::new());
    let handle = builder(&db).queue("q", Partitions::of(2)).handled(mode, collector.clone());
    let handle = handle.start().await.unwrap();
    let outbox = handle.outbox();
    assert!(collector.is_empty());
    let messages: Vec<_> =
        (0..30_u32).map(|n| EnqueueMessage::json(&n).unwrap().partition(n % 2).header("n", "v")).collect();
    outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    let came = collector.wait_for_within(30, secs(30)).await;
    assert_eq!((came.len(), collector.len()), (30, 30));
    for partition in 0..2 {
        let seqs: Vec<_> = came.iter().filter(|m| m.partition == partition).map(|m| m.seq).collect();
        assert_eq!(seqs, (1..=15).collect::<Vec<_>>(), "in order, each once");
    }
    assert_eq!(came[0].headers, [("n".to_owned(), "v".to_owned())]);
    let mut numbers = collector.json::<u32>();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..30).collect::<Vec<_>>());
    testing::wait_until_drained_within(&outbox, "q", secs(30)).await;
    assert_eq!(collector.take().len(), 30);
    assert!(collector.messages().is_empty());
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("one more")).await.unwrap();
    assert_eq!(collector.wait_for_within(1, secs(30)).await[0].payload, b"one more");
    handle.stop().await;
    db.remove().await;
}

async fn a_collector_says_what_came_instead<S: Server>() {
    let db = fresh::<S>().await;
    let test = testing::outbox_on(db.pool.clone(), &QUEUES).await.delivering().await;
    let message = EnqueueMessage::new("a chair").partition(1).key("customer-7").payload_type("order.placed");
    let id = test.outbox.enqueue(&test.pool, "q", message).await.unwrap();
    test.delivered.wait_for_within(1, secs(30)).await;
    let (collector, began) = (test.delivered.clone(), Instant::now());
    let line = line!() + 1;
    let text = panic_of(async move { collector.wait_for_within(3, millis(50)).await }).await;
    assert!(began.elapsed() >= millis(50));
    assert!(text.starts_with(&format!("{}:{line}:", file!())), "{text}");
    let partition = Partitions::of(4).for_key("customer-7");
    let came = format!("message {id}: order.placed, partition {partition}, key \"customer-7\": a chair");
    assert!(text.ends_with(&format!("after 50ms there were 1 message of 3 messages\n  {came}")), "{text}");
    let collector = test.delivered.clone();
    let text = panic_of(async move { collector.json::<u32>() }).await;
    assert!(text.starts_with("a payload cannot be read as u32: "), "{text}");
    assert!(text.ends_with(&format!("\n  {came}")), "{text}");
    test.handle.stop().await;
    db.remove().await;
}
