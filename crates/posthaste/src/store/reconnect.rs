//! Paces the attempts to connect while a database is down.
//!
//! All connections of a process share one [`Reconnect`]. Workers retry on their own schedules. Without it each of them
//! would connect, and flood the server with attempts when it comes back.

use std::{
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::OutboxError;

#[derive(Debug)]
pub(crate) struct Reconnect {
    /// The longest time between two attempts; the shortest is half of it.
    interval: Duration,
    failing: Mutex<Option<Failing>>,
}

/// The last attempt failed.
#[derive(Debug)]
struct Failing {
    /// When the next attempt may begin.
    next: Instant,
    error: String,
    is_retryable: bool,
}

impl Reconnect {
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, failing: Mutex::new(None) }
    }

    /// Begins an attempt. While attempts fail, only one per interval may begin. Any further attempt fails at once, with
    /// an error of the same kind.
    pub(crate) fn begin(&self) -> Result<(), OutboxError> {
        let mut failing = self.lock();
        let Some(Failing { next, error, is_retryable }) = &mut *failing else { return Ok(()) };
        let now = Instant::now();
        if now < *next {
            let error = io::Error::new(io::ErrorKind::NotConnected, format!("not connected: {error}"));
            let error =
                if *is_retryable { sqlx::Error::Io(error) } else { sqlx::Error::Configuration(error.into()) };
            return Err(error.into());
        }
        *next = now + self.pause();
        Ok(())
    }

    pub(crate) fn ended<T>(&self, attempt: &Result<T, OutboxError>) {
        *self.lock() = attempt.as_ref().err().map(|error| {
            let (next, is_retryable) = (Instant::now() + self.pause(), error.is_retryable());
            Failing { next, error: error.to_string(), is_retryable }
        });
    }

    /// Jittered, so that the processes of a fleet do not connect in step.
    fn pause(&self) -> Duration {
        self.interval.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Failing>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn while_attempts_fail_one_may_begin_per_interval() {
        let reconnect = Reconnect::new(Duration::from_millis(500));
        assert!(reconnect.begin().is_ok() && reconnect.begin().is_ok(), "nothing has failed");
        reconnect.ended::<()>(&Err(sqlx::Error::WorkerCrashed.into()));
        let refused = reconnect.begin().unwrap_err();
        assert!(refused.is_retryable(), "{refused}");
        tokio::time::advance(Duration::from_millis(501)).await;
        assert!(reconnect.begin().is_ok());
        assert!(reconnect.begin().is_err(), "another attempt is under way");
        let mut attempts = 0;
        for _ in 0..5000 {
            tokio::time::advance(Duration::from_millis(1)).await;
            if reconnect.begin().is_ok() {
                attempts += 1;
                reconnect.ended::<()>(&Err(sqlx::Error::WorkerCrashed.into()));
            }
        }
        assert!((9..=20).contains(&attempts), "{attempts} attempts in 5 s");
        tokio::time::advance(Duration::from_millis(501)).await;
        assert!(reconnect.begin().is_ok());
        reconnect.ended::<()>(&Err(sqlx::Error::RowNotFound.into()));
        assert!(!reconnect.begin().unwrap_err().is_retryable(), "a wrong password is no outage");
        tokio::time::advance(Duration::from_millis(501)).await;
        assert!(reconnect.begin().is_ok());
        reconnect.ended(&Ok(()));
        assert!(reconnect.begin().is_ok() && reconnect.begin().is_ok(), "it is over");
    }
}
