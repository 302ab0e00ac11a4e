//! A small shop: orders are placed in business transactions, and shipped afterwards, in order for each customer.
//!
//! ```sh
//! cargo run -p posthaste --example orders                                            # on an embedded SQLite file
//! cargo run -p posthaste --example orders -- postgres://user@localhost/shop          # on a server: also mysql://…
//! ```

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use posthaste::{
    Backend, EnqueueMessage, LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxMessage,
    Partitions,
};
use sqlx::{MySqlPool, PgPool, Pool, SqlitePool, Transaction};

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

/// What the shop does with its own table. A service on one database would simply do it.
trait Shop: Backend {
    async fn open(pool: &Pool<Self>) -> Result<(), sqlx::Error>;
    async fn save_order(tx: &mut Transaction<'_, Self>, customer: &str) -> Result<(), sqlx::Error>;
}

macro_rules! shop_on {
    ($database:ty, $create:literal, $insert:literal) => {
        impl Shop for $database {
            async fn open(pool: &Pool<Self>) -> Result<(), sqlx::Error> {
                sqlx::query($create).execute(pool).await.map(drop)
            }

            async fn save_order(tx: &mut Transaction<'_, Self>, customer: &str) -> Result<(), sqlx::Error> {
                sqlx::query($insert).bind(customer).execute(&mut **tx).await.map(drop)
            }
        }
    };
}

shop_on!(
    sqlx::Postgres,
    "CREATE TABLE IF NOT EXISTS orders (id BIGSERIAL PRIMARY KEY, customer TEXT)",
    "INSERT INTO orders (customer) VALUES ($1)"
);
shop_on!(
    sqlx::MySql,
    "CREATE TABLE IF NOT EXISTS orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer TEXT)",
    "INSERT INTO orders (customer) VALUES (?)"
);
shop_on!(
    sqlx::Sqlite,
    "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer TEXT)",
    "INSERT INTO orders (customer) VALUES (?)"
);

/// The business transaction: the order and its announcement are committed together, or neither is.
async fn place_order<DB: Shop>(
    tx: &mut Transaction<'_, DB>,
    outbox: &Outbox<DB>,
    number: u32,
) -> Result<(), OutboxError> {
    let customer = format!("customer-{}", number % 3);
    DB::save_order(tx, &customer).await?;
    let message = EnqueueMessage::new(format!("order {number}")).key(customer).payload_type("order.placed");
    outbox.enqueue(tx, "orders", message).await?;
    Ok(())
}

async fn run<DB: Shop>(pool: Pool<DB>) -> Result<(), Box<dyn std::error::Error>> {
    DB::open(&pool).await?;
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

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Some(url) = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok()) else {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("shop.db");
        return run(SqlitePool::connect(&format!("sqlite://{}?mode=rwc", file.display())).await?).await;
    };
    match url.split_once(':').map_or("", |(scheme, _)| scheme) {
        "postgres" | "postgresql" => run(PgPool::connect(&url).await?).await,
        "mysql" | "mariadb" => run(MySqlPool::connect(&url).await?).await,
        "sqlite" => run(SqlitePool::connect(&url).await?).await,
        other => Err(format!("{other:?} is no database of ours: use postgres:, mysql: or sqlite:").into()),
    }
}
