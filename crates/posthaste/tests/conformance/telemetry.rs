//! Spans and metrics: what `docs/telemetry.md` says is emitted, and nothing else.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex},
};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use posthaste::{
    EnqueueMessage, HandlerResult, LeasedMessageHandler, MessageResult, Outbox, OutboxMessage, Partitions,
    TransactionalHandler, TransactionalMessageHandler,
};
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    layer::Context,
    registry::{LookupSpan, Scope},
};

use crate::{
    cases::{cases, spread},
    dialect::Tested,
    fresh::Server,
    listening::listen,
    modes::{InMode, Mode},
    stage::{SOON, begin, builder, eventually, fresh, quick_retries, run, within},
};

cases! {
    [leased, transactional]:
        every_metric_of_the_page_is_emitted_and_no_other,
        every_span_of_the_page_is_emitted_and_no_other;
    []:
        the_gauges_show_what_waits,
        a_process_without_workers_counts_what_it_enqueues;
}

spread! {
    sqlite => { [batch]: a_handler_of_batches_runs_in_the_span_of_its_batch; }
    mariadb => { []: an_idle_outbox_has_no_spans_at_info; }
}

const PAGE: &str = include_str!("../../../../docs/telemetry.md");

/// The rows of the table on the page whose columns begin with these.
fn table(columns: &str) -> Vec<Vec<&'static str>> {
    let (_, table) = PAGE.split_once(columns).expect("the table is there");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

fn names(cell: &str) -> BTreeSet<String> {
    cell.split(", ").filter(|name| !name.is_empty()).map(|name| name.trim_matches('`').to_owned()).collect()
}

/// A handler, for every mode, that does what a message's type says, if that is not done at its second try.
#[derive(Clone)]
pub struct AsToldByType;

impl AsToldByType {
    fn told(msg: &OutboxMessage) -> HandlerResult {
        tracing::info!("handled");
        let text = || String::from_utf8_lossy(&msg.payload).into_owned();
        match &*msg.payload_type {
            "retry" if msg.attempts == 0 => HandlerResult::Retry { reason: text() },
            "panic" if msg.attempts == 0 => panic!("{}", text()),
            "reject" => HandlerResult::Reject { reason: text() },
            _ => HandlerResult::Success,
        }
    }
}

impl LeasedMessageHandler for AsToldByType {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        match Self::told(msg) {
            HandlerResult::Success => MessageResult::Ok,
            HandlerResult::Retry { .. } => MessageResult::Retry,
            HandlerResult::Reject { reason } => MessageResult::Reject(reason),
        }
    }
}

impl<DB: Tested> TransactionalMessageHandler<DB> for AsToldByType {
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        <Self as TransactionalHandler<DB>>::handle(self, conn, std::slice::from_ref(msg)).await
    }
}

impl<DB: Tested> TransactionalHandler<DB> for AsToldByType {
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        if let Some(msg) = msgs.iter().find(|msg| msg.payload_type == "statement" && msg.attempts == 0) {
            let wrong = DB::run(conn, "INSERT INTO nowhere VALUES (1)").await;
            return HandlerResult::Retry { reason: format!("{wrong:?} for {:?}", msg.payload) };
        }
        DB::write_effects(conn, msgs, true).await.expect("they are written");
        let results = msgs.iter().map(Self::told);
        results
            .reduce(|one, other| if one == HandlerResult::Success { other } else { one })
            .expect("a message")
    }
}

