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
    history::{Line, Noticed, Pen},
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

/// Writes down each batch that took longer than its handler had.
#[derive(Clone)]
pub struct SlowBatches {
    process: u32,
    budget: Duration,
    pen: Arc<Pen>,
    /// Since when each partition is leased.
    begun: Arc<Mutex<HashMap<i64, u64>>>,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl SlowBatches {
    pub fn new(circumstances: &Circumstances, pen: Pen) -> Self {
        let budget = settings::budget(&circumstances.setup);
        Self { process: circumstances.process, budget, pen: Arc::new(pen), begun: Arc::default() }
    }

    pub fn targets() -> Targets {
        Targets::new().with_target(PROCESSOR, Level::DEBUG).with_target(STRATEGY, Level::ERROR)
    }

    /// A handler is given a batch, and has so much time left.
    pub fn begin(&self, partition_id: i64, remaining: Duration) {
        let begun = now().saturating_sub(micros(self.budget.saturating_sub(remaining)));
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(partition_id, begun);
    }

    fn end(&self, partition_id: i64) {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner).remove(&partition_id);
        let (Some(from), until) = (begun, now()) else { return };
        if until - from > micros(self.budget) {
            let noticed = Noticed { process: self.process, place: None, from, until };
            self.pen.write(&[Line::Slow(noticed)]).ok();
        }
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
