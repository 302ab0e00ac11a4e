//! Whether an outbox is well, and what ails it.

use std::{fmt, sync::Arc, time::Duration};

use crate::WorkerId;

/// Whether a running outbox is well. See [`OutboxHandle::health`](crate::OutboxHandle::health).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Whether the database answers.
    pub database: DatabaseHealth,
    /// Whether new messages get their order.
    pub sequencer: SequencerHealth,
    /// The partitions of all queues, of other processes too, that make no progress although they have work; in the order of
    /// their queues' names. Empty if the database does not answer: then nobody knows.
    pub stalled: Vec<Stall>,
    /// The queues that are paused, of which nothing is delivered until they are resumed: they are not stalled.
    pub paused: Vec<Arc<str>>,
}

impl Health {
    /// Nobody knows how far anything is.
    pub(crate) const fn unknown(error: String) -> Self {
        Self {
            database: DatabaseHealth::Unreachable { error },
            sequencer: SequencerHealth { is_alive: true, waiting: None },
            stalled: Vec::new(),
            paused: Vec::new(),
        }
    }

    /// Whether the process can do its work: the database answers, and the sequencer is alive.
    ///
    /// Stalled partitions and paused queues do not count. A message that its handler cannot cope with must not take a service out
    /// of rotation, where restarting it would not help and its other work would suffer: alert on [`stalled`](Self::stalled)
    /// instead.
    #[must_use]
    pub const fn is_ready(&self) -> bool {
        matches!(self.database, DatabaseHealth::Reachable { .. }) && self.sequencer.is_alive
    }
}

/// Whether the database answers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseHealth {
    /// It does.
    Reachable {
        /// How long it took to say how far the partitions are.
        took: Duration,
    },
    /// It does not, or not what was asked.
    Unreachable {
        /// What it says instead, or what is in the way.
        error: String,
    },
}

/// Whether new messages get their order, in whichever process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequencerHealth {
    /// This process has its sequencer, and no committed message has waited for its order for 5 s while it was the first in line. A
    /// transaction of a great many messages, or on SQLite one that keeps all others from writing, may take longer than that.
    pub is_alive: bool,
    /// For how long the same message has been seen to be the first in line; none if none waits, or nobody knows.
    pub waiting: Option<Duration>,
}

/// A partition that has had work for 5 s or more, and has not settled any of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall {
    /// Its queue.
    pub queue: Arc<str>,
    /// Which of the queue's partitions it is, from 0.
    pub partition: u32,
    /// How many messages wait behind its cursor.
    pub depth: u64,
    /// For how long it has been seen to stand still; it may have stood for longer before this process looked.
    pub since: Duration,
    /// Why, as far as can be told.
    pub cause: StallCause,
}

/// Why a partition stands still.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StallCause {
    /// Its next message was tried, and is tried again.
    Retrying {
        /// How often, a try under way included.
        attempts: u32,
        /// Why the last try failed; none if it did not say so, because its process died.
        last_error: Option<String>,
    },
    /// Somebody has its lease, and has not settled: the handler takes its time, or hangs, or its process is gone. A handler of this process
    /// that works in a transaction may go on beyond its lease.
    Leased {
        /// Who.
        owner: WorkerId,
        /// It is this process.
        is_here: bool,
        /// How long the lease lasts unless it is renewed.
        left: Duration,
    },
    /// Nobody has its lease, and this process has no processor for its queue: another one should.
    NoProcessorHere,
    /// Nobody has its lease, although this process has a processor for it: all processors that may run at once are busy with
    /// other partitions, or the database refuses, or a handler's transaction goes on beyond its lease in another process.
    NotTakenUp,
}

impl fmt::Display for StallCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retrying { attempts, last_error } => {
                write!(f, "its next message is at attempt {attempts}; ")?;
                match last_error {
                    Some(error) => write!(f, "the last one failed: {error}"),
                    None => write!(f, "the last one ended without a word"),
                }
            }
            Self::Leased { owner, is_here, left } => {
                let whose = if *is_here { "this process" } else { "another process" };
                write!(f, "leased by {whose} ({owner}), for another {:.1} s", left.as_secs_f32())
            }
            Self::NoProcessorHere => {
                write!(f, "nobody has its lease, and this process has no processor for it")
            }
            Self::NotTakenUp => write!(
                f,
                "nobody has its lease: all processors are busy, the database refuses, or a handler's transaction goes on \
                 beyond its lease"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stalled_partition_or_a_paused_queue_takes_nothing_out_of_rotation() {
        let mut health = Health::unknown("no".to_owned());
        assert!(!health.is_ready(), "without a database");
        health.database = DatabaseHealth::Reachable { took: Duration::ZERO };
        assert!(health.is_ready());
        let (queue, cause): (Arc<str>, _) = (Arc::from("q"), StallCause::NotTakenUp);
        health.paused.push(Arc::clone(&queue));
        health.stalled.push(Stall { queue, partition: 0, depth: 1, since: Duration::ZERO, cause });
        assert!(health.is_ready());
        health.sequencer.is_alive = false;
        assert!(!health.is_ready());
    }

    #[test]
    fn a_cause_is_told_in_words() {
        let retrying = |last_error| StallCause::Retrying { attempts: 3, last_error }.to_string();
        assert_eq!(
            retrying(Some("no".to_owned())),
            "its next message is at attempt 3; the last one failed: no"
        );
        assert_eq!(retrying(None), "its next message is at attempt 3; the last one ended without a word");
        let owner = WorkerId(uuid::Uuid::nil());
        let leased = StallCause::Leased { owner, is_here: false, left: Duration::from_millis(1500) };
        assert_eq!(
            leased.to_string(),
            "leased by another process (00000000-0000-0000-0000-000000000000), for another 1.5 s"
        );
    }
}
