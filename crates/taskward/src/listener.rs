//! Eyes on a worker.

use std::{sync::Arc, time::Duration};

use crate::Directive;

/// Is told what a worker does. All methods do nothing by default; a panic in one is logged and goes no further.
///
/// The calls are made on the worker's task between its executions, so they should be quick.
#[expect(unused_variables, reason = "the names are the documentation")]
pub trait WorkerListener<P>: Send + Sync {
    /// The worker's loop has begun.
    fn on_start(&self, worker: &str) {}

    /// The worker's loop has ended.
    fn on_stop(&self, worker: &str) {}

    /// An execution begins; it has its permit.
    fn on_execute_start(&self, worker: &str) {}

    /// An execution ended well.
    fn on_complete(&self, worker: &str, directive: &Directive<P>, took: Duration) {}

    /// An execution failed or panicked, for the `failures`-th time in a row; the worker stays away for `backoff`.
    /// A panic that ends the worker has none: zero.
    fn on_error(&self, worker: &str, error: &str, took: Duration, failures: u32, backoff: Duration) {}

    /// The worker waits for a notifier.
    fn on_idle(&self, worker: &str) {}

    /// The worker waits for a while, or for a notifier.
    fn on_sleep(&self, worker: &str, duration: Duration) {}
}

impl<P, L: WorkerListener<P> + ?Sized> WorkerListener<P> for Arc<L> {
    fn on_start(&self, worker: &str) {
        L::on_start(self, worker);
    }
    fn on_stop(&self, worker: &str) {
        L::on_stop(self, worker);
    }
    fn on_execute_start(&self, worker: &str) {
        L::on_execute_start(self, worker);
    }
    fn on_complete(&self, worker: &str, directive: &Directive<P>, took: Duration) {
        L::on_complete(self, worker, directive, took);
    }
    fn on_error(&self, worker: &str, error: &str, took: Duration, failures: u32, backoff: Duration) {
        L::on_error(self, worker, error, took, failures, backoff);
    }
    fn on_idle(&self, worker: &str) {
        L::on_idle(self, worker);
    }
    fn on_sleep(&self, worker: &str, duration: Duration) {
        L::on_sleep(self, worker, duration);
    }
}

/// Writes a worker's life to `tracing`: failures as warnings, start and stop at debug, the rest at trace.
#[derive(Debug, Clone, Copy, Default)]
pub struct TracingListener;

impl<P> WorkerListener<P> for TracingListener {
    fn on_start(&self, worker: &str) {
        tracing::debug!(worker, "worker started");
    }
    fn on_stop(&self, worker: &str) {
        tracing::debug!(worker, "worker stopped");
    }
    fn on_execute_start(&self, worker: &str) {
        tracing::trace!(worker, "worker executes");
    }
    fn on_complete(&self, worker: &str, directive: &Directive<P>, took: Duration) {
        let next = match directive {
            Directive::Proceed(_) => "proceed",
            Directive::Idle(_) => "idle",
            Directive::Sleep(..) => "sleep",
        };
        tracing::trace!(worker, next, ?took, "worker executed");
    }
    fn on_error(&self, worker: &str, error: &str, took: Duration, failures: u32, backoff: Duration) {
        tracing::warn!(worker, error, ?took, failures, ?backoff, "worker failed");
    }
    fn on_idle(&self, worker: &str) {
        tracing::trace!(worker, "worker idle");
    }
    fn on_sleep(&self, worker: &str, duration: Duration) {
        tracing::trace!(worker, ?duration, "worker sleeps");
    }
}