/// Messages of which some come again, and one is rejected; the ids of a queue `q` of two partitions.
async fn some_of_each<S: Server>(mode: Mode) -> crate::fresh::Fresh<S> {
    let db = fresh::<S>().await;
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(2))
        .handled(mode, AsToldByType)
        .start()
        .await
        .unwrap();
    let message = |kind| EnqueueMessage::new("x").payload_type(kind).partition(1);
    let mut tx = begin(&db.pool).await;
    for kind in ["plain", "retry", "reject"] {
        handle.outbox().enqueue(&mut tx, "q", message(kind)).await.unwrap();
    }
    tx.commit().await.unwrap();
    handle.outbox().enqueue_batch(&db.pool, "q", &[message("plain"), message("panic")]).await.unwrap();
    eventually("all are sequenced, settled and removed", async || {
        let stats = handle.stats();
        [stats.sequencer, stats.processor, stats.vacuum].iter().all(|kind| kind.messages == 5)
    })
    .await;
    // An error that is not the connection's.
    run(&db.pool, "ALTER TABLE posthaste_tick RENAME TO elsewhere").await;
    handle.outbox().enqueue(&db.pool, "q", message("plain")).await.unwrap();
    eventually("a worker fails", async || handle.stats().sequencer.failures > 0).await;
    run(&db.pool, "ALTER TABLE elsewhere RENAME TO posthaste_tick").await;
    eventually("the last is settled too", async || handle.stats().processor.messages == 6).await;
    handle.stop().await;
    db
}

/// What was recorded of each metric, by its name and the values of its labels; what it means is checked against the page.
fn recorded(snapshotter: &Snapshotter) -> BTreeMap<String, DebugValue> {
    let page = table("| metric | type | unit | labels | meaning |");
    let mut recorded = BTreeMap::new();
    for (key, unit, help, value) in snapshotter.snapshot().into_vec() {
        let (kind, key) = key.into_parts();
        let row = page.iter().find(|row| names(row[0]).contains(key.name()));
        let row = row.unwrap_or_else(|| panic!("{} is not on the page", key.name()));
        assert_eq!(row[1], format!("{kind:?}").to_lowercase(), "{key}");
        assert_eq!((row[2], row[4]), (unit.unwrap().as_str(), &*help.unwrap()), "{key}");
        let labels = key.labels().map(|label| label.key().to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(labels, names(row[3]), "{key}");
        let values: Vec<_> = key.labels().map(metrics::Label::value).collect();
        recorded.insert(format!("{} {}", key.name(), values.join(" ")).trim().to_owned(), value);
    }
    recorded
}

async fn every_metric_of_the_page_is_emitted_and_no_other<S: Server>(mode: Mode) {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let db = some_of_each::<S>(mode).await;
    let recorded = recorded(&snapshotter);

    let emitted: BTreeSet<_> = recorded.keys().filter_map(|key| key.split(' ').next()).collect();
    for row in table("| metric | type | unit | labels | meaning |") {
        let name = row[0].trim_matches('`');
        assert!(emitted.contains(name), "{name} is on the page alone");
    }
    let counter = |key: &str| match recorded.get(key) {
        Some(DebugValue::Counter(count)) => *count,
        other => panic!("{key}: {other:?}"),
    };
    let histogram = |key: &str| match recorded.get(key) {
        Some(DebugValue::Histogram(values)) => values.iter().map(|value| value.0).collect::<Vec<_>>(),
        other => panic!("{key}: {other:?}"),
    };
    let sum = |values: Vec<f64>| values.iter().sum::<f64>();
    assert_eq!(counter("posthaste_enqueued_total q"), 6);
    assert_eq!(counter("posthaste_sequenced_total"), 6);
    assert_eq!(counter("posthaste_settled_total q done"), 5);
    assert_eq!(counter("posthaste_settled_total q rejected"), 1);
    assert_eq!(counter("posthaste_retries_total q"), 2);
    assert!(counter("posthaste_vacuumed_total") >= 5);
    assert!(counter("posthaste_worker_failures_total sequencer") >= 1);
    for worker in ["processor", "vacuum", "reconciler"] {
        counter(&format!("posthaste_worker_failures_total {worker}"));
    }
    let ages = histogram("posthaste_time_in_outbox_seconds q");
    assert!(ages.len() == 6 && ages.iter().all(|age| (0.0..60.0).contains(age)), "{ages:?}");
    let batches = histogram("posthaste_batch_messages q");
    assert_eq!(histogram("posthaste_handler_seconds q").len(), batches.len());
    assert!(sum(batches) >= 8.0, "two came again");
    assert!(sum(histogram("posthaste_settle_seconds q")) > 0.0);
    assert!(sum(histogram("posthaste_tick_seconds")) > 0.0);
    assert!((sum(histogram("posthaste_tick_messages")) - 6.0).abs() < 0.1);
    db.remove().await;
}

/// Of a paused queue, from which nothing goes away while it is looked at.
async fn the_gauges_show_what_waits<S: Server>() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let db = fresh::<S>().await;
    let handle =
        builder(&db).queue("q", Partitions::of(2)).handled(Mode::Leased, AsToldByType).start().await.unwrap();
    handle.outbox().pause("q").await.unwrap();
    let messages: Vec<_> = (0..3).map(|n| EnqueueMessage::new("x").partition(n % 2)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    let gauge = |name: &str| {
        let text = page.render();
        let line = text.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    within(SOON, "they are seen", async || {
        gauge("posthaste_depth_messages{queue=\"q\"}").is_some_and(|depth| depth > 2.5)
            && gauge("posthaste_oldest_age_seconds{queue=\"q\"}").is_some_and(|age| age > 0.0 && age < 60.0)
            && gauge("posthaste_paused{queue=\"q\"}").is_some_and(|paused| paused > 0.5)
            && gauge("posthaste_database_reachable").is_some_and(|reachable| reachable > 0.5)
    })
    .await;
    handle.stop().await;
    db.remove().await;
}

async fn a_process_without_workers_counts_what_it_enqueues<S: Server>() {
    let db = fresh::<S>().await;
    crate::stage::register(&db, Partitions::of(1)).await;
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _recording = metrics::set_default_local_recorder(&recorder);
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 3]).await.unwrap();
    outbox.enqueue(&db.pool, "unknown", EnqueueMessage::new("x")).await.unwrap_err();
    let mut tx = begin(&db.pool).await;
    outbox.enqueue(&mut tx, "q", EnqueueMessage::new("x")).await.unwrap();
    tx.rollback().await.unwrap();
    let recorded = recorded(&snapshotter);
    assert_eq!(recorded["posthaste_enqueued_total q"], DebugValue::Counter(4), "what was rolled back too");
    assert!(recorded.keys().all(|key| !key.contains("unknown")), "only registered queues are labels");
    db.remove().await;
}

