//! Every limit and interval that is a promise, in one place.

use std::time::Duration;

/// The most partitions a queue can have.
pub const MAX_PARTITIONS: u32 = 64;

/// How long a lease lasts unless the queue or the tuning says otherwise.
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(30);
