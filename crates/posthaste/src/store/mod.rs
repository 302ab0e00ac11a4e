//! The only door to a database: a verb a method. No SQL outside of here, no scheduling or retry policy inside.

mod answer;
mod batch;
mod connections;
mod criteria;
mod dead_letters;
mod exchanged;
mod failure;
mod lag;
mod peeked;
mod reconnect;
mod remains;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod segments;
mod statements;
mod tables;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod together;

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::{sync::Arc, time::Duration};

use sqlx::{Pool, Transaction, pool::PoolConnection};
use uuid::Uuid;

#[cfg(test)]
pub(crate) use self::segments::segments;
pub use self::tables::Tables;
pub(crate) use self::{
    connections::Taken,
    exchanged::{
        Acquired, Begun, Burial, Change, Claim, Enqueued, Handling, Horizon, Kept, Leased, Lock, NewMessage,
        NewsChannel, Picked, Queue, Remains, Removed, RowState, Selection, Session, Settled, Settlement,
        Surveyed, Suspects, Tick, Ticket, Trim, Trimmed, Unsettled,
    },
    failure::Failure,
    lag::Lagging,
};
use crate::{
    DeadLetterMessage, OutboxError, OutboxMessage, OutboxMessageId, Partitions, enqueued::EnqueuedMessage,
    timings::Timings, wake::Wake,
};

type Result<T, E = OutboxError> = std::result::Result<T, E>;

/// The one reader of a queue there is so far.
pub(crate) const READER: &str = "default";

/// A database that posthaste works on. Sealed: the SQL behind it is the library's.
pub trait Backend: sqlx::Database + sealed::Sealed {
    #[doc(hidden)]
    #[expect(private_bounds, reason = "sealed: only this crate names the store")]
    type Store: Store<Db = Self>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The verbs. One implementation a database; the same words in Rust, in SQL and in the tests.
pub(crate) trait Store: Clone + Send + Sync + 'static {
    type Db: Backend<Store = Self>;

    /// Whether a connection is as good as before after a call on it was dropped half-way.
    const CANCELS_CLEANLY: bool;

    /// How a transaction begins that only looks, on a connection of the caller's, and sees the same all the time.
    const BEGIN_TO_READ: &'static str;

    /// How a transaction of ours begins that is going to write, on a connection of the caller's.
    const BEGIN_TO_WRITE: &'static str;

    /// What to say if a handler's transaction has ended before we end it.
    const TRANSACTION_ENDED: &'static str;

    /// Creates or upgrades the tables.
    fn migrate(pool: &Pool<Self::Db>, tables: &Tables) -> impl Future<Output = Result<()>> + Send;

    /// The SQL that `migrate` would run on an empty database.
    fn migration_sql(tables: &Tables) -> String;

    /// The SQL that `drop_tables` runs.
    fn drop_sql(tables: &Tables) -> String;

    /// Removes the tables, with all that is in them.
    fn drop_tables(pool: &Pool<Self::Db>, tables: &Tables) -> impl Future<Output = Result<()>> + Send;

