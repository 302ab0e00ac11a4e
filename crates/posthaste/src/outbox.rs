//! The producer's side: enqueueing.

use std::{
    borrow::Cow,
    collections::HashMap,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use sqlx::{Connection, Pool, SqlSafeStr, Transaction, pool::PoolConnection};
use tracing::Instrument;

use crate::{
    EnqueueMessage, OutboxBuilder, OutboxError, OutboxMessageId, PartitionLag, Partitions,
    announcer::Announcer,
    limits::DEFAULT_MAX_PAYLOAD,
    message::excerpt,
    pauses::Pauses,
    queue::check_name,
    store::{Backend, Enqueued, NewMessage, Queue, Store, Tables, Ticket},
    telemetry::{self, TraceContext},
    timings::Timings,
    wake::Wake,
};

/// How long a rollback may take before the connection is closed instead.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(5);

/// Connections that a process without workers opens for itself: one, to tell others of its messages.
const PRODUCER_CONNECTIONS: usize = 1;

/// An outbox, to enqueue to. Cheap to clone.
pub struct Outbox<DB: Backend> {
    inner: Arc<Inner<DB>>,
}

struct Inner<DB: Backend> {
    pool: Pool<DB>,
    store: DB::Store,
    queues: RwLock<HashMap<String, Arc<Queue>>>,
    max_payload: usize,
    bell: Bell,
}

/// Who is told of new messages.
pub(crate) enum Bell {
    /// The workers of this process, who are told of pauses too.
    Own(Wake, Pauses),
    /// Those of others.
    Others(Announcer),
}

impl Bell {
    fn enqueued(&self, ticket: Ticket) {
        match self {
            Self::Own(wake, _) => wake.enqueued([ticket]),
            Self::Others(announcer) => announcer.enqueued(Some(ticket)),
        }
    }

    fn committed(&self) {
        match self {
            Self::Own(wake, _) => wake.committed(),
            // The ticket that was announced at the enqueue makes them look again.
            Self::Others(_) => {}
        }
    }

    /// The workers of other processes find out by themselves.
    fn paused(&self, queue: &Queue, is_paused: bool) {
        let Self::Own(wake, pauses) = self else { return };
        if is_paused {
            pauses.began(&queue.name, pauses.now());
        } else {
            pauses.ended(&queue.name);
            queue.partition_ids.iter().for_each(|id| wake.sequenced(*id));
        }
    }
}

impl<DB: Backend> Clone for Outbox<DB> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<DB: Backend> std::fmt::Debug for Outbox<DB> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outbox").finish_non_exhaustive()
    }
}

/// Where to enqueue: the caller's transaction or connection, or a pool, which is asked for one.
///
/// It is made of `&mut Transaction`, `&mut Connection`, `&mut PoolConnection` or `&Pool`.
pub enum Target<'c, DB: Backend> {
    /// The caller's connection, in a transaction or not.
    Connection(&'c mut DB::Connection),
    /// A connection of this pool.
    Pool(&'c Pool<DB>),
}

impl<'c, DB: Backend> From<&'c Pool<DB>> for Target<'c, DB> {
    fn from(pool: &'c Pool<DB>) -> Self {
        Self::Pool(pool)
    }
}

impl<'c, DB: Backend> From<&'c mut Transaction<'_, DB>> for Target<'c, DB> {
    fn from(transaction: &'c mut Transaction<'_, DB>) -> Self {
        Self::Connection(&mut **transaction)
    }
}

impl<'c, DB: Backend> From<&'c mut PoolConnection<DB>> for Target<'c, DB> {
    fn from(connection: &'c mut PoolConnection<DB>) -> Self {
        Self::Connection(&mut **connection)
    }
}

/// A connection of one database; for all of them at once, it would be in the way of the others.
macro_rules! target_of_connection {
    ($feature:literal, $connection:ty, $database:ty) => {
        #[cfg(feature = $feature)]
        impl<'c> From<&'c mut $connection> for Target<'c, $database> {
            fn from(connection: &'c mut $connection) -> Self {
                Self::Connection(connection)
            }
        }
    };
}

