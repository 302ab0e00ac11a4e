//! What the shop does with its own table. A service on one database would simply do it.

use posthaste::Backend;
use sqlx::{AssertSqlSafe, Pool, Transaction};

use super::{
    order::{Order, OrderId},
    stage::Stage,
};

/// The shop's table: it is beside those of its outbox, and its name begins as theirs do.
#[derive(Debug, Clone)]
pub struct ShopTable {
    name: String,
}

impl ShopTable {
    pub fn new<DB: Shop>(stage: &Stage) -> Self {
        Self { name: name::<DB>(stage, "orders") }
    }

    /// It must not be there yet: whoever makes it may remove it again.
    fn create(&self, engine: &str) -> String {
        format!(
            "CREATE TABLE {} (customer INTEGER NOT NULL, number BIGINT NOT NULL, card_is_declined INTEGER NOT NULL, \
             PRIMARY KEY (customer, number)){engine}",
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

/// The name of a table as SQL has it.
fn name<DB: Shop>(stage: &Stage, table: &str) -> String {
    let quoted = |name: &str| format!("{0}{name}{0}", DB::QUOTE);
    let table = quoted(&format!("{}{table}", stage.prefix));
    stage.schema.as_deref().map_or(table.clone(), |schema| format!("{}.{table}", quoted(schema)))
}

/// What removes all tables, for whoever has to do it by hand.
pub fn removal<DB: Shop>(stage: &Stage) -> String {
    let outbox = posthaste::drop_tables_sql::<DB>(&stage.tables);
    format!("DROP TABLE IF EXISTS {}; {}", name::<DB>(stage, "orders"), outbox.trim_end().replace('\n', " "))
}

/// A database that the shop can be on.
pub trait Shop: Backend {
    /// What names are quoted with. Those of the demo were checked, and have none of it in them.
    const QUOTE: char;

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
    ($database:ty, $places:literal, $quote:literal, $engine:literal) => {
        impl Shop for $database {
            const QUOTE: char = $quote;

            async fn open(pool: &Pool<Self>, table: &ShopTable) -> Result<(), sqlx::Error> {
                sqlx::query(AssertSqlSafe(table.create($engine))).execute(pool).await.map(drop)
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

shop_on!(sqlx::Postgres, "$1, $2, $3", '"', "");
// Other engines would keep what is rolled back.
shop_on!(sqlx::MySql, "?, ?, ?", '`', " ENGINE = InnoDB");
shop_on!(sqlx::Sqlite, "?, ?, ?", '"', "");

fn order((customer, number, card_is_declined): (i32, i64, i32)) -> Order {
    let id = OrderId { customer: customer.cast_unsigned(), number: number.cast_unsigned() };
    Order { id, card_is_declined: card_is_declined != 0 }
}
