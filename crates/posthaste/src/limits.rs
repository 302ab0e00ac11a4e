//! Every size that is a promise, and the limits of what can be configured. Durations: [`Timings`](crate::timings::Timings).

use std::time::Duration;

/// The most partitions a queue can have.
pub const MAX_PARTITIONS: u32 = 64;
/// The longest queue name, in bytes.
pub const MAX_QUEUE_NAME: usize = 128;
/// The longest payload type, in bytes.
pub const MAX_PAYLOAD_TYPE: usize = 255;
/// The longest key, in bytes.
pub const MAX_KEY: usize = 255;
/// The most headers of a message.
pub const MAX_HEADERS: usize = 64;
/// The most bytes that the headers of a message have together, names and values.
pub const MAX_HEADER_BYTES: usize = 16 * 1024;
/// The longest reason of a retry or a dead letter, in bytes; what is longer is cut.
pub const MAX_REASON: usize = 4 * 1024;

/// The most messages that a look at a queue returns.
pub const MAX_BROWSE_LIMIT: u32 = 1000;

/// The largest payload, in bytes, unless the builder says otherwise.
pub const DEFAULT_MAX_PAYLOAD: usize = 1024 * 1024;
/// How long a lease lasts unless the queue or the tuning says otherwise.
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(30);
/// The longest lease: what a crash costs at most.
pub const MAX_LEASE_DURATION: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long before a lease's end its handler is dropped.
pub const DEFAULT_LEASE_HEADROOM: Duration = Duration::from_secs(2);
/// How many processors run at once.
pub const DEFAULT_PROCESSORS: usize = 4;
/// How many ticks the sequencer does in one go before it yields.
pub const DEFAULT_MAX_INNER_ITERATIONS: u32 = 8;
/// How many permits for maintenance only the sequencer may use.
pub const DEFAULT_GUARANTEED_MAINTENANCE: usize = 2;
/// How many permits for maintenance the sequencer and the vacuum share.
pub const DEFAULT_SHARED_MAINTENANCE: usize = 1;
/// How often the statistics are logged.
pub const DEFAULT_STATS_INTERVAL: Duration = Duration::from_secs(60);
/// How long `stop` waits for handlers.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(30);

/// How many dead letters are listed, claimed or otherwise dealt with at once, unless said otherwise.
pub const DEFAULT_DEAD_LETTER_LIMIT: u32 = 100;
/// The most of them, whatever is said.
pub const MAX_DEAD_LETTER_LIMIT: u32 = 10_000;
/// How long a dead letter can be claimed.
pub const MAX_CLAIM_TIMEOUT: Duration = Duration::from_secs(7 * 24 * 3600);
/// How much memory dead letters that are read at once may take, about, in bytes.
pub(crate) const MAX_DEAD_LETTER_PAGE_BYTES: i64 = 16 * 1024 * 1024;

/// The most savepoints in one transaction: beyond 64 every other session pays for looking at them.
pub(crate) const MAX_SAVEPOINTS: u32 = 50;
/// The most messages of a segment, and on MySQL of a run without seqs; `tick.sql` and `recover.sql` say the same.
pub(crate) const SEGMENT: i64 = 256;
