//! The loop around an action.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    Bulkhead, BulkheadConfig, Directive, PacingConfig, WorkerAction, WorkerListener, catch_panic,
    pacing::Pace, panic_text, wakeups::Wakeups,
};

/// What a worker does when its action panics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PanicPolicy {
    /// The worker stops (its listeners hear of it first) and the panic goes on to whoever awaits [`Worker::run`].
    #[default]
    Propagate,
    /// The panic counts as an error like any other: back-off, then what [`ErrorPolicy`] says.
    CatchAndRetry,
}

/// What a worker does after the back-off that follows an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ErrorPolicy {
    /// It waits for a notifier.
    #[default]
    Idle,
    /// It executes again by itself.
    Retry,
}

/// Makes a [`Worker`].
pub struct WorkerBuilder<P = ()> {
    name: String,
    cancel: CancellationToken,
    notifiers: Vec<Arc<Notify>>,
    pacing: PacingConfig,
    bulkhead: Option<Bulkhead>,
    listeners: Vec<Box<dyn WorkerListener<P>>>,
    on_panic: PanicPolicy,
    on_error: ErrorPolicy,
}

impl<P> WorkerBuilder<P> {
    /// A worker that runs until `cancel`; the name is for listeners and logs.
    #[must_use]
    pub fn new(name: impl Into<String>, cancel: CancellationToken) -> Self {
        Self {
            name: name.into(),
            cancel,
            notifiers: Vec::new(),
            pacing: PacingConfig::default(),
            bulkhead: None,
            listeners: Vec::new(),
            on_panic: PanicPolicy::default(),
            on_error: ErrorPolicy::default(),
        }
    }

    /// Adds a notifier: any of them wakes the worker when it is idle or asleep. Without one, an idle worker stays
    /// idle.
    #[must_use]
    pub fn notifier(mut self, notifier: Arc<Notify>) -> Self {
        self.notifiers.push(notifier);
        self
    }

    /// Sets the pace.
    #[must_use]
    pub fn pacing(mut self, pacing: impl Into<PacingConfig>) -> Self {
        self.pacing = pacing.into();
        self
    }

    /// Sets the concurrency limit and the back-off. Default: no limit, default back-off.
    #[must_use]
    pub fn bulkhead(mut self, bulkhead: Bulkhead) -> Self {
        self.bulkhead = Some(bulkhead);
        self
    }

    /// Adds a listener.
    #[must_use]
    pub fn listener(mut self, listener: impl WorkerListener<P> + 'static) -> Self {
        self.listeners.push(Box::new(listener));
        self
    }

    /// Sets what happens when the action panics.
    #[must_use]
    pub const fn on_panic(mut self, policy: PanicPolicy) -> Self {
        self.on_panic = policy;
        self
    }

    /// Sets what happens after the back-off that follows an error.
    #[must_use]
    pub const fn on_error(mut self, policy: ErrorPolicy) -> Self {
        self.on_error = policy;
        self
    }

    /// The worker.
    ///
    /// # Panics
    ///
    /// If the pacing is not valid; the message names the field.
    #[must_use = "a worker does nothing until it is run"]
    pub fn build<A: WorkerAction<Payload = P>>(self, action: A) -> Worker<A> {
        let bulkhead = self.bulkhead.unwrap_or_else(|| Bulkhead::new(&self.name, BulkheadConfig::default()));
        Worker {
            action,
            cancel: self.cancel,
            wakeups: Wakeups::new(self.notifiers),
            pace: Pace::new(self.pacing),
            bulkhead,
            listeners: Listeners { worker: self.name, all: self.listeners },
            on_panic: self.on_panic,
            on_error: self.on_error,
        }
    }
}

/// An action with its loop, ready to [`run`](Self::run).
pub struct Worker<A: WorkerAction> {
    action: A,
    cancel: CancellationToken,
    wakeups: Wakeups,
    pace: Pace,
    bulkhead: Bulkhead,
    listeners: Listeners<A::Payload>,
    on_panic: PanicPolicy,
    on_error: ErrorPolicy,
}

/// What the worker waits for before it executes again.
enum Wait {
    ForNotifier,
    Pace(Duration),
    Sleep(Duration),
    Backoff(Duration),
}

/// How an execution ended that did not end well.
enum Failure {
    Error(String),
    Panic(Box<dyn Any + Send>),
}

