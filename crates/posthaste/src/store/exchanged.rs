//! What the verbs are given, and what they return.

use std::{borrow::Cow, sync::Arc, time::Duration};

use sqlx::Transaction;
use uuid::Uuid;

use super::{Result, Taken};
use crate::{
    DeadLetterMessage, DeadLetterScope, OutboxError, OutboxMessage, OutboxMessageId, Partitions,
    telemetry::QueueMetrics,
};

/// A registered queue.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) name: Arc<str>,
    /// The ids of its partitions, in order.
    pub(crate) partition_ids: Vec<i32>,
    /// What is counted of it.
    pub(crate) metrics: QueueMetrics,
}

impl Queue {
    /// A queue of these partitions; none if it has none, since then nobody has registered it.
    pub(super) fn of(name: &str, partition_ids: Vec<i32>) -> Option<Self> {
        (!partition_ids.is_empty()).then(|| {
            let metrics = QueueMetrics::of(name);
            Self { name: Arc::from(name), partition_ids, metrics }
        })
    }

    /// What was found after it was registered, if it has as many partitions as it should.
    pub(super) fn registered(found: Option<Self>, name: &str, partitions: Partitions) -> Result<Self> {
        let queue = found.ok_or_else(|| OutboxError::QueueNotRegistered(name.to_owned()))?;
        let (expected, found) = (partitions.count(), queue.count());
        if found == expected {
            return Ok(queue);
        }
        Err(OutboxError::PartitionCountMismatch { queue: name.to_owned(), expected, found })
    }

    pub(crate) fn count(&self) -> u32 {
        u32::try_from(self.partition_ids.len()).unwrap_or(u32::MAX)
    }

    /// The id of one of its partitions, which are numbered from 0.
    pub(crate) fn partition_id(&self, partition: u32) -> Result<i32> {
        let place = usize::try_from(partition).unwrap_or(usize::MAX);
        self.partition_ids.get(place).copied().ok_or_else(|| OutboxError::PartitionOutOfRange {
            queue: self.name.to_string(),
            partition,
            max: self.count().saturating_sub(1),
        })
    }

    /// Which of its partitions this is, from 0.
    pub(crate) fn number_of(&self, partition_id: i32) -> u32 {
        let number = self.partition_ids.iter().position(|id| *id == partition_id);
        number.and_then(|number| number.try_into().ok()).unwrap_or_default()
    }
}

/// A validated message on its way in.
pub(crate) struct NewMessage<'a> {
    pub(crate) partition_id: i32,
    pub(crate) payload_type: Cow<'a, str>,
    pub(crate) key: Option<Cow<'a, str>>,
    /// As JSON, if there are any.
    pub(crate) headers: Option<String>,
    pub(crate) payload: Cow<'a, [u8]>,
}

impl NewMessage<'_> {
    /// The same, for a task that outlives the caller's borrow.
    pub(crate) fn into_owned(self) -> NewMessage<'static> {
        NewMessage {
            partition_id: self.partition_id,
            payload_type: Cow::Owned(self.payload_type.into_owned()),
            key: self.key.map(|key| Cow::Owned(key.into_owned())),
            headers: self.headers,
            payload: Cow::Owned(self.payload.into_owned()),
        }
    }
}

impl<'a> NewMessage<'a> {
    /// A dead letter on its way back.
    pub(crate) fn again(dead: &'a DeadLetterMessage) -> Result<Self> {
        let headers = (!dead.headers.is_empty()).then(|| serde_json::to_string(&dead.headers)).transpose()?;
        Ok(Self {
            partition_id: dead.partition_id,
            payload_type: Cow::Borrowed(&dead.payload_type),
            key: dead.key.as_deref().map(Cow::Borrowed),
            headers,
            payload: Cow::Borrowed(&dead.payload),
        })
    }
}

/// What became of an enqueue.
#[derive(Debug)]
pub(crate) struct Enqueued {
    /// In the order of the messages.
    pub(crate) ids: Vec<i64>,
    /// By which a tick can tell whether the transaction has ended.
    pub(crate) ticket: Ticket,
}

/// Names a producer's transaction while it may still be open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ticket(pub(crate) u64);

/// Which transactions had ended when a tick looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Horizon {
    /// All but those from `next` on, and the `open` ones.
    Snapshot { next: u64, open: Vec<u64> },
    /// These. Of others nothing is known: they are open, or rolled back, or another process has seen them.
    Seen(Vec<u64>),
    /// All there were.
    Everything,
}

