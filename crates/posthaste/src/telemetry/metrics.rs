//! The metrics, by way of the `metrics` facade: whoever installs a recorder says where they go.
//!
//! Handles are registered once, with the recorder that is there when the outbox starts or connects, and used from then on: what a
//! batch costs is a few atomic operations.

use std::time::{Duration, Instant};

use metrics::{Counter, Histogram, Label, Unit};

use crate::{OutboxMessage, clock::Clock};

/// A metric, as it is described to recorders and in `docs/telemetry.md`.
pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) unit: Unit,
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Declares the metrics, and the table of all of them.
macro_rules! metrics_table {
    ($($constant:ident: $kind:ident $unit:ident $name:literal [$($label:literal),*] $help:literal;)+) => {
        $(const $constant: Metric = Metric {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            labels: &[$($label),*],
            help: $help,
        };)+
        pub(super) const ALL: &[Metric] = &[$($constant),+];
    };
}

metrics_table! {
    ENQUEUED: Counter Count "posthaste_enqueued_total" ["queue"]
        "Messages that this process wrote, those of transactions that rolled back later included.";
    SEQUENCED: Counter Count "posthaste_sequenced_total" []
        "Messages that this process's ticks gave their order, those of other processes included.";
    SETTLED: Counter Count "posthaste_settled_total" ["queue", "outcome"]
        "Messages that this process settled: `done`, or `rejected` and thus dead letters.";
    RETRIES: Counter Count "posthaste_retries_total" ["queue"]
        "Batches that ended in a retry: something in them comes again after a back-off.";
    VACUUMED: Counter Count "posthaste_vacuumed_total" []
        "Settled messages that this process removed.";
    UNANSWERED: Counter Count "posthaste_unanswered_total" []
        "Times that the database did not answer a worker, which then tried again.";
    WORKER_FAILURES: Counter Count "posthaste_worker_failures_total" ["worker"]
        "Executions of workers that failed; what a handler returns is no failure.";
    TIME_IN_OUTBOX: Histogram Seconds "posthaste_time_in_outbox_seconds" ["queue"]
        "From the enqueue of a message to its settlement, by the database's clock.";
    HANDLER: Histogram Seconds "posthaste_handler_seconds" ["queue"]
        "How long the handler took for a batch, all its calls together.";
    BATCH_MESSAGES: Histogram Count "posthaste_batch_messages" ["queue"]
        "Messages of a batch that its handler was called for.";
    SETTLE: Histogram Seconds "posthaste_settle_seconds" ["queue"]
        "How long a settlement took, its commit, the read of the next batch and the waits between tries included.";
    TICK: Histogram Seconds "posthaste_tick_seconds" []
        "How long a tick took that found something.";
    TICK_MESSAGES: Histogram Count "posthaste_tick_messages" []
        "Messages of a tick that found something.";
    DEPTH: Gauge Count "posthaste_depth_messages" ["queue"]
        "Messages that have their order and are not settled.";
    OLDEST_AGE: Gauge Seconds "posthaste_oldest_age_seconds" ["queue"]
        "Age of the oldest message that is not settled, by the database's clock; 0 if there is none.";
    STALLED: Gauge Count "posthaste_stalled_partitions" ["queue"]
        "Partitions that have messages and do not get on.";
    PAUSED: Gauge Count "posthaste_paused" ["queue"]
        "1 while the queue is paused, else 0.";
    REACHABLE: Gauge Count "posthaste_database_reachable" []
        "1 while the database answers this process, else 0.";
}

impl Metric {
    /// With the values of its labels.
    fn labels(&self, values: &[&str]) -> Vec<Label> {
        debug_assert_eq!(self.labels.len(), values.len(), "{}", self.name);
        let label = |(name, value): (&&'static str, &&str)| Label::new(*name, (*value).to_owned());
        self.labels.iter().zip(values).map(label).collect()
    }

    fn counter(&self, values: &[&str]) -> Counter {
        metrics::counter!(self.name, self.labels(values))
    }

    fn histogram(&self, values: &[&str]) -> Histogram {
        metrics::histogram!(self.name, self.labels(values))
    }

    fn set(&self, values: &[&str], value: f64) {
        metrics::gauge!(self.name, self.labels(values)).set(value);
    }
}

/// Tells the recorder what each metric means.
pub(crate) fn describe() {
    for Metric { name, kind, unit, help, .. } in ALL {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *unit, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *unit, *help),
            Kind::Histogram => metrics::describe_histogram!(*name, *unit, *help),
        }
    }
}

/// What is counted of a queue.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    enqueued: Counter,
    done: Counter,
    rejected: Counter,
    retries: Counter,
    time_in_outbox: Histogram,
    handler: Histogram,
    batch_messages: Histogram,
    settle: Histogram,
}

