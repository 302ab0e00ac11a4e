//! What only PostgreSQL has: poolers, dumps, deferred constraints, sessions with settings, statistics of statements.

mod bounds;
mod chains;
mod cost;
mod delivery;
mod exactly_once;
mod monitor;
mod pooler;
mod schema;
mod together;
mod transactional_constraints;
mod transactional_cost;
mod transactional_sessions;
mod transactional_traps;
mod upkeep;
mod vacuum;

use sqlx::PgPool;

use crate::{
    fresh::{Fresh, servers},
    stage,
};

type Db = Fresh<servers::Postgres>;

async fn fresh() -> Db {
    stage::fresh().await
}

async fn unmigrated() -> Db {
    stage::unmigrated().await
}

/// The number that a query finds, which is asked as it is: the server counts queries by their texts.
async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
}