impl Horizon {
    pub(crate) fn has_passed(&self, ticket: Ticket) -> bool {
        match self {
            Self::Snapshot { next, open } => ticket.0 < *next && !open.contains(&ticket.0),
            Self::Seen(seen) => seen.contains(&ticket.0),
            Self::Everything => true,
        }
    }

    /// Whether a transaction that has not passed may have ended all the same.
    pub(crate) const fn is_vague(&self) -> bool {
        matches!(self, Self::Seen(_))
    }
}

impl Default for Horizon {
    fn default() -> Self {
        Self::Seen(Vec::new())
    }
}

/// What a tick did.
#[derive(Debug, Default)]
pub(crate) struct Tick {
    /// How many messages got their seq.
    pub(crate) taken: u64,
    /// In which partitions.
    pub(crate) partitions: Vec<i32>,
    /// There is more that it left for the next one.
    pub(crate) has_more: bool,
    /// Another process is at it, or was faster.
    pub(crate) is_busy: bool,
    /// The tables were restored from elsewhere: recover first.
    pub(crate) needs_recovery: bool,
    pub(crate) horizon: Horizon,
}

/// Whose turn it is to process which partition, and for how long.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) partition_id: i32,
    pub(crate) owner: Uuid,
    pub(crate) lease: Duration,
    pub(crate) batch_size: u32,
    /// The last epoch that a handler was called for.
    pub(crate) handled_epoch: i64,
    /// The handler works in the transaction that settles. Nobody takes over from it while that is open, and what is
    /// settled is as durable as the role's other commits.
    pub(crate) is_transactional: bool,
}

/// A batch under a lease.
#[derive(Debug)]
pub(crate) struct Leased {
    /// The fencing token.
    pub(crate) epoch: i64,
    /// How far the partition is settled: the batch begins right behind.
    pub(crate) processed_seq: i64,
    /// Tries of the first message, this one included.
    pub(crate) attempts: u32,
    /// Why the last try failed, if it did.
    pub(crate) last_error: Option<String>,
    /// In the order of their seqs, without a hole.
    pub(crate) messages: Vec<OutboxMessage>,
}

/// What came of asking for a lease.
#[derive(Debug)]
pub(crate) enum Acquired {
    Batch(Leased),
    /// Nothing is behind the cursor.
    Empty,
    /// The queue is paused.
    Paused,
    /// Somebody else holds it for so long.
    Held(Duration),
    /// A handler's transaction has it locked, although its lease is over.
    Locked,
    /// Somebody else was faster, just now.
    Raced,
}

/// A message to bury.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Burial {
    pub(crate) id: i64,
    pub(crate) seq: i64,
    pub(crate) reason: String,
    pub(crate) attempts: u32,
}

/// How a batch ended.
#[derive(Debug, Clone)]
pub(crate) struct Settlement {
    pub(crate) epoch: i64,
    /// How far the partition is settled now.
    pub(crate) processed_seq: i64,
    pub(crate) burials: Vec<Burial>,
    /// Tries of the message behind that, and why the last one failed; if the lease is let go.
    pub(crate) attempts: u32,
    pub(crate) last_error: Option<String>,
    /// How long no process may try that message; if the lease is let go.
    pub(crate) backoff: Option<Duration>,
    /// Renew the lease and read on, if there is more.
    pub(crate) go_on: bool,
}

/// What came of settling.
#[derive(Debug)]
pub(crate) enum Settled {
    /// The lease goes on, with the next batch.
    Next(Leased),
    /// The lease was let go; whether messages are left.
    Released { has_more: bool },
    /// The lease had been taken over: nothing was changed.
    Lost,
}

/// A connection that handlers work on.
pub(crate) struct Handling<DB: sqlx::Database> {
    pub(crate) conn: Taken<DB>,
    /// Its session may have traces of a handler.
    pub(crate) is_used: bool,
}

/// The session that a handler works in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Session {
    /// By which the database knows it.
    pub(crate) id: i64,
    /// When the handler's transaction began, in microseconds by the database's clock.
    pub(crate) began: i64,
}

/// What came of beginning a handler's transaction.
pub(crate) enum Begun<'c, DB: sqlx::Database> {
    /// The partition is locked, the lease is still ours, and a savepoint is set.
    Transaction { transaction: Transaction<'c, DB>, session: Session },
    /// Somebody else has the partition locked.
    Locked,
    /// The lease was taken over.
    Lost,
}