target_of_connection!("mysql", sqlx::MySqlConnection, sqlx::MySql);
target_of_connection!("postgres", sqlx::PgConnection, sqlx::Postgres);
target_of_connection!("sqlite", sqlx::SqliteConnection, sqlx::Sqlite);

impl<DB: Backend> Outbox<DB> {
    /// A builder for an outbox with workers.
    #[must_use]
    pub fn builder(pool: Pool<DB>) -> OutboxBuilder<DB> {
        OutboxBuilder::new(pool)
    }

    /// An outbox for a process that only enqueues, to queues that another process registered.
    ///
    /// With the feature `metrics`, install the recorder before.
    ///
    /// # Errors
    ///
    /// If the tables are not there or do not fit, or the database does not answer.
    pub async fn connect(pool: Pool<DB>) -> Result<Self, OutboxError> {
        Self::connect_with(pool, &Tables::default()).await
    }

    /// Like [`connect`](Self::connect), with tables elsewhere.
    ///
    /// # Errors
    ///
    /// If the tables are not there or do not fit, or the database does not answer.
    pub async fn connect_with(pool: Pool<DB>, tables: &Tables) -> Result<Self, OutboxError> {
        telemetry::describe();
        let store =
            <DB::Store as Store>::open(pool.clone(), tables, PRODUCER_CONNECTIONS, 0, Timings::default())
                .await?;
        let announcer = Announcer::spawn(store.clone());
        Ok(Self::new(pool, store, HashMap::new(), DEFAULT_MAX_PAYLOAD, Bell::Others(announcer)))
    }

    pub(crate) fn new(
        pool: Pool<DB>,
        store: DB::Store,
        queues: HashMap<String, Arc<Queue>>,
        max_payload: usize,
        bell: Bell,
    ) -> Self {
        Self { inner: Arc::new(Inner { pool, store, queues: RwLock::new(queues), max_payload, bell }) }
    }

