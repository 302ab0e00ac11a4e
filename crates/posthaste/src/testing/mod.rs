//! Helpers for the tests of a service that announces with posthaste (feature `test-util`).
//!
//! | a test wants | it writes |
//! |---|---|
//! | an outbox, and no server | [`sqlite_outbox`], a database in memory of its own |
//! | an outbox on the test's own database | [`outbox_on`] a pool, such as `#[sqlx::test]` gives |
//! | to see what business code announced | [`assert_enqueued`], [`assert_enqueued_count`], [`assert_not_enqueued`], [`assert_nothing_enqueued`], [`enqueued`] |
//! | to see it before the commit | the same with `_in`, on the transaction |
//! | to see what is delivered | [`TestOutbox::delivering`], or a [`Collector`] as the handler of any queue |
//! | to wait until all is done | [`wait_until_drained`], [`Collector::wait_for`] |
//! | to call its own handler | [`as_delivered`], a message as a handler gets it |
//!
//! What goes wrong is a panic that names the line of the test, the queue, and the messages that are there instead, payloads
//! included. Nothing waits for ever: the limit is [`DEFAULT_LIMIT`], or what a function that ends in `_within` is told.
//!
//! ```
//! use posthaste::{EnqueueMessage, Outbox, OutboxError, Partitions, testing};
//! use serde::{Deserialize, Serialize};
//! use sqlx::{Sqlite, SqlitePool};
//!
//! #[derive(Debug, PartialEq, Serialize, Deserialize)]
//! struct OrderPlaced {
//!     customer: u32,
//!     chairs: u32,
//! }
//!
//! /// The service: an order is a row, and an announcement for each who wants any chairs.
//! async fn place(pool: &SqlitePool, outbox: &Outbox<Sqlite>, order: &OrderPlaced) -> Result<(), OutboxError> {
//!     let mut tx = pool.begin().await?;
//!     let insert = sqlx::query("INSERT INTO orders (customer, chairs) VALUES (?, ?)");
//!     insert.bind(order.customer).bind(order.chairs).execute(&mut *tx).await?;
//!     if order.chairs > 0 {
//!         let key = format!("customer-{}", order.customer);
//!         let message = EnqueueMessage::json(order)?.payload_type("order.placed").key(key);
//!         outbox.enqueue(&mut tx, "orders", message).await?;
//!     }
//!     Ok(tx.commit().await?)
//! }
//!
//! # /*
//! #[tokio::test]
//! # */
//! async fn an_order_is_announced() {
//!     let shop = testing::sqlite_outbox(&[("orders", Partitions::of(4))]).await;
//!     sqlx::query("CREATE TABLE orders (customer INT, chairs INT)").execute(&shop.pool).await.unwrap();
//!
//!     let order = OrderPlaced { customer: 7, chairs: 2 };
//!     place(&shop.pool, &shop.outbox, &order).await.unwrap();
//!     place(&shop.pool, &shop.outbox, &OrderPlaced { customer: 8, chairs: 0 }).await.unwrap();
//!
//!     let placed = testing::assert_enqueued(&shop.outbox, "orders", |m| m.payload_type == "order.placed").await;
//!     assert_eq!(placed.key.as_deref(), Some("customer-7"));
//!     assert_eq!(placed.json::<OrderPlaced>().unwrap(), order);
//!     testing::assert_enqueued_count(&shop.outbox, "orders", 1).await;
//!
//!     // The same outbox with workers: what they deliver is collected.
//!     let shop = shop.delivering().await;
//!     testing::wait_until_drained(&shop.outbox, "orders").await;
//!     assert_eq!(shop.delivered.json::<OrderPlaced>(), [order]);
//!     shop.handle.stop().await;
//! }
//! # tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(an_order_is_announced());
//! ```

mod assertions;
mod collector;
mod drained;
mod outboxes;
mod report;

use std::time::Duration;

#[cfg(feature = "sqlite")]
pub use self::outboxes::sqlite_outbox;
pub use self::{
    assertions::{
        assert_enqueued, assert_enqueued_count, assert_enqueued_count_in, assert_enqueued_in,
        assert_not_enqueued, assert_not_enqueued_in, assert_nothing_enqueued, assert_nothing_enqueued_in,
        enqueued, enqueued_in,
    },
    collector::{Collector, as_delivered},
    drained::{wait_until_drained, wait_until_drained_within},
    outboxes::{Delivering, TestOutbox, outbox_on},
};
pub use crate::enqueued::EnqueuedMessage;
#[doc(hidden)]
pub use crate::timings::{Timings, WatcherTimings};

/// How long helpers wait before they panic, unless they are told.
pub const DEFAULT_LIMIT: Duration = Duration::from_secs(30);
