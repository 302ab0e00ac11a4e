//! What can be seen from outside: every span and every metric has its name here, and nowhere else. `docs/telemetry.md` is the
//! table of them, which the tests compare with the code.
//!
//! No payload, key, header or URL gets into any of it. Labels are the names of registered queues, and words of fixed sets.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
mod metrics;
#[cfg(feature = "opentelemetry")]
mod trace_context;
#[cfg(not(feature = "opentelemetry"))]
#[path = "no_trace_context.rs"]
mod trace_context;

use tracing::{Span, debug_span, field::Empty, info_span};

pub(crate) use self::{
    metrics::{
        Observed, OutageMetrics, QueueMetrics, SequencerMetrics, Stopwatch, VacuumMetrics, WorkerMetrics,
        describe, observed,
    },
    trace_context::TraceContext,
};
use crate::{OutboxMessage, store::Leased};

/// A call that enqueues.
pub(crate) fn enqueue(queue: &str, messages: usize) -> Span {
    debug_span!("posthaste.enqueue", queue, messages)
}

/// A tick. What workers do has no parent: whoever started them is not why.
pub(crate) fn tick() -> Span {
    debug_span!(parent: None, "posthaste.tick", messages = Empty, partitions = Empty)
}

/// What a tick did.
pub(crate) fn ticked(span: &Span, messages: u64, partitions: usize) {
    span.record("messages", messages).record("partitions", partitions);
}

/// A batch: its handler, and its settlement.
pub(crate) fn batch(queue: &str, partition: u32, leased: &Leased) -> Span {
    let span = info_span!(
        parent: None,
        "posthaste.batch",
        queue,
        partition,
        first_seq = leased.processed_seq + 1,
        messages = leased.messages.len(),
        attempts = leased.attempts.saturating_sub(1),
        done = Empty,
        rejected = Empty,
        retried = Empty,
    );
    trace_context::link(&span, &leased.messages);
    span
}

/// How a batch ended: in messages that are done, dead letters, and messages that come again after a back-off.
pub(crate) fn ended(span: &Span, done: usize, rejected: usize, retried: usize) {
    span.record("done", done).record("rejected", rejected).record("retried", retried);
}

/// A message, for handlers that get one at a time.
pub(crate) fn message(message: &OutboxMessage) -> Span {
    let span = debug_span!("posthaste.message", id = message.id.0, seq = message.seq);
    trace_context::link(&span, std::slice::from_ref(message));
    span
}

/// A settlement, which reads the next batch too.
pub(crate) fn settle(queue: &str, partition: u32, settled: usize, rejected: usize) -> Span {
    debug_span!("posthaste.settle", queue, partition, settled, rejected)
}

/// A pass of the vacuum.
pub(crate) fn vacuum() -> Span {
    debug_span!(parent: None, "posthaste.vacuum", messages = Empty)
}

/// What it removed.
pub(crate) fn vacuumed(span: &Span, messages: u64) {
    span.record("messages", messages);
}

#[cfg(test)]
mod tests;
