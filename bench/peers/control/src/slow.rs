//! Batches that were not settled while their lease lasted, as the process itself sees it. A database that is slow to answer is nobody's deed,
//! and explains what comes again, here as in posthaste.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use posthaste_torture_protocol::{
    circumstances::Circumstances,
    clock::now,
    history::{Line, Pen},
    ongoing::{Doing, Ongoing},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, filter::Targets, layer::Context};

use crate::settings;

/// Who says that a batch is settled, and who that it could not be: both name the partition.
const PROCESSOR: &str = "modkit_db::outbox::workers::processor";
const STRATEGY: &str = "modkit_db::outbox::strategy";

/// Has each batch that takes longer than its handler has written down.
#[derive(Clone)]
pub struct SlowBatches {
    budget: Duration,
    ongoing: Arc<Ongoing>,
    /// Of each partition that is leased.
    begun: Arc<Mutex<HashMap<i64, Doing>>>,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl SlowBatches {
    pub fn new(circumstances: &Circumstances, pen: Pen) -> Self {
        let budget = settings::budget(&circumstances.setup);
        let ongoing = Ongoing::watch(circumstances.process, micros(budget), Line::Slow, pen);
        Self { budget, ongoing, begun: Arc::default() }
    }

    pub fn targets() -> Targets {
        Targets::new().with_target(PROCESSOR, Level::DEBUG).with_target(STRATEGY, Level::ERROR)
    }

    /// A handler is given a batch, and has so much time left.
    pub fn begin(&self, partition_id: i64, remaining: Duration) {
        let from = now().saturating_sub(micros(self.budget.saturating_sub(remaining)));
        let doing = self.ongoing.begun_at(from, None);
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(partition_id, doing);
    }

    fn end(&self, partition_id: i64) {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(&partition_id);
    }
}

impl<S: Subscriber> Layer<S> for SlowBatches {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut partition = PartitionId(None);
        event.record(&mut partition);
        if let Some(id) = partition.0 {
            self.end(id);
        }
    }
}

struct PartitionId(Option<i64>);

impl Visit for PartitionId {
    fn record_i64(&mut self, field: &Field, value: i64) {
        if field.name() == "partition_id" {
            self.0 = Some(value);
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}
