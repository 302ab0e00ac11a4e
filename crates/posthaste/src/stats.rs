//! What the workers of a process have done so far, counted by kind.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use taskward::{CancellationToken, Directive, WorkerListener};

use crate::{outage::Outage, telemetry::WorkerMetrics, timings::Timings};

/// What the workers of this process have done since the start. See [`OutboxHandle::stats`](crate::OutboxHandle::stats).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxStats {
    /// The worker that gives messages their order; `messages` are those that got it.
    pub sequencer: WorkerStats,
    /// The workers that call handlers, of all partitions together; `messages` are those that were settled, rejected ones
    /// included.
    pub processor: WorkerStats,
    /// The worker that removes what every reader has passed; `messages` are those that it removed.
    pub vacuum: WorkerStats,
    /// The worker that looks for work that a lost wake-up left behind; `messages` are the partitions that it woke.
    pub reconciler: WorkerStats,
    /// How often the database did not answer a worker, which then tried again: no failure of the worker.
    pub unanswered: u64,
}

/// What one kind of worker has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Executions that ended, well or not.
    pub executions: u64,
    /// Those that found nothing to do, or nobody to ask.
    pub idle: u64,
    /// Those that failed; what a handler returns is no failure of its worker.
    pub failures: u64,
    /// What was done; see [`OutboxStats`].
    pub messages: u64,
    /// How long the executions took together.
    pub busy: Duration,
    /// How long the longest took.
    pub longest: Duration,
}

impl OutboxStats {
    /// What was done since an earlier look. The longest execution is that of all time.
    #[must_use]
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            sequencer: self.sequencer.since(&earlier.sequencer),
            processor: self.processor.since(&earlier.processor),
            vacuum: self.vacuum.since(&earlier.vacuum),
            reconciler: self.reconciler.since(&earlier.reconciler),
            unanswered: self.unanswered.saturating_sub(earlier.unanswered),
        }
    }

    const fn failures(&self) -> u64 {
        self.sequencer.failures + self.processor.failures + self.vacuum.failures + self.reconciler.failures
    }

    /// No message was sequenced, delivered or removed, and nothing failed.
    const fn is_quiet(&self) -> bool {
        let work = self.sequencer.messages + self.processor.executions + self.vacuum.messages;
        work == 0 && self.failures() == 0 && self.unanswered == 0
    }
}

impl WorkerStats {
    const fn since(&self, earlier: &Self) -> Self {
        Self {
            executions: self.executions.saturating_sub(earlier.executions),
            idle: self.idle.saturating_sub(earlier.idle),
            failures: self.failures.saturating_sub(earlier.failures),
            messages: self.messages.saturating_sub(earlier.messages),
            busy: self.busy.saturating_sub(earlier.busy),
            longest: self.longest,
        }
    }
}

/// The counters of one process.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    pub(crate) sequencer: Arc<Counter>,
    pub(crate) processor: Arc<Counter>,
    pub(crate) vacuum: Arc<Counter>,
    pub(crate) reconciler: Arc<Counter>,
    pub(crate) outage: Outage,
}

impl Counters {
    pub(crate) fn new(timings: &Timings) -> Self {
        Self {
            sequencer: Arc::new(Counter::of("sequencer")),
            processor: Arc::new(Counter::of("processor")),
            vacuum: Arc::new(Counter::of("vacuum")),
            reconciler: Arc::new(Counter::of("reconciler")),
            outage: Outage::new(timings.outage_reminder),
        }
    }

    pub(crate) fn read(&self) -> OutboxStats {
        OutboxStats {
            sequencer: self.sequencer.read(),
            processor: self.processor.read(),
            vacuum: self.vacuum.read(),
            reconciler: self.reconciler.read(),
            unanswered: self.outage.count(),
        }
    }

