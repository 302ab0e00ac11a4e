//! Time that all processes of this machine share.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Since some moment before this machine's first process.
pub fn now() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default()
}
