//! What keeps one worker's trouble away from the others: a limit on concurrency, and back-off after errors.

use std::{sync::Arc, time::Duration};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::BackoffConfig;

/// How many executions may run at once, shared by all workers that hold the same semaphores.
#[derive(Debug, Clone, Default)]
pub enum ConcurrencyLimit {
    /// No limit.
    #[default]
    Unlimited,
    /// One permit of this semaphore an execution.
    Fixed(Arc<Semaphore>),
    /// A shared permit if one is free, else a guaranteed one, else whichever comes first. The guaranteed permits
    /// are for one kind of worker, so that the others can slow it down but not starve it.
    Tiered {
        /// Permits for this kind of worker alone.
        guaranteed: Arc<Semaphore>,
        /// Permits that several kinds of workers compete for.
        shared: Arc<Semaphore>,
    },
}

impl ConcurrencyLimit {
    /// [`ConcurrencyLimit::Fixed`] with a new semaphore of that many permits.
    ///
    /// # Panics
    ///
    /// If `permits` is zero: no worker would ever run.
    #[must_use]
    pub fn fixed(permits: usize) -> Self {
        assert!(permits > 0, "ConcurrencyLimit: permits must not be zero");
        Self::Fixed(Arc::new(Semaphore::new(permits)))
    }

    /// Waits for the right to execute.
    ///
    /// # Errors
    ///
    /// If somebody closed the semaphore: no permit will ever come.
    pub async fn acquire(&self) -> Result<Permit, LimitClosed> {
        let held = match self {
            Self::Unlimited => None,
            Self::Fixed(semaphore) => Some(take(semaphore).await?),
            Self::Tiered { guaranteed, shared } => {
                if let Ok(permit) = Arc::clone(shared).try_acquire_owned() {
                    Some(permit)
                } else if let Ok(permit) = Arc::clone(guaranteed).try_acquire_owned() {
                    Some(permit)
                } else {
                    // The one that is not chosen leaves its queue; a permit it was just given goes to the next.
                    // One that was closed is as good as not there.
                    let either = tokio::select! {
                        biased;
                        Ok(permit) = take(shared) => Ok(permit),
                        Ok(permit) = take(guaranteed) => Ok(permit),
                        else => Err(LimitClosed),
                    };
                    Some(either?)
                }
            }
        };
        Ok(Permit { _held: held })
    }
}

async fn take(semaphore: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, LimitClosed> {
    Arc::clone(semaphore).acquire_owned().await.map_err(|_| LimitClosed)
}

/// The right to execute; dropping it gives it back.
#[derive(Debug)]
pub struct Permit {
    _held: Option<OwnedSemaphorePermit>,
}

/// Every semaphore behind a [`ConcurrencyLimit`] was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the semaphore of the concurrency limit was closed")]
pub struct LimitClosed;

/// The settings of a [`Bulkhead`].
#[derive(Debug, Clone, Default)]
pub struct BulkheadConfig {
    /// How many executions run at once.
    pub semaphore: ConcurrencyLimit,
    /// How long to stay away after errors.
    pub backoff: BackoffConfig,
}

/// What keeps one worker's trouble away from the others. Each worker has its own; the semaphores inside are shared.
#[derive(Debug)]
pub struct Bulkhead {
    name: String,
    config: BulkheadConfig,
    failures: u32,
}

impl Bulkhead {
    /// A bulkhead; the name is part of its errors.
    ///
    /// # Panics
    ///
    /// If the back-off is not valid; the message names the field.
    #[must_use]
    pub fn new(name: impl Into<String>, config: BulkheadConfig) -> Self {
        config.backoff.validate();
        Self { name: name.into(), config, failures: 0 }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    /// Waits for the right to execute.
    ///
    /// # Errors
    ///
    /// If the semaphore was closed.
    pub async fn acquire(&self) -> Result<Permit, LimitClosed> {
        self.config.semaphore.acquire().await
    }

    /// Resets the back-off.
    pub const fn record_success(&mut self) {
        self.failures = 0;
    }

    /// Counts a failure and says how long to stay away.
    pub fn record_failure(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        self.config.backoff.jittered_delay(self.failures)
    }
}