    /// Enqueues a message: it is delivered once the transaction that `conn` is in has committed.
    ///
    /// With the feature `opentelemetry`, it carries the trace of the current span in its headers; see `docs/telemetry.md`.
    ///
    /// # Errors
    ///
    /// If the queue is unknown or the message is not valid, before anything is written; or what the database says.
    pub async fn enqueue<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        queue: &str,
        message: EnqueueMessage<'_>,
    ) -> Result<OutboxMessageId, OutboxError> {
        let ids = self.enqueue_batch(conn, queue, std::slice::from_ref(&message)).await?;
        Ok(ids.into_iter().next().ok_or(sqlx::Error::RowNotFound)?)
    }

    /// Enqueues messages, all or none, with as few statements as the database allows; the ids are in the same order.
    ///
    /// # Errors
    ///
    /// If the queue is unknown or any message is not valid, before anything is written; or what the database says.
    pub async fn enqueue_batch<'c>(
        &self,
        conn: impl Into<Target<'c, DB>> + Send,
        queue: &str,
        messages: &[EnqueueMessage<'_>],
    ) -> Result<Vec<OutboxMessageId>, OutboxError> {
        let target = conn.into();
        check_name(queue)?;
        messages.iter().try_for_each(|message| message.validate(self.inner.max_payload))?;
        // The caller's, not that of the span which begins here.
        let trace = TraceContext::current();
        let span = telemetry::enqueue(queue, messages.len());
        self.enqueue_valid(target, queue, messages, &trace).instrument(span).await
    }

    async fn enqueue_valid(
        &self,
        target: Target<'_, DB>,
        queue: &str,
        messages: &[EnqueueMessage<'_>],
        trace: &TraceContext,
    ) -> Result<Vec<OutboxMessageId>, OutboxError> {
        match target {
            Target::Connection(conn) => {
                let queue = self.queue(conn, queue).await?;
                let rows = messages.iter().map(|message| row(&queue, message, trace));
                let rows = rows.collect::<Result<Vec<_>, _>>()?;
                self.enqueue_rows(conn, &queue, &rows, false).await
            }
            Target::Pool(pool) => {
                // In tasks of their own, which are not dropped half-way: a connection that was dropped inside BEGIN would be
                // given back poisoned, and what was committed would not be told.
                let (outbox, own, name) = (self.clone(), pool.clone(), queue.to_owned());
                let queue = match self.known(queue) {
                    Some(queue) => queue,
                    None => {
                        let finding = async move {
                            outbox.queue(&mut *outbox.inner.store.lend(&own).await?, &name).await
                        };
                        to_its_end(finding).await?
                    }
                };
                let rows = messages.iter().map(|message| row(&queue, message, trace));
                let rows = rows.map(|row| row.map(NewMessage::into_owned)).collect::<Result<Vec<_>, _>>()?;
                let (outbox, pool) = (self.clone(), pool.clone());
                let writing = async move {
                    let mut conn = outbox.inner.store.lend(&pool).await?;
                    outbox.enqueue_rows(&mut conn, &queue, &rows, true).await
                };
                to_its_end(writing).await
            }
        }
    }

    /// Writes messages of a queue, and counts them.
    async fn enqueue_rows(
        &self,
        conn: &mut DB::Connection,
        queue: &Queue,
        rows: &[NewMessage<'_>],
        alone: bool,
    ) -> Result<Vec<OutboxMessageId>, OutboxError> {
        let ids = self.write(conn, rows, alone).await?;
        queue.metrics.enqueued(ids.len());
        Ok(ids)
    }

    /// Writes them: in the transaction that the connection is in, or else `alone`.
    pub(crate) async fn write(
        &self,
        conn: &mut DB::Connection,
        rows: &[NewMessage<'_>],
        alone: bool,
    ) -> Result<Vec<OutboxMessageId>, OutboxError> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let store = &self.inner.store;
        kill_point!(EnqueueBefore);
        let Enqueued { ids, ticket } =
            if alone { store.enqueue_alone(conn, rows).await? } else { store.enqueue(conn, rows).await? };
        kill_point!(EnqueueAfter);
        self.inner.bell.enqueued(ticket);
        Ok(ids.into_iter().map(OutboxMessageId).collect())
    }

    /// The caller's pool.
    pub(crate) fn pool(&self) -> &Pool<DB> {
        &self.inner.pool
    }

    pub(crate) fn store(&self) -> &DB::Store {
        &self.inner.store
    }

    fn known(&self, name: &str) -> Option<Arc<Queue>> {
        self.inner.queues.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// A queue, which the database is asked for once.
    pub(crate) async fn queue(
        &self,
        conn: &mut DB::Connection,
        name: &str,
    ) -> Result<Arc<Queue>, OutboxError> {
        if let Some(queue) = self.known(name) {
            return Ok(queue);
        }
        let found = self.inner.store.find_queue(conn, name).await?;
        let queue = Arc::new(found.ok_or_else(|| OutboxError::QueueNotRegistered(excerpt(name)))?);
        let mut queues = self.inner.queues.write().unwrap_or_else(PoisonError::into_inner);
        queues.insert(name.to_owned(), Arc::clone(&queue));
        Ok(queue)
    }

    /// Registers a queue, unless it is: for processes that enqueue before any that has workers for it was started, and registered it.
    ///
    /// # Errors
    ///
    /// If the name is not valid, or the queue is registered with another number of partitions; or what the database says.
    pub async fn register(&self, queue: &str, partitions: Partitions) -> Result<(), OutboxError> {
        check_name(queue)?;
        self.inner.store.register_queue(queue, partitions).await.map(drop)
    }

    /// Stops the delivery of a queue, in all processes and until [`resume`](Self::resume), over restarts too. Within two seconds no
    /// handler is given a message of it any more; a handler that is at work ends what it has taken. Messages can be enqueued as before.
    ///
    /// # Errors
    ///
    /// If the queue is unknown, or what the database says.
    pub async fn pause(&self, queue: &str) -> Result<(), OutboxError> {
        self.set_paused(queue, true).await
    }

    /// Delivers a queue again: at once in this process, within a second in others.
    ///
    /// # Errors
    ///
    /// If the queue is unknown, or what the database says.
    pub async fn resume(&self, queue: &str) -> Result<(), OutboxError> {
        self.set_paused(queue, false).await
    }

    async fn set_paused(&self, name: &str, is_paused: bool) -> Result<(), OutboxError> {
        check_name(name)?;
        let queue = match self.known(name) {
            Some(queue) => queue,
            None => self.lent(&self.inner.pool, async |conn| self.queue(conn, name).await).await?,
        };
        self.inner.store.pause(name, is_paused).await?;
        self.inner.bell.paused(&queue, is_paused);
        tracing::info!(queue = name, is_paused, "a queue was paused or resumed");
        Ok(())
    }

    /// How far each partition of all queues is behind, in the order of the queues' names: one statement, on a connection of the
    /// outbox's own, that counts no messages and reads a few rows a partition.
    ///
    /// An outbox whose workers were stopped has no such connection any more: [`connect`](Self::connect) makes another.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn lag(&self) -> Result<Vec<PartitionLag>, OutboxError> {
        Ok(self.inner.store.lag().await?.partitions)
    }

    /// Tells the workers of other processes what was enqueued last, and closes the connection that this is done on: for a process that
    /// [connected](Self::connect) and ends now. One that just ends loses no message either; workers may find its last ones a little later.
    pub async fn close(&self) {
        if let Bell::Others(announcer) = &self.inner.bell {
            announcer.flush(&self.inner.store).await;
            self.inner.store.close().await;
        }
    }

    /// Begins a transaction, runs `work` in it, commits, and tells the workers at once. An error rolls back.
    ///
    /// On SQLite it begins to write at once, and waits for other writers, a transactional handler perhaps, for up to 30 s whatever
    /// the pool's timeout; so does an enqueue to a pool. A transaction of your own has the timeout of its connection.
    ///
    /// ```
    /// # use posthaste::{EnqueueMessage, Outbox, OutboxError};
    /// # async fn place(outbox: Outbox<sqlx::Postgres>) -> Result<(), OutboxError> {
    /// outbox
    ///     .transaction(async |tx| {
    ///         // `tx` is a reference: lend it on with `&mut *tx` to use it again.
    ///         outbox.enqueue(&mut *tx, "orders", EnqueueMessage::new("a chair")).await?;
    ///         outbox.enqueue(&mut *tx, "mails", EnqueueMessage::new("thank you")).await
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// What `work` returns, or what the database says to begin and commit.
    pub async fn transaction<T, E, F>(&self, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Transaction<'_, DB>) -> Result<T, E>,
        E: From<OutboxError>,
    {
        let done = self.transact(&self.inner.pool, None, work).await?;
        self.inner.bell.committed();
        Ok(done)
    }

    /// A transaction of ours, to change something, on a connection of the caller's pool.
    pub(crate) async fn own_transaction<T, F>(&self, pool: &Pool<DB>, work: F) -> Result<T, OutboxError>
    where
        F: AsyncFnOnce(&mut Transaction<'_, DB>) -> Result<T, OutboxError>,
    {
        let done = self.transact(pool, Some(<DB::Store as Store>::BEGIN_TO_WRITE), work).await?;
        self.inner.bell.committed();
        Ok(done)
    }

    /// Looks at something on a connection of the caller's pool: in a transaction, for a session may have been set to begin one by itself
    /// and leave it open. SQLite has no such sessions, and looks wait for nobody there.
    pub(crate) async fn reading<T, F>(&self, pool: &Pool<DB>, work: F) -> Result<T, OutboxError>
    where
        F: AsyncFnOnce(&mut DB::Connection) -> Result<T, OutboxError>,
    {
        if <DB::Store as Store>::CANCELS_CLEANLY {
            return self.lent(pool, work).await;
        }
        let begin = <DB::Store as Store>::BEGIN_TO_READ;
        self.transact(pool, Some(begin), async |transaction| work(&mut **transaction).await).await
    }

    async fn transact<T, E, F>(&self, pool: &Pool<DB>, begin: Option<&'static str>, work: F) -> Result<T, E>
    where
        F: AsyncFnOnce(&mut Transaction<'_, DB>) -> Result<T, E>,
        E: From<OutboxError>,
    {
        if <DB::Store as Store>::CANCELS_CLEANLY {
            let mut transaction = self.inner.store.begin_for_caller(pool).await?;
            let done = work(&mut transaction).await?;
            transaction.commit().await.map_err(OutboxError::from)?;
            return Ok(done);
        }
        let mut lent = Lent::by(pool).await?;
        let begun = match begin.map(SqlSafeStr::into_sql_str) {
            Some(begin) => lent.connection.begin_with(begin).await,
            None => lent.connection.begin().await,
        };
        let mut transaction = begun.map_err(OutboxError::from)?;
        let done = match work(&mut transaction).await {
            Ok(done) => transaction.commit().await.map(|()| done).map_err(OutboxError::from)?,
            Err(error) => {
                // Not for ever: `work` may have dropped a call half-way itself.
                let rolled_back = tokio::time::timeout(ROLLBACK_LIMIT, transaction.rollback()).await;
                lent.is_quiet = matches!(rolled_back, Ok(Ok(())));
                return Err(error);
            }
        };
        lent.is_quiet = true;
        Ok(done)
    }

    /// Does something on a connection of this pool, in no transaction.
    pub(crate) async fn lent<T, F>(&self, pool: &Pool<DB>, work: F) -> Result<T, OutboxError>
    where
        F: AsyncFnOnce(&mut DB::Connection) -> Result<T, OutboxError>,
    {
        let connection = self.inner.store.lend(pool).await?;
        let mut lent = Lent { connection, is_quiet: <DB::Store as Store>::CANCELS_CLEANLY };
        let done = work(&mut lent.connection).await;
        lent.is_quiet = true;
        done
    }
}

/// A connection of the caller's pool, which is closed if we are dropped while something was asked on it: the pool would take
/// it back, and wait for an answer that never comes, or give it to others inside a transaction.
struct Lent<DB: Backend> {
    connection: PoolConnection<DB>,
    /// Nothing is under way.
    is_quiet: bool,
}

impl<DB: Backend> Lent<DB> {
    async fn by(pool: &Pool<DB>) -> Result<Self, OutboxError> {
        Ok(Self { connection: pool.acquire().await?, is_quiet: false })
    }
}

impl<DB: Backend> Drop for Lent<DB> {
    fn drop(&mut self) {
        if !self.is_quiet {
            self.connection.close_on_drop();
        }
    }
}

/// The result of what only talks to the database, in a task of its own, which goes on if the caller does not.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, OutboxError>> + Send + 'static,
) -> Result<T, OutboxError> {
    // Boxed, so that tokio's task is compiled once per result and not once per call.
    let work: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(work.in_current_span());
    tokio::spawn(work).await.map_err(|_| sqlx::Error::WorkerCrashed)?
}

/// A message in its partition, with what tells of the trace that it is of.
fn row<'a>(
    queue: &Queue,
    message: &'a EnqueueMessage<'_>,
    trace: &TraceContext,
) -> Result<NewMessage<'a>, OutboxError> {
    let count = queue.count();
    let partition =
        message.key.as_ref().map_or(message.partition, |key| crate::queue::partition_of(key, count));
    let headers = trace.headers(message);
    let headers = (!headers.is_empty()).then(|| serde_json::to_string(&headers)).transpose()?;
    Ok(NewMessage {
        partition_id: queue.partition_id(partition)?,
        payload_type: Cow::Borrowed(message.payload_type),
        key: message.key.as_deref().map(Cow::Borrowed),
        headers,
        payload: Cow::Borrowed(&message.payload),
    })
}
