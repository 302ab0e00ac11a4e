//! A small runtime for long-lived background workers.
//!
//! A worker is an [`WorkerAction`] that is executed again and again. What it returns, a [`Directive`], says when
//! the next time is: at the current pace ([`Directive::Proceed`]), when somebody calls ([`Directive::Idle`]), or
//! after a while ([`Directive::Sleep`]). The runtime looks after the rest: pacing, wake-ups that are never lost,
//! limits on how many workers run at once, back-off after errors, panics, and an orderly shutdown.
//!
//! | piece | what it is |
//! |---|---|
//! | [`WorkerAction`], [`Directive`] | what a worker does, and when it wants to do it again |
//! | [`WorkerBuilder`], [`Worker`] | the loop around an action |
//! | [`PacingConfig`] | how fast a worker that has more to do goes on |
//! | [`Bulkhead`], [`ConcurrencyLimit`], [`BackoffConfig`] | how many run at once, and how long a failing one stays away |
//! | [`poker()`] | a notifier that fires at an interval |
//! | [`WorkerListener`], [`TracingListener`] | eyes on a worker |
//! | [`TaskSet`] | named tasks that are shut down together |
//!
//! # Promises
//!
//! - An execution is never dropped half-way by the runtime. Cancelling ends every wait at once; a running action
//!   is given the token and is awaited. Only [`TaskSet::shutdown_within`] aborts, after its grace period.
//! - A notification that arrives while the action runs causes another execution. Any number of notifications that
//!   arrive before an execution starts are answered by that one execution.
//! - Errors never end a worker, and neither does a listener that panics.
//!
//! # Example
//!
//! ```
//! use std::{convert::Infallible, sync::Arc};
//! use taskward::{CancellationToken, Directive, TaskOutcome, TaskSet, WorkerAction, WorkerBuilder};
//! use tokio::sync::{Notify, mpsc};
//!
//! /// Takes one job at a time, and rests when there is none.
//! struct Drain {
//!     jobs: Vec<&'static str>,
//!     done: mpsc::UnboundedSender<&'static str>,
//! }
//!
//! impl WorkerAction for Drain {
//!     type Payload = ();
//!     type Error = Infallible;
//!
//!     async fn execute(&mut self, _cancel: &CancellationToken) -> Result<Directive, Infallible> {
//!         match self.jobs.pop() {
//!             Some(job) => {
//!                 self.done.send(job).ok();
//!                 Ok(Directive::proceed())
//!             }
//!             None => Ok(Directive::idle()),
//!         }
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let cancel = CancellationToken::new();
//! let bell = Arc::new(Notify::new());
//! let (done, mut finished) = mpsc::unbounded_channel();
//!
//! let worker = WorkerBuilder::new("drain", cancel.clone())
//!     .notifier(Arc::clone(&bell))
//!     .build(Drain { jobs: vec!["second", "first"], done });
//!
//! let mut tasks = TaskSet::new(cancel);
//! tasks.spawn("drain", worker.run());
//!
//! bell.notify_one(); // a worker starts idle
//! assert_eq!(finished.recv().await, Some("first"));
//! assert_eq!(finished.recv().await, Some("second"));
//!
//! let report = tasks.shutdown().await;
//! assert_eq!((report[0].name.as_str(), &report[0].outcome), ("drain", &TaskOutcome::Finished));
//! # }
//! ```

#![warn(missing_docs, unreachable_pub)]

mod action;
mod backoff;
mod bulkhead;
mod directive;
mod listener;
mod pacing;
mod panics;
mod poker;
mod task_set;
mod wakeups;
mod worker;

pub use action::WorkerAction;
pub use backoff::BackoffConfig;
pub use bulkhead::{Bulkhead, BulkheadConfig, ConcurrencyLimit, LimitClosed, Permit};
pub use directive::Directive;
pub use listener::{TracingListener, WorkerListener};
pub use pacing::PacingConfig;
pub use panics::{catch_panic, panic_text};
pub use poker::poker;
pub use task_set::{ABORT_PATIENCE, TaskOutcome, TaskReport, TaskSet};
pub use worker::{ErrorPolicy, PanicPolicy, Worker, WorkerBuilder};

/// The token that stops a worker, from `tokio-util`.
pub use tokio_util::sync::CancellationToken;