/// A span as it was seen.
#[derive(Debug, Clone)]
struct Seen {
    name: &'static str,
    level: tracing::Level,
    fields: BTreeSet<String>,
    values: BTreeMap<String, String>,
    parent: Option<&'static str>,
}

/// Remembers the spans of the library, and in which of them handlers log.
#[derive(Clone, Default)]
struct Spans {
    all: Arc<Mutex<Vec<Seen>>>,
    /// Which of them have which numbers, at the moment.
    open: Arc<Mutex<HashMap<u64, usize>>>,
    handlers: Arc<Mutex<Vec<Vec<&'static str>>>>,
}

struct Values<'v>(&'v mut BTreeMap<String, String>);

impl Visit for Values<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = attributes.metadata();
        if !span.target().starts_with("posthaste") {
            return;
        }
        let mut values = BTreeMap::new();
        attributes.record(&mut Values(&mut values));
        let seen = Seen {
            name: span.name(),
            level: *span.level(),
            fields: span.fields().iter().map(|field| field.name().to_owned()).collect(),
            values,
            parent: context.span(id).and_then(|span| Some(span.parent()?.name())),
        };
        let mut all = self.all.lock().unwrap();
        all.push(seen);
        self.open.lock().unwrap().insert(id.into_u64(), all.len() - 1);
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        if let Some(place) = self.open.lock().unwrap().get(&id.into_u64()) {
            record.record(&mut Values(&mut self.all.lock().unwrap()[*place].values));
        }
    }

    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.open.lock().unwrap().remove(&id.into_u64());
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut values = BTreeMap::new();
        event.record(&mut Values(&mut values));
        if values.get("message").is_some_and(|message| message == "handled") {
            let scope = context.event_scope(event).into_iter().flat_map(Scope::from_root);
            self.handlers.lock().unwrap().push(scope.map(|span| span.name()).collect());
        }
    }
}

impl Spans {
    fn all(&self) -> Vec<Seen> {
        self.all.lock().unwrap().clone()
    }

    fn called(&self, name: &str) -> Vec<Seen> {
        self.all().into_iter().filter(|span| span.name == name).collect()
    }