impl<A: WorkerAction> Worker<A> {
    /// The worker's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.listeners.worker
    }

    /// Waits, executes, waits, executes … until cancelled. Starts idle.
    ///
    /// # Panics
    ///
    /// With the action's own panic under [`PanicPolicy::Propagate`].
    pub async fn run(mut self) {
        self.listeners.tell(&|listener, worker| listener.on_start(worker));
        let mut next = Wait::ForNotifier;
        let panic = loop {
            if !self.wait(next).await {
                break None;
            }
            next = match self.execute_once().await {
                None => break None,
                Some((Ok(directive), took)) => self.completed(&directive, took),
                Some((Err(Failure::Panic(panic)), took)) if self.on_panic == PanicPolicy::Propagate => {
                    let (error, failures) = (panic_text(&*panic), self.bulkhead.failures().saturating_add(1));
                    // No back-off: there is no next time.
                    self.listeners.tell(&|listener, worker| {
                        listener.on_error(worker, &error, took, failures, Duration::ZERO);
                    });
                    break Some(panic);
                }
                Some((Err(Failure::Panic(panic)), took)) => self.failed(&panic_text(&*panic), took),
                Some((Err(Failure::Error(error)), took)) => self.failed(&error, took),
            };
        };
        self.listeners.tell(&|listener, worker| listener.on_stop(worker));
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Waits, and says whether to execute: false once cancelled.
    async fn wait(&mut self, wait: Wait) -> bool {
        let Self { cancel, wakeups, .. } = self;
        match wait {
            Wait::Pace(pace) if pace.is_zero() => {
                // No timer, but the other tasks of this thread get their turns.
                tokio::task::consume_budget().await;
                !cancel.is_cancelled()
            }
            Wait::Pace(pace) => cancel.run_until_cancelled(tokio::time::sleep(pace)).await.is_some(),
            Wait::Sleep(duration) => {
                self.listeners.tell(&|listener, worker| listener.on_sleep(worker, duration));
                let slept_or_woken = tokio::time::timeout(duration, wakeups.any());
                cancel.run_until_cancelled(slept_or_woken).await.is_some()
            }
            Wait::Backoff(backoff) => {
                // Notifications are kept meanwhile: they do not cut a back-off short.
                if cancel.run_until_cancelled(tokio::time::sleep(backoff)).await.is_none() {
                    return false;
                }
                match self.on_error {
                    ErrorPolicy::Retry => true,
                    ErrorPolicy::Idle => self.wait_for_notifier().await,
                }
            }
            Wait::ForNotifier => self.wait_for_notifier().await,
        }
    }

    async fn wait_for_notifier(&mut self) -> bool {
        self.listeners.tell(&|listener, worker| listener.on_idle(worker));
        self.cancel.run_until_cancelled(self.wakeups.any()).await.is_some()
    }

    /// One execution under its permit, with the time it took; `None` if cancelled before there was a permit.
    async fn execute_once(&mut self) -> Option<(Result<Directive<A::Payload>, Failure>, Duration)> {
        self.wakeups.stand_down();
        let permit = match self.cancel.run_until_cancelled(self.bulkhead.acquire()).await {
            Some(Ok(permit)) => permit,
            Some(Err(closed)) => {
                let error = format!("bulkhead {:?}: {closed}", self.bulkhead.name());
                return Some((Err(Failure::Error(error)), Duration::ZERO));
            }
            None => {
                self.wakeups.hand_on();
                return None;
            }
        };
        self.wakeups.rearm();
        self.listeners.tell(&|listener, worker| listener.on_execute_start(worker));
        let started = Instant::now();
        let execution = async { self.action.execute(&self.cancel).await.map_err(|error| error.to_string()) };
        let result = match catch_panic(execution).await {
            Ok(Ok(directive)) => Ok(directive),
            Ok(Err(error)) => Err(Failure::Error(error)),
            Err(panic) => Err(Failure::Panic(panic)),
        };
        drop(permit);
        Some((result, started.elapsed()))
    }

    fn completed(&mut self, directive: &Directive<A::Payload>, took: Duration) -> Wait {
        self.bulkhead.record_success();
        self.listeners.tell(&|listener, worker| listener.on_complete(worker, directive, took));
        match directive {
            Directive::Proceed(_) => Wait::Pace(self.pace.step()),
            Directive::Sleep(duration, _) => Wait::Sleep(*duration),
            Directive::Idle(_) => {
                self.pace.reset();
                Wait::ForNotifier
            }
        }
    }

    fn failed(&mut self, error: &str, took: Duration) -> Wait {
        self.pace.reset();
        let backoff = self.bulkhead.record_failure();
        let failures = self.bulkhead.failures();
        self.listeners.tell(&|listener, worker| listener.on_error(worker, error, took, failures, backoff));
        Wait::Backoff(backoff)
    }
}

struct Listeners<P> {
    worker: String,
    all: Vec<Box<dyn WorkerListener<P>>>,
}

impl<P> Listeners<P> {
    /// Not generic: it would be compiled once per event and kind of worker.
    fn tell(&self, event: &dyn Fn(&dyn WorkerListener<P>, &str)) {
        for listener in &self.all {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| event(&**listener, &self.worker))) {
                tracing::error!(
                    worker = self.worker,
                    panic = panic_text(&*panic),
                    "a worker's listener panicked"
                );
            }
        }
    }
}