/// What came of releasing a savepoint, or going back to it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    Yes,
    /// The database refuses what the handler wrote.
    Refused(String),
    /// The savepoint is gone: the handler has ended the transaction, or the database has.
    TransactionEnded,
}

/// How far vacuum got in a partition, as far as it remembers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trimmed {
    pub(crate) partition_id: i32,
    /// The newest link when all that could be removed was removed; -1 if it never was.
    pub(crate) seen_epoch: i64,
    /// No link before this one is left.
    pub(crate) first_epoch: i64,
    /// No segment up to here is left.
    pub(crate) after_seq: i64,
}

/// What a look at the partitions found.
#[derive(Debug)]
pub(crate) struct Surveyed {
    /// Of those whose cursors moved.
    pub(crate) remains: Vec<Remains>,
    /// Which start of which server says so, if any cursor moved.
    pub(crate) server: Option<i64>,
}

/// What is left of a partition, settled or not.
#[derive(Debug, Clone)]
pub(crate) struct Remains {
    pub(crate) partition_id: i32,
    pub(crate) first_epoch: i64,
    pub(crate) newest_epoch: i64,
    /// Of the first segment's first message.
    pub(crate) first_seq: i64,
    pub(crate) settled_seq: i64,
    pub(crate) head_seq: i64,
}

/// What to remove from a partition: links, segments that end in the range, and the messages of these.
#[derive(Debug)]
pub(crate) struct Trim {
    pub(crate) partition_id: i32,
    pub(crate) first_epoch: i64,
    /// This one stays.
    pub(crate) end_epoch: i64,
    pub(crate) after_seq: i64,
    pub(crate) to_seq: i64,
}

/// What was removed.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) messages: u64,
    pub(crate) ticks: u64,
    /// No tick before this one is left.
    pub(crate) next_tick: i64,
    /// Which start of which server says so.
    pub(crate) server: i64,
}

/// What a look at some messages found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suspects {
    pub(crate) ids: Vec<i64>,
    /// The first and the last message that was looked at, if there were any.
    pub(crate) window: Option<(i64, i64)>,
    /// These were the last there are.
    pub(crate) is_end: bool,
}

/// Which dead letters are meant.
#[derive(Debug)]
pub(crate) struct Selection<'s> {
    pub(crate) scope: &'s DeadLetterScope,
    /// Only those behind this one.
    pub(crate) after: Option<OutboxMessageId>,
    /// Only those in this state; in any, if there is none.
    pub(crate) state: Option<RowState>,
    pub(crate) limit: i64,
}

/// The state of a dead letter as its row has it: a claim that has run out is still written there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowState {
    Pending,
    Claimed,
    ClaimRanOut,
    Resolved,
    Discarded,
}

/// What to do about rows that others have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    /// Nothing is locked, and nobody is waited for.
    None,
    /// Lock what is found, and leave out what others have locked.
    Skip,
    /// Lock what is found, and wait for others.
    Wait,
}

/// A dead letter that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Picked {
    pub(crate) id: i64,
    /// What it takes in memory, about.
    pub(crate) bytes: i64,
    /// Of the claim on it, if there is one, whether or not that has run out.
    pub(crate) token: Option<Uuid>,
}

/// What becomes of dead letters.
#[derive(Debug)]
pub(crate) enum Change<'c> {
    Claim { token: Uuid, timeout: Duration },
    Resolve,
    Reject { reason: &'c str },
    Discard,
}

/// What a partition has left: committed and not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsettled {
    /// Which of its queue's partitions this is, from 0.
    pub(crate) partition: u32,
    /// How many messages have their seqs.
    pub(crate) sequenced: u64,
    /// How many have none yet.
    pub(crate) unsequenced: u64,
    /// The first of them, in the order of delivery; none if its row is missing.
    pub(crate) first_id: Option<i64>,
    /// How old that is, by the database's clock.
    pub(crate) age: Duration,
    /// Tries of that message, the one under way included.
    pub(crate) attempts: u32,
    /// Why the last try failed, if it did.
    pub(crate) last_error: Option<String>,
}

/// How workers hear of what other processes did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewsChannel {
    /// The database tells them.
    Notified,
    /// They have to look.
    Polled,
}
