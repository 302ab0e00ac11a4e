//! The modes of handling, for the tests that hold in more than one of them.

use posthaste::{
    LeaseConfig, LeasedHandler, LeasedQueueBuilder, OutboxBuilder, OutboxError, OutboxHandle, OutboxMessage,
    Partitions, QueueBuilder, TransactionalHandler, TransactionalMessageHandler, TransactionalQueueBuilder,
};
use sqlx::{PgPool, Postgres, postgres::PgArguments, query::Query};

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
    pub async fn assert_effects(self, pool: &PgPool) {
        if self != Self::Leased {
            assert_effects(pool).await;
        }
    }
}

/// Stamps tests, functions of a [`Mode`], for the modes in brackets: each mode in a module of its name, one call a file.
/// What `tokio::test` is to be told follows a test's name, in parentheses.
macro_rules! in_modes {
    ($([$($mode:ident),+]: $($test:ident $(($($how:tt)+))?),+;)+) => {
        mod leased {
            $($crate::postgres::modes::in_modes!(@stamp leased [$($mode)+] $($test $(($($how)+))?),+);)+
        }
        mod transactional {
            $($crate::postgres::modes::in_modes!(@stamp transactional [$($mode)+] $($test $(($($how)+))?),+);)+
        }
        mod batch {
            $($crate::postgres::modes::in_modes!(@stamp batch [$($mode)+] $($test $(($($how)+))?),+);)+
        }
    };
    (@stamp leased [leased $($more:ident)*] $($tests:tt)+) => {
        $crate::postgres::modes::in_modes!(@tests Leased: $($tests)+);
    };
    (@stamp transactional [transactional $($more:ident)*] $($tests:tt)+) => {
        $crate::postgres::modes::in_modes!(@tests Transactional: $($tests)+);
    };
    (@stamp batch [batch $($more:ident)*] $($tests:tt)+) => {
        $crate::postgres::modes::in_modes!(@tests Batch: $($tests)+);
    };
    (@stamp $mode:ident [$other:ident $($more:ident)*] $($tests:tt)+) => {
        $crate::postgres::modes::in_modes!(@stamp $mode [$($more)*] $($tests)+);
    };
    (@stamp $mode:ident [] $($tests:tt)+) => {};
    (@tests $mode:ident: $($test:ident $(($($how:tt)+))?),+) => {
        $(
            #[tokio::test $(($($how)+))?]
            async fn $test() {
                super::$test($crate::postgres::modes::Mode::$mode).await;
            }
        )+
    };
}
pub(crate) use in_modes;

/// A handler for every mode.
pub trait AnyHandler:
    LeasedHandler + TransactionalMessageHandler<Postgres> + TransactionalHandler<Postgres>
{
}

impl<H> AnyHandler for H where
    H: LeasedHandler + TransactionalMessageHandler<Postgres> + TransactionalHandler<Postgres>
{
}

pub trait InMode {
    /// Gives the queue its handler, in this mode.
    fn handled(self, mode: Mode, handler: impl AnyHandler) -> HandledQueue;
}

impl InMode for QueueBuilder<Postgres> {
    fn handled(self, mode: Mode, handler: impl AnyHandler) -> HandledQueue {
        match mode {
            Mode::Leased => HandledQueue::Leased(self.leased(handler)),
            Mode::Transactional => HandledQueue::Transactional(self.transactional(handler)),
            Mode::Batch => HandledQueue::Transactional(self.batch_transactional(handler)),
        }
    }
}

/// A queue with its handler, whatever the mode.
pub enum HandledQueue {
    Leased(LeasedQueueBuilder<Postgres>),
    Transactional(TransactionalQueueBuilder<Postgres>),
}

impl HandledQueue {
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

    pub fn queue(self, name: &str, partitions: Partitions) -> QueueBuilder<Postgres> {
        self.outbox().queue(name, partitions)
    }

    pub fn outbox(self) -> OutboxBuilder<Postgres> {
        match self {
            Self::Leased(queue) => queue.outbox(),
            Self::Transactional(queue) => queue.outbox(),
        }
    }

    pub async fn start(self) -> Result<OutboxHandle<Postgres>, OutboxError> {
        self.outbox().start().await
    }
}

/// Makes the table that transactional handlers write to. It has no unique key: nothing but the outbox keeps a message from
/// having its effect twice.
pub async fn make_effects(pool: &PgPool) {
    let sql = "CREATE TABLE effects (id BIGINT NOT NULL, partition_id INT NOT NULL, seq BIGINT NOT NULL)";
    sqlx::raw_sql(sql).execute(pool).await.expect("a table of effects");
}

/// Writes the effect of messages: a row each.
pub fn write_effects(messages: &[OutboxMessage]) -> Query<'static, Postgres, PgArguments> {
    let insert = "INSERT INTO effects (id, partition_id, seq) SELECT * FROM unnest($1::bigint[], $2::int[], $3::bigint[])";
    let ids: Vec<_> = messages.iter().map(|message| message.id.0).collect();
    let partitions: Vec<_> = messages.iter().map(|message| message.partition_id).collect();
    let seqs: Vec<_> = messages.iter().map(|message| message.seq).collect();
    sqlx::query(insert).bind(ids).bind(partitions).bind(seqs)
}

/// Counted by seqs, never by the rows of messages, which vacuum removes.
async fn assert_effects(pool: &PgPool) {
    const CURSORS: &str = "WITH cursors AS (SELECT DISTINCT ON (partition_id) partition_id, processed_seq
                           FROM posthaste_cursor ORDER BY partition_id, epoch DESC)";
    for (what, sql) in [
        ("a message has its effect twice", "SELECT id FROM effects GROUP BY id HAVING count(*) > 1"),
        (
            "a place in a partition has two effects",
            "SELECT seq FROM effects GROUP BY partition_id, seq HAVING count(*) > 1",
        ),
        (
            "a dead letter has an effect",
            "SELECT e.id FROM effects e JOIN posthaste_dead_letter d
             ON d.id = e.id OR (d.partition_id = e.partition_id AND d.seq = e.seq)",
        ),
        (
            "there is an effect, or a dead letter, of what is not settled",
            "SELECT e.seq FROM (SELECT partition_id, seq FROM effects
                                UNION ALL SELECT partition_id, seq FROM posthaste_dead_letter) e
             LEFT JOIN cursors c USING (partition_id) WHERE (e.seq BETWEEN 1 AND c.processed_seq) IS NOT TRUE",
        ),
        (
            "something that is settled has no effect and is no dead letter",
            "SELECT 1 FROM cursors c WHERE processed_seq <>
                 (SELECT count(*) FROM effects e WHERE e.partition_id = c.partition_id)
                 + (SELECT count(*) FROM posthaste_dead_letter d WHERE d.partition_id = c.partition_id)",
        ),
    ] {
        let sql = sqlx::AssertSqlSafe(format!("{CURSORS} SELECT count(*) FROM ({sql}) t"));
        let found: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count");
        assert_eq!(found, 0, "{what}");
    }
}
