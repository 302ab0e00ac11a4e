//! What the shop does with its own table. A service on one database would simply do it.

use posthaste::Backend;
use sqlx::{AssertSqlSafe, Pool, Transaction};

use super::order::{Order, OrderId};

/// The shop's table: its name begins as those of its outbox do, with a prefix that was checked.
#[derive(Debug, Clone)]
pub struct ShopTable {
    name: String,
}

impl ShopTable {
    pub fn new(checked_prefix: &str) -> Self {
        Self { name: format!("{checked_prefix}orders") }
    }

    /// It must not be there yet: whoever makes it may remove it again.
    fn create(&self) -> String {
        format!(
            "CREATE TABLE {} (customer INTEGER NOT NULL, number BIGINT NOT NULL, card_is_declined INTEGER NOT NULL, \
             PRIMARY KEY (customer, number))",
            self.name
        )
    }

    fn insert(&self, places: &str) -> String {
        format!("INSERT INTO {} (customer, number, card_is_declined) VALUES ({places})", self.name)
    }

    fn select(&self) -> String {
        format!("SELECT customer, number, card_is_declined FROM {} ORDER BY customer, number", self.name)
    }

    fn drop(&self) -> String {
        format!("DROP TABLE {}", self.name)
    }
}

/// A database that the shop can be on.
pub trait Shop: Backend {
    fn open(pool: &Pool<Self>, table: &ShopTable) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    fn save(
        transaction: &mut Transaction<'_, Self>,
        table: &ShopTable,
        order: &Order,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The orders that are committed, in the order of their ids.
    fn orders(
        pool: &Pool<Self>,
        table: &ShopTable,
    ) -> impl Future<Output = Result<Vec<Order>, sqlx::Error>> + Send;

    fn close(pool: &Pool<Self>, table: &ShopTable) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

macro_rules! shop_on {
    ($database:ty, $places:literal) => {
        impl Shop for $database {
            async fn open(pool: &Pool<Self>, table: &ShopTable) -> Result<(), sqlx::Error> {
                sqlx::query(AssertSqlSafe(table.create())).execute(pool).await.map(drop)
            }

            async fn save(
                transaction: &mut Transaction<'_, Self>,
                table: &ShopTable,
                order: &Order,
            ) -> Result<(), sqlx::Error> {
                sqlx::query(AssertSqlSafe(table.insert($places)))
                    .bind(order.id.customer.cast_signed())
                    .bind(order.id.number.cast_signed())
                    .bind(i32::from(order.card_is_declined))
                    .execute(&mut **transaction)
                    .await
                    .map(drop)
            }

            async fn orders(pool: &Pool<Self>, table: &ShopTable) -> Result<Vec<Order>, sqlx::Error> {
                let rows: Vec<(i32, i64, i32)> =
                    sqlx::query_as(AssertSqlSafe(table.select())).fetch_all(pool).await?;
                Ok(rows.into_iter().map(order).collect())
            }

            async fn close(pool: &Pool<Self>, table: &ShopTable) -> Result<(), sqlx::Error> {
                sqlx::query(AssertSqlSafe(table.drop())).execute(pool).await.map(drop)
            }
        }
    };
}

shop_on!(sqlx::Postgres, "$1, $2, $3");
shop_on!(sqlx::MySql, "?, ?, ?");
shop_on!(sqlx::Sqlite, "?, ?, ?");

fn order((customer, number, card_is_declined): (i32, i64, i32)) -> Order {
    let id = OrderId { customer: customer.cast_unsigned(), number: number.cast_unsigned() };
    Order { id, card_is_declined: card_is_declined != 0 }
}