    /// A store on tables that are there and fit; `workers` is how many connections it may open for workers, `handlers`
    /// how many for handlers that work in transactions.
    fn open(
        pool: Pool<Self::Db>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> impl Future<Output = Result<Self>> + Send;

    /// The durations that it was opened with, which are those of its workers.
    fn timings(&self) -> &Timings;

    /// What only the sequencer needs to be true of the database.
    fn check_suitable(&self) -> impl Future<Output = Result<()>> + Send;

    /// Finds out how news travels between processes, and prepares the worker connections for it.
    fn probe_news_channel(&self) -> impl Future<Output = Result<NewsChannel>> + Send;

    fn register_queue(
        &self,
        name: &str,
        partitions: Partitions,
    ) -> impl Future<Output = Result<Queue>> + Send;

    /// On the caller's connection, so that a pool of one is enough.
    fn find_queue(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        name: &str,
    ) -> impl Future<Output = Result<Option<Queue>>> + Send;

    /// Pauses a queue, or resumes it.
    fn pause(&self, queue: &str, is_paused: bool) -> impl Future<Output = Result<()>> + Send;

    /// Whether a queue is paused, as far as can be found out without waiting for others.
    fn is_paused(&self, queue: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Writes messages, all or none, on the caller's connection.
    fn enqueue(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        messages: &[NewMessage<'_>],
    ) -> impl Future<Output = Result<Enqueued>> + Send;

    /// A connection of the caller's pool, for us to enqueue on. Where connections are held for as long as writers wait for each
    /// other, it takes as long as that may.
    fn lend(&self, pool: &Pool<Self::Db>) -> impl Future<Output = Result<PoolConnection<Self::Db>>> + Send;

    /// A transaction for the caller's own statements, on a connection of this pool; where [`CANCELS_CLEANLY`] says that it can
    /// be dropped at any point. Where writers exclude each other, it waits for its turn.
    ///
    /// [`CANCELS_CLEANLY`]: Self::CANCELS_CLEANLY
    fn begin_for_caller(
        &self,
        pool: &Pool<Self::Db>,
    ) -> impl Future<Output = Result<Transaction<'static, Self::Db>>> + Send;

    /// Like [`enqueue`](Self::enqueue), on a connection that is in no transaction: in one of its own, and as often as it
    /// takes while others are in the way.
    fn enqueue_alone(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        messages: &[NewMessage<'_>],
    ) -> impl Future<Output = Result<Enqueued>> + Send;

    /// The messages of a queue behind this id that the caller's connection sees, the first ones by id, whether they are settled
    /// or not: those that vacuum has not removed. There is no index by queue, so it may have to pass all messages of others.
    fn peek(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        queue: &Queue,
        after_id: i64,
        most: u32,
    ) -> impl Future<Output = Result<Vec<EnqueuedMessage>>> + Send;

    /// The messages of a partition that have a seq behind this one, in their order, settled or not: those that vacuum has not removed.
    fn browse(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        queue: &Queue,
        partition_id: i32,
        after_seq: i64,
        most: u32,
    ) -> impl Future<Output = Result<Vec<OutboxMessage>>> + Send;

    /// The messages of these partitions of a queue that are committed and that no tick has taken, the first ones by id behind this
    /// one. It looks at all of these: not for workers.
    fn unsequenced(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        queue: &Queue,
        partition_ids: &[i32],
        after_id: i64,
        most: u32,
    ) -> impl Future<Output = Result<Vec<EnqueuedMessage>>> + Send;

    /// What time it is by the database's clock, in microseconds since 1970.
    fn clock(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// The partitions of a queue that have something left, at one moment, as the caller's connection sees them. It counts what no
    /// tick has taken: not for workers.
    fn unsettled(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        queue: &Queue,
    ) -> impl Future<Output = Result<Vec<Unsettled>>> + Send;

    /// Gives new messages their seqs, `most` of them or as many as is best; tells other processes if `announce`.
    fn tick(&self, most: u32, announce: bool) -> impl Future<Output = Result<Tick>> + Send;

    /// Gives a seq to every message that has none, whatever its stamp; returns how many.
    fn recover(&self) -> impl Future<Output = Result<u64>> + Send;

    /// Takes a partition's lease and reads a batch.
    fn acquire(&self, queue: &Arc<Queue>, claim: &Claim) -> impl Future<Output = Result<Acquired>> + Send;

    /// Moves a partition's cursor; the only way it moves.
    fn settle(
        &self,
        queue: &Arc<Queue>,
        claim: &Claim,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// A connection for a handler.
    fn handling(&self) -> impl Future<Output = Result<Handling<Self::Db>>> + Send;

    /// Begins the transaction that a handler works in, and sets a savepoint. The session ends by itself if the process
    /// is silent for longer than the handler may take, or the lease.
    fn begin<'c>(
        &self,
        handling: &'c mut Handling<Self::Db>,
        claim: &Claim,
        epoch: i64,
        timeout: Duration,
    ) -> impl Future<Output = Result<Begun<'c, Self::Db>>> + Send;

    /// Releases the savepoint, if no deferred constraint is against it; takes back what the handler has set, as for
    /// [`begin`](Self::begin); and sets the savepoint again unless this was the last.
    fn keep(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        claim: &Claim,
        timeout: Duration,
        is_last: bool,
    ) -> impl Future<Output = Result<Kept>> + Send;

    /// Goes back to the savepoint; and sets it again unless this was the last.
    fn undo(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        is_last: bool,
    ) -> impl Future<Output = Result<Kept>> + Send;

    /// Like [`settle`](Self::settle), in the handler's transaction, which is committed; or rolled back if the lease was
    /// taken over.
    fn settle_within(
        &self,
        transaction: Transaction<'_, Self::Db>,
        queue: &Queue,
        claim: &Claim,
        settlement: &Settlement,
    ) -> impl Future<Output = Result<Settled>> + Send;

    /// Ends the session of a transaction that is lost, whatever it is doing; its connection is still open.
    fn end_session(&self, session: Session) -> impl Future<Output = Result<()>> + Send;

    /// Takes a handler's connection back, with no trace of what the handler did to its session; closes it, if that can be, where
    /// it `is_lost`: then nobody knows what its session is like.
    fn give_back(
        &self,
        handling: Handling<Self::Db>,
        is_lost: bool,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Which of these partitions have work that nobody but `owner` holds.
    fn waiting(&self, partition_ids: &[i32], owner: Uuid) -> impl Future<Output = Result<Vec<i32>>> + Send;

    /// What could be removed from those of these partitions whose cursors moved since.
    fn survey(&self, known: &[Trimmed]) -> impl Future<Output = Result<Surveyed>> + Send;

    /// Removes a chunk of what every reader has passed, in one transaction; nothing if another process is at it, or
    /// somebody builds on any of it.
    fn vacuum(
        &self,
        trims: &[Trim],
        first_tick: i64,
        most_ticks: u32,
    ) -> impl Future<Output = Result<Option<Removed>>> + Send;

    /// Looks at the messages that follow this id for some that should have been delivered and removed long since.
    fn suspects(&self, after_id: i64) -> impl Future<Output = Result<Suspects>> + Send;

    /// How many of these messages are committed, and passed by the sequencer, but have no seq.
    fn strays(&self, suspects: &[i64]) -> impl Future<Output = Result<u64>> + Send;

    /// Begins a transaction on the caller's connection, to change something; none if it is in one already, by whatever means that was
    /// begun.
    fn begin_on<'c>(
        &self,
        conn: &'c mut <Self::Db as sqlx::Database>::Connection,
    ) -> impl Future<Output = Result<Option<Transaction<'c, Self::Db>>>> + Send;

    /// Finds dead letters, in the order of their ids.
    fn pick_dead_letters(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        selection: &Selection<'_>,
        lock: Lock,
    ) -> impl Future<Output = Result<Vec<Picked>>> + Send;

    /// Reads those of these dead letters that are there, in the order of their ids.
    fn read_dead_letters(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        ids: &[i64],
        is_locked: bool,
    ) -> impl Future<Output = Result<Vec<DeadLetterMessage>>> + Send;

    /// How many dead letters there are, whatever the selection's limit.
    fn count_dead_letters(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        selection: &Selection<'_>,
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Changes the state of dead letters that are locked.
    fn change_dead_letters(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        ids: &[i64],
        change: &Change<'_>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Resolves dead letters that are locked: they were sent back as these messages.
    fn mark_redelivered(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        sent: &[(OutboxMessageId, OutboxMessageId)],
    ) -> impl Future<Output = Result<()>> + Send;

    /// Deletes dead letters that are locked.
    fn delete_dead_letters(
        &self,
        conn: &mut <Self::Db as sqlx::Database>::Connection,
        ids: &[i64],
    ) -> impl Future<Output = Result<()>> + Send;

    /// How far the partitions of all queues are; in one statement, and without counting.
    fn lag(&self) -> impl Future<Output = Result<Lagging>> + Send;

    /// Tells the worker processes that producers have enqueued.
    fn announce_enqueued(&self, tickets: &[Ticket]) -> impl Future<Output = Result<()>> + Send;

    /// Tells other processes that these partitions are free and have messages left.
    fn announce_released(&self, partition_id: i32) -> impl Future<Output = Result<()>> + Send;

    /// Passes on what other processes announce, for as long as the connection lasts; returns when it breaks.
    fn listen(&self, wake: &Wake) -> impl Future<Output = Result<()>> + Send;

    /// Closes the connections of the workers.
    fn close(&self) -> impl Future<Output = ()> + Send;
}
