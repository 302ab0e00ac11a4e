//! The state of the connection to the database, shared by all workers of a process, so that an outage is logged once
//! and not by each worker.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{OutboxError, telemetry::OutageMetrics};

/// Whether the database answers the workers of this process.
///
/// Logs one warning when an outage begins, a reminder while it lasts, and one line when it ends. There is never more
/// than one warning per reminder interval, however often the database comes and goes.
#[derive(Debug, Clone)]
pub(crate) struct Outage {
    state: Arc<Mutex<State>>,
    /// How often a worker noticed it.
    count: Arc<AtomicU64>,
    /// The shortest time between two warnings.
    reminder: Duration,
    metrics: OutageMetrics,
}

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    /// When the last warning was logged, in this outage or an earlier one.
    warned: Option<Instant>,
    /// A warning was logged in this outage, so its end is logged too.
    is_known: bool,
}

impl Outage {
    pub(crate) fn new(reminder: Duration) -> Self {
        Self { state: Arc::default(), count: Arc::default(), reminder, metrics: OutageMetrics::default() }
    }

    /// The database did not answer a worker.
    pub(crate) fn noticed(&self, worker: &str, error: &OutboxError) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.metrics.unanswered();
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outage = now.duration_since(*state.began.get_or_insert(now));
        if state.warned.is_some_and(|warned| now.duration_since(warned) < self.reminder) {
            tracing::debug!(worker, %error, ?outage, "the database does not answer");
            return;
        }
        tracing::warn!(worker, %error, ?outage, "the database does not answer; retrying");
        (state.warned, state.is_known) = (Some(now), true);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The database answered the sequencer, which polls at least once per beat.
    pub(crate) fn is_over(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(began) = state.began.take() else { return };
        let outage = began.elapsed();
        if std::mem::take(&mut state.is_known) {
            tracing::info!(?outage, "the database answers again");
        } else {
            tracing::debug!(?outage, "the database answers again");
        }
    }
}
