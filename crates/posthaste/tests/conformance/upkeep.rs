//! The reconciler, the statistics, and the permits of maintenance.

use std::sync::{Arc, Mutex};

use posthaste::{EnqueueMessage, OutboxError, Partitions, WorkerTuning};
use tracing_subscriber::Layer;

use crate::{
    cases::cases,
    dialect::Dialect,
    fresh::{Fresh, Server},
    listening::listen,
    stage::{
        Memory, assert_consistent, begin, builder, count, eventually, fresh, millis, register, run, secs,
        settled,
    },
};

cases! {
    []:
        g1_committed_messages_that_no_tick_will_find_are_found_and_delivered,
        g1_messages_that_no_tick_will_find_are_found_behind_a_backlog,
        the_reconciler_leaves_open_transactions_alone
            except(sqlite = "one writer at a time is its nature: nobody enqueues beside an open transaction"),
        the_statistics_count_what_each_kind_of_worker_did,
        the_statistics_line_comes_at_its_interval_and_zero_switches_it_off,
        with_one_permit_for_all_maintenance_everything_is_still_delivered_and_removed;
}

/// Restores so many messages to each partition of a queue, by hand, into the running system.
async fn restore_strays<S: Server>(db: &Fresh<S>, queue: &str, each: u32) {
    let mut tx = begin(&db.pool).await;
    S::Db::insert_strays(&mut tx, queue, each, "restored").await.unwrap();
    tx.commit().await.unwrap();
}

async fn g1_committed_messages_that_no_tick_will_find_are_found_and_delivered<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .reconciler_tuning(WorkerTuning::reconciler().idle_interval(millis(100)))
        .queue("q", Partitions::of(2))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    for n in 0..10 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(n % 2)).await.unwrap();
    }
    memory.has(10).await;
    restore_strays(&db, "q", 2).await;
    memory.has(14).await;
    assert_eq!(memory.payloads().iter().filter(|payload| *payload == "restored").count(), 4);
    eventually("all is settled", async || settled(&db.pool).await == 14).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// However many messages wait before them, in a queue that nobody handles.
async fn g1_messages_that_no_tick_will_find_are_found_behind_a_backlog<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    register(&db, Partitions::of(1)).await;
    let handle = builder(&db)
        .reconciler_tuning(WorkerTuning::reconciler().idle_interval(millis(50)))
        .queue("other", Partitions::of(1))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 350]).await.unwrap();
    eventually("they are sequenced", async || handle.stats().sequencer.messages == 350).await;
    let an_hour_ago = S::Db::moment(-3_600_000);
    run(&db.pool, &format!("UPDATE posthaste_incoming SET created_at = {an_hour_ago}")).await;
    restore_strays(&db, "other", 1).await;
    memory.has(1).await;
    assert_eq!(memory.payloads(), ["restored"]);
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A message of a transaction that is open is none that was forgotten, however often it is looked for.
async fn the_reconciler_leaves_open_transactions_alone<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db)
        .reconciler_tuning(WorkerTuning::reconciler().idle_interval(millis(20)))
        .queue("q", Partitions::of(1))
        .leased(memory.handler())
        .start()
        .await
        .unwrap();
    let mut open = begin(&db.pool).await;
    handle.outbox().enqueue(&mut open, "q", EnqueueMessage::new("open")).await.unwrap();
    for _ in 0..50 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    }
    let looks = handle.stats().reconciler.executions;
    eventually("it has looked", async || handle.stats().reconciler.executions > looks + 20).await;
    open.commit().await.unwrap();
    memory.has(51).await;
    handle.stop().await;
    assert_eq!(memory.all().last().unwrap().message.payload, b"open");
    assert_eq!(memory.ids().len(), 51, "each once");
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn the_statistics_count_what_each_kind_of_worker_did<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(2)).leased(memory.handler()).start().await.unwrap();
    assert_eq!(handle.stats().processor.messages, 0);
    handle.outbox().enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 30]).await.unwrap();
    eventually("all are sequenced, settled and removed", async || {
        let stats = handle.stats();
        [stats.sequencer, stats.processor, stats.vacuum].iter().all(|kind| kind.messages == 30)
    })
    .await;
    eventually("the reconciler has looked", async || handle.stats().reconciler.idle > 0).await;
    let stats = handle.stats();
    assert!(stats.processor.executions > 0 && !stats.processor.busy.is_zero());
    assert!(stats.sequencer.longest <= stats.sequencer.busy);
    assert_eq!((stats.sequencer.failures, stats.processor.failures, stats.vacuum.failures), (0, 0, 0));
    // An error that is not the connection's: the table is gone.
    run(&db.pool, "ALTER TABLE posthaste_tick RENAME TO elsewhere").await;
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    eventually("a failure is counted", async || handle.stats().sequencer.failures > 0).await;
    run(&db.pool, "ALTER TABLE elsewhere RENAME TO posthaste_tick").await;
    memory.has(31).await;
    handle.stop().await;
    db.remove().await;
}

/// Keeps the fields of the statistics' lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        if text.0.contains("outbox statistics") {
            self.0.lock().unwrap().push(text.0);
        }
    }
}

async fn the_statistics_line_comes_at_its_interval_and_zero_switches_it_off<S: Server>() {
    let lines = Lines::default();
    let _listening = listen(lines.clone());
    let db = Fresh::<S>::empty().await;
    let memory = Memory::new();
    let silent = builder(&db).stats_interval(secs(0)).queue("q", Partitions::of(1)).leased(memory.handler());
    let silent = silent.start().await.unwrap();
    let talking = builder(&db).stats_interval(millis(200)).queue("other", Partitions::of(1));
    let talking = talking.leased(memory.handler()).start().await.unwrap();
    talking.outbox().enqueue_batch(&db.pool, "other", &vec![EnqueueMessage::new("x"); 7]).await.unwrap();
    memory.has(7).await;
    eventually("a line says so", async || {
        lines.0.lock().unwrap().iter().any(|line| line.contains("settled=7"))
    })
    .await;
    talking.stop().await;
    lines.0.lock().unwrap().clear();
    silent.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(8).await;
    tokio::time::sleep(millis(500)).await;
    assert!(lines.0.lock().unwrap().is_empty());
    silent.stop().await;
    db.remove().await;
}

async fn with_one_permit_for_all_maintenance_everything_is_still_delivered_and_removed<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let error = builder(&db).maintenance(2, 0).start().await.unwrap_err();
    assert!(matches!(&error, OutboxError::Configuration(text) if text.contains("shared")), "{error}");
    let outbox = builder(&db).maintenance(0, 1).queue("q", Partitions::of(2)).leased(memory.handler());
    let handle = outbox.start().await.unwrap();
    for n in 0..20 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x").partition(n % 2)).await.unwrap();
    }
    memory.has(20).await;
    eventually("all is removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    handle.stop().await;
    db.remove().await;
}
