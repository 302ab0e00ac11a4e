//! A clock that all processes of a run share, that never goes back, and that nobody sets: the databases' clocks do jump.

use nix::time::{ClockId, clock_gettime};

/// Microseconds since the machine was started.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has this clock");
    u64::try_from(time.tv_sec()).unwrap_or_default() * 1_000_000
        + u64::try_from(time.tv_nsec()).unwrap_or_default() / 1000
}

/// So many seconds, in microseconds.
pub const fn seconds(count: u64) -> u64 {
    count * 1_000_000
}

/// So many milliseconds, in microseconds.
pub const fn millis(count: u64) -> u64 {
    count * 1000
}
