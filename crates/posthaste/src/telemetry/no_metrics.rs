//! Without the feature `metrics`: the same words, and nothing behind them.

use std::time::{Duration, Instant};

use crate::{OutboxMessage, clock::Clock};

pub(crate) fn describe() {}

#[derive(Debug)]
pub(crate) struct QueueMetrics {}

impl QueueMetrics {
    pub(crate) fn of(_queue: &str) -> Self {
        Self {}
    }

    pub(crate) fn enqueued(&self, _messages: usize) {}

    pub(crate) fn handled(&self, _messages: usize, _took: &Stopwatch) {}

    pub(crate) fn settled(&self, _messages: &[OutboxMessage], _rejected: usize, _clock: &Clock) {}

    pub(crate) fn retried(&self) {}

    pub(crate) fn settling_took(&self, _took: Duration) {}
}

#[derive(Debug, Default)]
pub(crate) struct Stopwatch {}

impl Stopwatch {
    pub(crate) fn start(&mut self) {}

    pub(crate) fn stop(&mut self) {}
}

#[derive(Debug, Default)]
pub(crate) struct SequencerMetrics {}

impl SequencerMetrics {
    pub(crate) fn ticked(&self, _messages: u64, _began: Instant) {}
}

#[derive(Debug, Default)]
pub(crate) struct VacuumMetrics {}

impl VacuumMetrics {
    pub(crate) fn removed(&self, _messages: u64) {}
}

#[derive(Debug, Clone, Default)]
pub(crate) struct OutageMetrics {}

impl OutageMetrics {
    pub(crate) fn unanswered(&self) {}
}

#[derive(Debug)]
pub(crate) struct WorkerMetrics {}

impl WorkerMetrics {
    pub(crate) fn of(_worker: &'static str) -> Self {
        Self {}
    }

    pub(crate) fn failed(&self) {}
}

#[derive(Debug, Clone, Copy)]
#[expect(dead_code, reason = "nobody reads it without the feature")]
pub(crate) struct Observed<'q> {
    pub(crate) queue: &'q str,
    pub(crate) depth: u64,
    pub(crate) oldest_age: Duration,
    pub(crate) stalled_partitions: u64,
    pub(crate) is_paused: bool,
}

pub(crate) fn observed(_is_reachable: bool, _queues: &[Observed<'_>]) {}
