//! A transactional outbox: a service announces a change in the same database transaction that makes it, and the
//! announcement is delivered afterwards: in order per partition, never lost, never for a transaction that rolled back.
//!
//! ```no_run
//! use posthaste::{EnqueueMessage, LeasedMessageHandler, MessageResult, Outbox, OutboxMessage, Partitions};
//!
//! struct Ship;
//!
//! impl LeasedMessageHandler for Ship {
//!     async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
//!         println!("shipping {} of {:?}", msg.id, msg.key);
//!         MessageResult::Ok
//!     }
//! }
//!
//! # async fn main_() -> Result<(), Box<dyn std::error::Error>> {
//! let pool = sqlx::PgPool::connect("postgres://localhost/shop").await?;
//! let handle = Outbox::builder(pool.clone()).queue("orders", Partitions::of(4)).leased(Ship).start().await?;
//! let outbox = handle.outbox();
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (customer) VALUES (7)").execute(&mut *tx).await?;
//! outbox.enqueue(&mut tx, "orders", EnqueueMessage::new("one chair").key("customer-7")).await?;
//! tx.commit().await?;
//!
//! handle.stop().await;
//! # Ok(()) }
//! ```
//!
//! Which database it is, is the type of the pool: PostgreSQL, MySQL or MariaDB, SQLite (features `postgres`, `mysql`, `sqlite`, none of
//! them on by default). A handler is *leased*, outside any transaction and at least once
//! ([`LeasedMessageHandler`], [`LeasedHandler`]), or *transactional*, in the transaction that settles and exactly once
//! ([`TransactionalMessageHandler`], [`TransactionalHandler`]).
//!
//! What it does can be seen in `tracing` spans, in metrics (feature `metrics`) and across services (feature `opentelemetry`): see
//! `docs/telemetry.md`. For the tests of a service that announces, the feature `test-util` adds a module `testing`.

#![warn(missing_docs, unreachable_pub)]
#![cfg_attr(
    not(all(
        feature = "metrics",
        feature = "mysql",
        feature = "postgres",
        feature = "sqlite",
        feature = "test-util"
    )),
    expect(
        dead_code,
        reason = "each database needs some of it that the others do not, and so do metrics and the test helpers"
    )
)]

#[cfg(feature = "kill-points")]
#[doc(hidden)]
#[macro_use]
pub mod kill_points;
#[cfg(not(feature = "kill-points"))]
#[macro_use]
mod kill_points;

mod announcer;
mod batch;
mod browse;
mod builder;
mod clock;
mod crew;
mod dead_letter;
mod enqueued;
mod error;
mod handle;
mod handler;
mod health;
mod lag;
mod limits;
mod message;
#[cfg(test)]
mod model;
mod monitor;
mod news;
mod outage;
mod outbox;
mod pauses;
mod processor;
mod queue;
mod reconciler;
mod sequencer;
mod stats;
mod store;
mod telemetry;
#[cfg(feature = "test-util")]
pub mod testing;
mod timings;
mod tuning;
mod vacuum;
mod wake;

pub use batch::Batch;
pub use builder::{LeasedQueueBuilder, OutboxBuilder, QueueBuilder, TransactionalQueueBuilder};
pub use dead_letter::{
    ClaimedDeadLetter, DeadLetterClaim, DeadLetterFilter, DeadLetterMessage, DeadLetterScope,
    DeadLetterStatus, DeadLetterToken,
};
pub use enqueued::EnqueuedMessage;
pub use error::OutboxError;
pub use handle::OutboxHandle;
pub use handler::{
    HandlerResult, LeaseConfig, LeasedHandler, LeasedMessageHandler, MessageResult, PerMessageAdapter,
    TransactionalHandler, TransactionalMessageHandler,
};
pub use health::{DatabaseHealth, Health, SequencerHealth, Stall, StallCause};
pub use lag::{PartitionLag, WorkerId};
pub use limits::{
    DEFAULT_DEAD_LETTER_LIMIT, DEFAULT_GRACE, DEFAULT_GUARANTEED_MAINTENANCE, DEFAULT_LEASE_DURATION,
    DEFAULT_LEASE_HEADROOM, DEFAULT_MAX_INNER_ITERATIONS, DEFAULT_MAX_PAYLOAD, DEFAULT_PROCESSORS,
    DEFAULT_SHARED_MAINTENANCE, DEFAULT_STATS_INTERVAL, MAX_BROWSE_LIMIT, MAX_CLAIM_TIMEOUT,
    MAX_DEAD_LETTER_LIMIT, MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY, MAX_LEASE_DURATION, MAX_PARTITIONS,
    MAX_PAYLOAD_TYPE, MAX_QUEUE_NAME, MAX_REASON,
};
pub use message::{EnqueueMessage, OutboxMessage, OutboxMessageId};
pub use outbox::{Outbox, Target};
pub use queue::Partitions;
pub use stats::{OutboxStats, WorkerStats};
pub use store::{Backend, Tables};
pub use tuning::{OutboxProfile, WorkerTuning};

use store::Store;

/// Creates or upgrades the tables. Safe to run from many processes at once; does nothing if there is nothing to do.
///
/// # Errors
///
/// If the tables are of a later version that does not fit, or what the database says.
pub async fn migrate<DB: Backend>(pool: &sqlx::Pool<DB>) -> Result<(), OutboxError> {
    migrate_with(pool, &Tables::default()).await
}

/// Like [`migrate`], with tables elsewhere.
///
/// # Errors
///
/// If the tables are of a later version that does not fit, or what the database says.
pub async fn migrate_with<DB: Backend>(pool: &sqlx::Pool<DB>, tables: &Tables) -> Result<(), OutboxError> {
    kill_point!(MigrateBefore);
    <DB::Store as Store>::migrate(pool, tables).await?;
    kill_point!(MigrateAfter);
    Ok(())
}

/// The SQL that [`migrate_with`] runs on an empty database, for teams with a migration tool of their own.
#[must_use]
pub fn migration_sql<DB: Backend>(tables: &Tables) -> String {
    <DB::Store as Store>::migration_sql(tables)
}

/// Removes the tables, with all that is in them: messages that were not delivered, and dead letters. For tests and trials; nothing may
/// be running on them.
///
/// # Errors
///
/// What the database says.
pub async fn drop_tables<DB: Backend>(pool: &sqlx::Pool<DB>, tables: &Tables) -> Result<(), OutboxError> {
    <DB::Store as Store>::drop_tables(pool, tables).await
}

/// The SQL that [`drop_tables`] runs, for whoever has to do it by hand.
#[must_use]
pub fn drop_tables_sql<DB: Backend>(tables: &Tables) -> String {
    <DB::Store as Store>::drop_sql(tables)
}

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So does the code for operators.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/operating.md")]
struct Operating;

/// So does the code of the page on telemetry.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/telemetry.md")]
struct TelemetryPage;
