//! A notifier that fires at an interval.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Spawns a task that notifies once every `interval`, for the first time after one interval, until cancelled.
///
/// A poke that finds the worker busy is kept, and the worker executes again right after; several of them count as
/// one. A poker serves one worker: give each its own.
///
/// # Panics
///
/// If `interval` is zero, or when called outside a tokio runtime.
#[must_use = "a poker that no worker listens to pokes nobody"]
pub fn poker(interval: Duration, cancel: CancellationToken) -> (Arc<Notify>, JoinHandle<()>) {
    assert!(!interval.is_zero(), "poker: interval must not be zero");
    let bell = Arc::new(Notify::new());
    let rings = Arc::clone(&bell);
    // Counted from the call, not from the task's first turn. An interval too long for the clock never ends.
    let Some(first) = Instant::now().checked_add(interval) else {
        return (bell, tokio::spawn(async move { cancel.cancelled().await }));
    };
    let mut beat = tokio::time::interval_at(first, interval);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let task = tokio::spawn(async move {
        while cancel.run_until_cancelled(beat.tick()).await.is_some() {
            rings.notify_one();
        }
    });
    (bell, task)
}