    /// What all spans of this name say together.
    fn sum(&self, name: &str, field: &str) -> u64 {
        self.called(name)
            .iter()
            .filter_map(|span| span.values.get(field))
            .map(|value| value.parse::<u64>().unwrap())
            .sum()
    }
}

async fn every_span_of_the_page_is_emitted_and_no_other<S: Server>(mode: Mode) {
    let spans = Spans::default();
    let _listening = listen(spans.clone());
    let db = some_of_each::<S>(mode).await;
    let page: BTreeMap<_, _> = table("| span | level | fields | meaning |")
        .iter()
        .map(|row| (row[0].trim_matches('`'), (row[1], names(row[2]))))
        .collect();
    let mut seen = BTreeMap::new();
    for span in spans.all() {
        assert!(span.values.keys().all(|field| span.fields.contains(field)));
        let says = (span.level.to_string(), span.fields.clone());
        let before = seen.entry(span.name).or_insert_with(|| says.clone());
        assert_eq!(*before, says, "{} is always the same", span.name);
    }
    let seen: BTreeMap<_, _> = seen.iter().map(|(name, says)| (*name, (&*says.0, says.1.clone()))).collect();
    assert_eq!(seen, page);

    for root in ["posthaste.tick", "posthaste.batch", "posthaste.vacuum", "posthaste.enqueue"] {
        assert!(spans.called(root).iter().all(|span| span.parent.is_none()), "{root}");
    }
    for part in ["posthaste.message", "posthaste.settle"] {
        assert!(spans.called(part).iter().all(|span| span.parent == Some("posthaste.batch")), "{part}");
    }
    for batch in spans.called("posthaste.batch") {
        assert_eq!((&*batch.values["queue"], &*batch.values["partition"]), ("q", "1"));
    }
    assert_eq!(spans.called("posthaste.batch")[0].values["first_seq"], "1");
    assert_eq!(spans.sum("posthaste.batch", "done"), 5);
    assert_eq!(spans.sum("posthaste.batch", "rejected"), 1);
    assert!(spans.sum("posthaste.batch", "retried") >= 2);
    assert_eq!(spans.sum("posthaste.batch", "attempts"), 2, "two batches begin with what was tried before");
    assert_eq!(spans.sum("posthaste.enqueue", "messages"), 6);
    assert_eq!(spans.sum("posthaste.tick", "messages"), 6);
    assert!(spans.sum("posthaste.settle", "settled") >= 6);
    assert!(spans.sum("posthaste.vacuum", "messages") >= 5);
    let handlers = spans.handlers.lock().unwrap().clone();
    assert!(handlers.len() >= 8);
    assert!(handlers.iter().all(|scope| *scope == ["posthaste.batch", "posthaste.message"]), "{handlers:?}");
    db.remove().await;
}

async fn a_handler_of_batches_runs_in_the_span_of_its_batch<S: Server>(mode: Mode) {
    let spans = Spans::default();
    let _listening = listen(spans.clone());
    let db = some_of_each::<S>(mode).await;
    let handlers = spans.handlers.lock().unwrap().clone();
    assert!(handlers.len() >= 6);
    assert!(handlers.iter().all(|scope| *scope == ["posthaste.batch"]), "{handlers:?}");
    assert!(spans.called("posthaste.message").is_empty());
    db.remove().await;
}

async fn an_idle_outbox_has_no_spans_at_info<S: Server>() {
    let spans = Spans::default();
    let _listening = listen(spans.clone());
    let db = fresh::<S>().await;
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(AsToldByType).start().await.unwrap();
    eventually("everybody has looked", async || {
        let stats = handle.stats();
        [stats.sequencer, stats.processor, stats.vacuum, stats.reconciler]
            .iter()
            .all(|kind| kind.executions > 0)
    })
    .await;
    // That the workers make spans is seen, so silence means something.
    eventually("a tick is seen", async || !spans.called("posthaste.tick").is_empty()).await;
    handle.stop().await;
    let loud: Vec<_> = spans.all().into_iter().filter(|span| span.level <= tracing::Level::INFO).collect();
    assert!(loud.is_empty(), "{loud:?}");
    db.remove().await;
}
