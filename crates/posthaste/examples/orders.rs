//! A small shop: orders are placed in business transactions, and shipped afterwards, in order for each customer.
//!
//! ```sh
//! cargo run -p posthaste --example orders -- postgres://user@localhost/shop
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use posthaste::{
    EnqueueMessage, LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxMessage, Partitions,
};
use sqlx::{PgPool, Postgres, Transaction};

const ORDERS: u32 = 20;

/// Ships an order: here is where a message broker would be called.
struct Ship {
    shipped: Arc<AtomicU32>,
}

impl LeasedMessageHandler for Ship {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let (customer, order) =
            (msg.key.as_deref().unwrap_or("nobody"), String::from_utf8_lossy(&msg.payload));
        println!("shipped to {customer}: {order} (partition {}, seq {})", msg.partition, msg.seq);
        self.shipped.fetch_add(1, Ordering::SeqCst);
        MessageResult::Ok
    }
}

/// The business transaction: the order and its announcement are committed together, or neither is.
async fn place_order(
    tx: &mut Transaction<'_, Postgres>,
    outbox: &Outbox<Postgres>,
    number: u32,
) -> Result<(), OutboxError> {
    let customer = format!("customer-{}", number % 3);
    sqlx::query("INSERT INTO orders (customer) VALUES ($1)").bind(&customer).execute(&mut **tx).await?;
    let message = EnqueueMessage::new(format!("order {number}")).key(customer).payload_type("order.placed");
    outbox.enqueue(tx, "orders", message).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let pool = PgPool::connect(&url.ok_or("name a PostgreSQL server: orders postgres://user@host/database")?)
        .await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id BIGSERIAL PRIMARY KEY, customer TEXT)")
        .execute(&pool)
        .await?;

    let shipped = Arc::new(AtomicU32::new(0));
    let handle = Outbox::builder(pool.clone())
        .queue("orders", Partitions::of(4))
        .leased(Ship { shipped: Arc::clone(&shipped) })
        .start()
        .await?;
    let outbox = handle.outbox();

    for number in 1..=ORDERS {
        let mut tx = pool.begin().await?;
        place_order(&mut tx, &outbox, number).await?;
        if number % 5 == 0 {
            tx.rollback().await?; // the customer changed their mind: nothing is shipped
        } else {
            tx.commit().await?;
        }
    }

    let expected = ORDERS - ORDERS / 5;
    for _ in 0..100 {
        if shipped.load(Ordering::SeqCst) >= expected {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    handle.stop().await;
    let shipped = shipped.load(Ordering::SeqCst);
    println!("{shipped} of {expected} orders shipped");
    if shipped == expected { Ok(()) } else { Err("some orders were not shipped".into()) }
}
