//! Named tasks that are shut down together.

use std::{pin::Pin, time::Duration};

use tokio::{
    task::{JoinError, JoinHandle},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::panic_text;

/// How long [`TaskSet::shutdown_within`] waits for a task to notice that it was aborted. A task that awaits anything
/// notices at once; one that blocks its thread never does.
pub const ABORT_PATIENCE: Duration = Duration::from_millis(500);

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskOutcome {
    /// By itself.
    Finished,
    /// With a panic that said this.
    Panicked(String),
    /// Not within the grace period, so it was aborted at its next await.
    Aborted,
    /// Not at all: aborted, but it blocks its thread and never reaches an await.
    Stuck,
}

/// How one task of a [`TaskSet`] ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskReport {
    /// The name it was spawned under.
    pub name: String,
    /// How it ended.
    pub outcome: TaskOutcome,
}

/// Named tasks that end when one token is cancelled.
///
/// Dropping the set cancels the token and leaves the tasks to end by themselves.
#[derive(Debug)]
pub struct TaskSet {
    cancel: CancellationToken,
    tasks: Vec<(String, JoinHandle<()>)>,
}

impl TaskSet {
    /// An empty set. Its tasks are expected to end when `cancel` is cancelled.
    #[must_use]
    pub const fn new(cancel: CancellationToken) -> Self {
        Self { cancel, tasks: Vec::new() }
    }

    /// Spawns a task.
    ///
    /// # Panics
    ///
    /// When called outside a tokio runtime.
    pub fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        // Boxed, so that tokio's task is compiled once and not for each type of future.
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        self.tasks.push((name.into(), tokio::spawn(task)));
    }

    /// Whether a task of this name was spawned and has not ended.
    #[must_use]
    pub fn is_running(&self, name: &str) -> bool {
        self.tasks.iter().any(|(spawned, task)| spawned == name && !task.is_finished())
    }

    /// Cancels, waits for every task however long it takes, and reports on each, in the order they were spawned.
    pub async fn shutdown(mut self) -> Vec<TaskReport> {
        self.cancel.cancel();
        let mut reports = Vec::new();
        for (name, task) in std::mem::take(&mut self.tasks) {
            reports.push(TaskReport { name, outcome: outcome(task.await) });
        }
        reports
    }

    /// Like [`shutdown`](Self::shutdown), but what has not ended within `grace` is aborted. Returns within `grace`
    /// plus [`ABORT_PATIENCE`], whatever the tasks do, unless one blocks the only thread of the runtime.
    pub async fn shutdown_within(mut self, grace: Duration) -> Vec<TaskReport> {
        self.cancel.cancel();
        // A grace period too long for the clock is no limit.
        let Some(deadline) = Instant::now().checked_add(grace) else {
            return self.shutdown().await;
        };
        let mut tasks = std::mem::take(&mut self.tasks);
        let mut outcomes = Vec::new();
        for (_, task) in &mut tasks {
            outcomes.push(timeout_at(deadline, task).await.ok().map(outcome));
        }
        // All are told to go before any is waited for.
        for ((_, task), outcome) in tasks.iter().zip(&outcomes) {
            if outcome.is_none() {
                task.abort();
            }
        }
        let patience = Instant::now() + ABORT_PATIENCE;
        let mut reports = Vec::new();
        for ((name, task), known) in tasks.into_iter().zip(outcomes) {
            let outcome = match known {
                Some(outcome) => outcome,
                None => timeout_at(patience, task).await.map_or(TaskOutcome::Stuck, outcome),
            };
            reports.push(TaskReport { name, outcome });
        }
        reports
    }
}

impl Drop for TaskSet {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

fn outcome(joined: Result<(), JoinError>) -> TaskOutcome {
    match joined {
        Ok(()) => TaskOutcome::Finished,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => TaskOutcome::Panicked(panic_text(&*panic)),
            Err(_cancelled) => TaskOutcome::Aborted,
        },
    }
}
