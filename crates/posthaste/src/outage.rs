//! A database that does not answer is one piece of news, however many workers notice.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{OutboxError, telemetry::OutageMetrics};

/// Whether the database answers the workers of this process: a warning when it stops to, a reminder now and then, and a
/// word when it is back.
#[derive(Debug, Clone)]
pub(crate) struct Outage {
    /// Since when, and when it was last spoken of.
    since: Arc<Mutex<Option<(Instant, Instant)>>>,
    /// How often it was noticed.
    count: Arc<AtomicU64>,
    /// How often it is logged again.
    reminder: Duration,
    metrics: OutageMetrics,
}

impl Outage {
    pub(crate) fn new(reminder: Duration) -> Self {
        Self { since: Arc::default(), count: Arc::default(), reminder, metrics: OutageMetrics::default() }
    }

    /// The database did not answer a worker.
    pub(crate) fn noticed(&self, worker: &str, error: &OutboxError) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.metrics.unanswered();
        let now = Instant::now();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *since {
            None => {
                tracing::warn!(worker, %error, "the database does not answer; trying again and again");
                *since = Some((now, now));
            }
            Some((began, spoken)) if now.duration_since(*spoken) >= self.reminder => {
                tracing::warn!(worker, %error, outage = ?now.duration_since(*began), "the database still does not answer");
                *spoken = now;
            }
            Some(_) => tracing::debug!(worker, %error, "the database does not answer"),
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The database answered the sequencer, which asks whenever there is anything to ask.
    pub(crate) fn is_over(&self) {
        let ended = self.since.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((began, _)) = ended {
            tracing::info!(outage = ?began.elapsed(), "the database answers again");
        }
    }
}
