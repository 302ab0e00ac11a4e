//! Outboxes for tests.

use sqlx::Pool;
#[cfg(feature = "sqlite")]
use sqlx::{Sqlite, sqlite::SqlitePoolOptions};

use super::Collector;
use crate::{
    Outbox, OutboxError, OutboxHandle, OutboxProfile, Partitions, Tables,
    queue::check_name,
    store::{Backend, Store},
};

/// An outbox without workers: what is enqueued stays, to be looked at.
#[derive(Debug)]
pub struct TestOutbox<DB: Backend> {
    /// The database, for the tables of the service too.
    pub pool: Pool<DB>,
    /// The outbox, to be given to what is tested.
    pub outbox: Outbox<DB>,
    queues: Vec<(String, Partitions)>,
}

/// An outbox that delivers to a [`Collector`].
#[derive(Debug)]
pub struct Delivering<DB: Backend> {
    /// The database, for the tables of the service too.
    pub pool: Pool<DB>,
    /// The outbox, to be given to what is tested.
    pub outbox: Outbox<DB>,
    /// What was delivered, of all queues.
    pub delivered: Collector,
    /// The workers: they stop with it.
    pub handle: OutboxHandle<DB>,
}

impl<DB: Backend> TestOutbox<DB> {
    /// Starts workers, quick ones, that deliver all queues to a [`Collector`]: what was enqueued before, and what comes.
    ///
    /// # Panics
    ///
    /// If the database does not answer.
    pub async fn delivering(self) -> Delivering<DB> {
        let delivered = Collector::new();
        let mut builder = Outbox::builder(self.pool.clone()).profile(OutboxProfile::low_latency());
        for (name, partitions) in &self.queues {
            builder = builder.queue(name, *partitions).leased(delivered.clone()).outbox();
        }
        let handle = builder.start().await.unwrap_or_else(|error| panic!("{error}"));
        Delivering { pool: self.pool, outbox: handle.outbox(), delivered, handle }
    }
}

/// An outbox with these queues, and no workers, on a SQLite database in memory that no other has. It lives as long as the pool.
///
/// Its connections share one cache, in which nobody reads a table while a transaction is open that has written to it: end
/// transactions before you look, or look in them.
///
/// ```
/// use posthaste::{EnqueueMessage, Partitions, testing};
///
/// # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
/// let test = testing::sqlite_outbox(&[("orders", Partitions::of(4))]).await;
/// test.outbox.enqueue(&test.pool, "orders", EnqueueMessage::new("a chair")).await.unwrap();
/// testing::assert_enqueued(&test.outbox, "orders", |m| m.payload == b"a chair").await;
/// # });
/// ```
///
/// # Panics
///
/// If a name is no queue's name.
#[cfg(feature = "sqlite")]
pub async fn sqlite_outbox(queues: &[(&str, Partitions)]) -> TestOutbox<Sqlite> {
    // A database in memory is gone with the last connection, so one always stays.
    let pool = SqlitePoolOptions::new().min_connections(1).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect("sqlite::memory:").await.unwrap_or_else(|error| panic!("{error}"));
    outbox_on(pool, queues).await
}

/// An outbox with these queues, and no workers, on a database of the test's own: creates the tables, and registers the queues.
///
/// ```no_run
/// use posthaste::{Partitions, testing};
///
/// # /*
/// #[sqlx::test]
/// # */
/// async fn an_order_is_announced(pool: sqlx::PgPool) {
///     let test = testing::outbox_on(pool, &[("orders", Partitions::of(4))]).await;
///     // …
///     testing::assert_enqueued_count(&test.outbox, "orders", 1).await;
/// }
/// ```
///
/// # Panics
///
/// If a name is no queue's name, a queue is registered with another number of partitions, or the database does not answer.
pub async fn outbox_on<DB: Backend>(pool: Pool<DB>, queues: &[(&str, Partitions)]) -> TestOutbox<DB> {
    match registered(pool, queues).await {
        Ok(test) => test,
        Err(error) => panic!("{error}"),
    }
}

async fn registered<DB: Backend>(
    pool: Pool<DB>,
    queues: &[(&str, Partitions)],
) -> Result<TestOutbox<DB>, OutboxError> {
    queues.iter().try_for_each(|(name, _)| check_name(name))?;
    <DB::Store as Store>::migrate(&pool, &Tables::default()).await?;
    let outbox = Outbox::connect(pool.clone()).await?;
    for (name, partitions) in queues {
        outbox.store().register_queue(name, *partitions).await?;
    }
    let queues = queues.iter().map(|(name, partitions)| ((*name).to_owned(), *partitions)).collect();
    Ok(TestOutbox { pool, outbox, queues })
}