impl QueueMetrics {
    /// Of a queue that is registered, so that there are only so many.
    pub(crate) fn of(queue: &str) -> Self {
        Self {
            enqueued: ENQUEUED.counter(&[queue]),
            done: SETTLED.counter(&[queue, "done"]),
            rejected: SETTLED.counter(&[queue, "rejected"]),
            retries: RETRIES.counter(&[queue]),
            time_in_outbox: TIME_IN_OUTBOX.histogram(&[queue]),
            handler: HANDLER.histogram(&[queue]),
            batch_messages: BATCH_MESSAGES.histogram(&[queue]),
            settle: SETTLE.histogram(&[queue]),
        }
    }

    pub(crate) fn enqueued(&self, messages: usize) {
        self.enqueued.increment(count(messages));
    }

    /// The handler was called for a batch.
    pub(crate) fn handled(&self, messages: usize, took: &Stopwatch) {
        self.batch_messages.record(float(count(messages)));
        self.handler.record(took.spent);
    }

    /// So many of these became dead letters, the others are done.
    pub(crate) fn settled(&self, messages: &[OutboxMessage], rejected: usize, clock: &Clock) {
        self.done.increment(count(messages.len().saturating_sub(rejected)));
        self.rejected.increment(count(rejected));
        // What was enqueued together is as old.
        for together in messages.chunk_by(|one, next| one.created_at == next.created_at) {
            if let Some(first) = together.first() {
                self.time_in_outbox.record_many(clock.age(first.created_at), together.len());
            }
        }
    }

    pub(crate) fn retried(&self) {
        self.retries.increment(1);
    }

    pub(crate) fn settling_took(&self, took: Duration) {
        self.settle.record(took);
    }
}

/// How long a handler takes, added up over its calls for a batch.
#[derive(Debug, Default)]
pub(crate) struct Stopwatch {
    spent: Duration,
    began: Option<Instant>,
}

impl Stopwatch {
    pub(crate) fn start(&mut self) {
        self.began = Some(Instant::now());
    }

    pub(crate) fn stop(&mut self) {
        self.spent += self.began.take().map(|began| began.elapsed()).unwrap_or_default();
    }
}

#[derive(Debug)]
pub(crate) struct SequencerMetrics {
    sequenced: Counter,
    tick: Histogram,
    tick_messages: Histogram,
}

impl Default for SequencerMetrics {
    fn default() -> Self {
        Self {
            sequenced: SEQUENCED.counter(&[]),
            tick: TICK.histogram(&[]),
            tick_messages: TICK_MESSAGES.histogram(&[]),
        }
    }
}

impl SequencerMetrics {
    /// A tick ended. Those that find nothing say nothing: there are more of them the less there is to do.
    pub(crate) fn ticked(&self, messages: u64, began: Instant) {
        if messages > 0 {
            self.sequenced.increment(messages);
            self.tick.record(began.elapsed());
            self.tick_messages.record(float(messages));
        }
    }
}

#[derive(Debug)]
pub(crate) struct VacuumMetrics {
    vacuumed: Counter,
}

impl Default for VacuumMetrics {
    fn default() -> Self {
        Self { vacuumed: VACUUMED.counter(&[]) }
    }
}

impl VacuumMetrics {
    pub(crate) fn removed(&self, messages: u64) {
        self.vacuumed.increment(messages);
    }
}

#[derive(Debug, Clone)]
pub(crate) struct OutageMetrics {
    unanswered: Counter,
}

impl Default for OutageMetrics {
    fn default() -> Self {
        Self { unanswered: UNANSWERED.counter(&[]) }
    }
}

impl OutageMetrics {
    pub(crate) fn unanswered(&self) {
        self.unanswered.increment(1);
    }
}

/// What is counted of the workers of one kind.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    failures: Counter,
}

impl WorkerMetrics {
    pub(crate) fn of(worker: &'static str) -> Self {
        Self { failures: WORKER_FAILURES.counter(&[worker]) }
    }

    pub(crate) fn failed(&self) {
        self.failures.increment(1);
    }
}

/// What a look at a queue found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observed<'q> {
    pub(crate) queue: &'q str,
    /// Messages that are not settled.
    pub(crate) depth: u64,
    /// Age of the oldest of them.
    pub(crate) oldest_age: Duration,
    pub(crate) stalled_partitions: u64,
    pub(crate) is_paused: bool,
}

/// Sets the gauges, after a look at the queues; at none of them if the database did not answer.
pub(crate) fn observed(is_reachable: bool, queues: &[Observed<'_>]) {
    let flag = |is_set: bool| if is_set { 1.0 } else { 0.0 };
    REACHABLE.set(&[], flag(is_reachable));
    for of in queues {
        DEPTH.set(&[of.queue], float(of.depth));
        OLDEST_AGE.set(&[of.queue], of.oldest_age.as_secs_f64());
        STALLED.set(&[of.queue], float(of.stalled_partitions));
        PAUSED.set(&[of.queue], flag(of.is_paused));
    }
}

fn count(messages: usize) -> u64 {
    u64::try_from(messages).unwrap_or(u64::MAX)
}

/// Counts are far below what a float holds exactly.
#[expect(clippy::cast_precision_loss, reason = "see above")]
const fn float(count: u64) -> f64 {
    count as f64
}
