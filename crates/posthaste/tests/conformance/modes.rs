//! The modes of handling, for the tests that hold in more than one of them.

use posthaste::{
    Backend, LeaseConfig, LeasedHandler, LeasedQueueBuilder, OutboxBuilder, OutboxError, OutboxHandle,
    Partitions, QueueBuilder, TransactionalHandler, TransactionalMessageHandler, TransactionalQueueBuilder,
};
use sqlx::Pool;

use crate::{
    dialect::Dialect,
    stage::{NEWEST_LINKS, count, run},
};

/// How a queue is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Leased,
    /// In the transaction that moves the cursor, message by message.
    Transactional,
    /// The same, batch by batch.
    Batch,
}

impl Mode {
    /// The module that this mode's tests are stamped into.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Leased => "leased",
            Self::Transactional => "transactional",
            Self::Batch => "batch",
        }
    }

    /// G3, to be called once the workers are gone: whatever happened, each message that is settled has its effect exactly
    /// once, and each dead letter none. Under a lease there are no effects to count.
    pub async fn assert_effects<DB: Dialect>(self, pool: &Pool<DB>) {
        if self != Self::Leased {
            assert_effects(pool).await;
        }
    }
}

/// A handler for every mode.
pub trait AnyHandler<DB: Backend>:
    LeasedHandler + TransactionalMessageHandler<DB> + TransactionalHandler<DB>
{
}

impl<DB: Backend, H> AnyHandler<DB> for H where
    H: LeasedHandler + TransactionalMessageHandler<DB> + TransactionalHandler<DB>
{
}

pub trait InMode<DB: Backend> {
    /// Gives the queue its handler, in this mode.
    fn handled(self, mode: Mode, handler: impl AnyHandler<DB>) -> HandledQueue<DB>;
}

impl<DB: Backend> InMode<DB> for QueueBuilder<DB> {
    fn handled(self, mode: Mode, handler: impl AnyHandler<DB>) -> HandledQueue<DB> {
        match mode {
            Mode::Leased => HandledQueue::Leased(self.leased(handler)),
            Mode::Transactional => HandledQueue::Transactional(self.transactional(handler)),
            Mode::Batch => HandledQueue::Transactional(self.batch_transactional(handler)),
        }
    }
}

/// A queue with its handler, whatever the mode.
pub enum HandledQueue<DB: Backend> {
    Leased(LeasedQueueBuilder<DB>),
    Transactional(TransactionalQueueBuilder<DB>),
}

impl<DB: Backend> HandledQueue<DB> {
    pub fn lease(self, lease: LeaseConfig) -> Self {
        match self {
            Self::Leased(queue) => Self::Leased(queue.lease(lease)),
            Self::Transactional(queue) => Self::Transactional(queue.lease(lease)),
        }
    }

    pub fn max_attempts(self, attempts: u32) -> Self {
        match self {
            Self::Leased(queue) => Self::Leased(queue.max_attempts(attempts)),
            Self::Transactional(queue) => Self::Transactional(queue.max_attempts(attempts)),
        }
    }

    pub fn queue(self, name: &str, partitions: Partitions) -> QueueBuilder<DB> {
        self.outbox().queue(name, partitions)
    }

    pub fn outbox(self) -> OutboxBuilder<DB> {
        match self {
            Self::Leased(queue) => queue.outbox(),
            Self::Transactional(queue) => queue.outbox(),
        }
    }

    pub async fn start(self) -> Result<OutboxHandle<DB>, OutboxError> {
        self.outbox().start().await
    }
}

/// The table that transactional handlers write to. It has no unique key: nothing but the outbox keeps a message from having
/// its effect twice.
pub const EFFECTS: &str =
    "CREATE TABLE effects (id BIGINT NOT NULL, partition_id INT NOT NULL, seq BIGINT NOT NULL)";

pub async fn make_effects<DB: Dialect>(pool: &Pool<DB>) {
    run(pool, EFFECTS).await;
}

/// Counted by seqs, never by the rows of messages, which vacuum removes.
async fn assert_effects<DB: Dialect>(pool: &Pool<DB>) {
    for (what, sql) in [
        (
            "a message has its effect twice",
            "SELECT id FROM effects GROUP BY id HAVING count(*) > 1".to_owned(),
        ),
        (
            "a place in a partition has two effects",
            "SELECT seq FROM effects GROUP BY partition_id, seq HAVING count(*) > 1".to_owned(),
        ),
        (
            "a dead letter has an effect",
            "SELECT e.id FROM effects e JOIN posthaste_dead_letter d
             ON d.id = e.id OR (d.partition_id = e.partition_id AND d.seq = e.seq)"
                .to_owned(),
        ),
        (
            "there is an effect, or a dead letter, of what is not settled",
            format!(
                "SELECT e.seq FROM (SELECT partition_id, seq FROM effects
                                    UNION ALL SELECT partition_id, seq FROM posthaste_dead_letter) e
                 LEFT JOIN {NEWEST_LINKS} AS c ON c.partition_id = e.partition_id
                 WHERE (e.seq BETWEEN 1 AND c.processed_seq) IS NOT TRUE"
            ),
        ),
        (
            "something that is settled has no effect and is no dead letter",
            format!(
                "SELECT 1 AS n FROM {NEWEST_LINKS} AS c WHERE processed_seq <>
                     (SELECT count(*) FROM effects e WHERE e.partition_id = c.partition_id)
                     + (SELECT count(*) FROM posthaste_dead_letter d WHERE d.partition_id = c.partition_id)"
            ),
        ),
    ] {
        assert_eq!(count(pool, &format!("SELECT count(*) FROM ({sql}) t")).await, 0, "{what}");
    }
}
