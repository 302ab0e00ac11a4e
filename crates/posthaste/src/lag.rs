//! How far partitions are behind.

use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

/// How far a partition is behind, as the database has it at one moment. See [`Outbox::lag`](crate::Outbox::lag).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartitionLag {
    /// Its queue.
    pub queue: Arc<str>,
    /// Which of the queue's partitions it is, from 0.
    pub partition: u32,
    /// Its number among the partitions of all queues.
    pub partition_id: i32,
    /// The seq of the last message that has one; 0 if none ever had.
    pub head_seq: i64,
    /// How far it is settled.
    pub cursor_seq: i64,
    /// How many messages are between the two. Those that have no seq yet are not among them.
    pub depth: u64,
    /// The age of its oldest message that is not settled, by the database's clock; none if there is none. Messages that
    /// committed but have no seq yet count, the first 1000 of all partitions: if more than that wait for the sequencer, a
    /// partition whose own come later shows none of them.
    pub oldest: Option<Duration>,
    /// Who has its lease, if anybody: see [`OutboxHandle::worker_id`](crate::OutboxHandle::worker_id).
    pub owner: Option<WorkerId>,
    /// How long that lease lasts unless it is renewed.
    pub lease_left: Option<Duration>,
    /// Tries of the message behind the cursor, the one under way included.
    pub attempts: u32,
    /// Why the last of them failed, if it said so.
    pub last_error: Option<String>,
    /// Nothing of its queue is delivered until it is resumed.
    pub is_paused: bool,
}

/// Names a start of a process with workers, among all that work on an outbox: the owner of its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub(crate) Uuid);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