    /// Logs what was done in each interval in which anything was done, until cancelled.
    pub(crate) async fn log_every(self, interval: Duration, cancel: CancellationToken) {
        let mut before = self.read();
        while cancel.run_until_cancelled(tokio::time::sleep(interval)).await.is_some() {
            let now = self.read();
            let done = now.since(&before);
            before = now;
            if done.is_quiet() {
                continue;
            }
            tracing::info!(
                ?interval,
                sequenced = done.sequencer.messages,
                settled = done.processor.messages,
                removed = done.vacuum.messages,
                executions = done.processor.executions,
                busy = ?done.processor.busy,
                failures = done.failures(),
                unanswered = done.unanswered,
                "outbox statistics",
            );
        }
    }
}

/// Counts what the workers of one kind do.
#[derive(Debug)]
pub(crate) struct Counter {
    executions: AtomicU64,
    idle: AtomicU64,
    failures: AtomicU64,
    messages: AtomicU64,
    busy_us: AtomicU64,
    longest_us: AtomicU64,
    metrics: WorkerMetrics,
}

impl Counter {
    fn of(kind: &'static str) -> Self {
        let zero = AtomicU64::default;
        Self {
            executions: zero(),
            idle: zero(),
            failures: zero(),
            messages: zero(),
            busy_us: zero(),
            longest_us: zero(),
            metrics: WorkerMetrics::of(kind),
        }
    }

    fn read(&self) -> WorkerStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        WorkerStats {
            executions: read(&self.executions),
            idle: read(&self.idle),
            failures: read(&self.failures),
            messages: read(&self.messages),
            busy: Duration::from_micros(read(&self.busy_us)),
            longest: Duration::from_micros(read(&self.longest_us)),
        }
    }

    fn executed(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.executions.fetch_add(1, Ordering::Relaxed);
        self.busy_us.fetch_add(took, Ordering::Relaxed);
        self.longest_us.fetch_max(took, Ordering::Relaxed);
    }
}

impl WorkerListener<u64> for Counter {
    fn on_complete(&self, _worker: &str, directive: &Directive<u64>, took: Duration) {
        self.executed(took);
        match *directive.payload() {
            0 => self.idle.fetch_add(1, Ordering::Relaxed),
            messages => self.messages.fetch_add(messages, Ordering::Relaxed),
        };
    }

    fn on_error(&self, _worker: &str, _error: &str, took: Duration, _failures: u32, _backoff: Duration) {
        self.executed(took);
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.metrics.failed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_without_work_is_quiet() {
        let worker =
            |messages, failures| WorkerStats { executions: 9, messages, failures, ..WorkerStats::default() };
        let idle = OutboxStats { sequencer: worker(0, 0), ..OutboxStats::default() };
        assert!(idle.is_quiet());
        assert!(!OutboxStats { processor: worker(0, 0), ..idle }.is_quiet(), "a handler may have failed");
        assert!(!OutboxStats { vacuum: worker(1, 0), ..idle }.is_quiet());
        assert!(!OutboxStats { reconciler: worker(0, 1), ..idle }.is_quiet());
        assert!(!OutboxStats { unanswered: 1, ..idle }.is_quiet());
    }

    #[test]
    fn executions_are_counted_by_what_came_of_them() {
        let (counter, ms) = (Counter::of("w"), Duration::from_millis);
        counter.on_complete("w", &Directive::Proceed(7), ms(2));
        counter.on_complete("w", &Directive::Idle(0), ms(1));
        counter.on_error("w", "no", ms(5), 1, ms(100));
        let expected =
            WorkerStats { executions: 3, idle: 1, failures: 1, messages: 7, busy: ms(8), longest: ms(5) };
        assert_eq!(counter.read(), expected);
        counter.on_complete("w", &Directive::Idle(3), ms(1));
        let later = counter.read().since(&expected);
        assert_eq!(
            later,
            WorkerStats { executions: 1, idle: 0, failures: 0, messages: 3, busy: ms(1), longest: ms(5) }
        );
    }
}
