//! The pipeline on PostgreSQL, from enqueue to delivery.

mod batches;
mod bounds;
mod cost;
mod crashes;
mod dead_letters;
mod delivery;
mod effects;
mod enqueueing;
mod modes;
mod order;
mod pooler;
mod processes;
mod restarts;
mod retries;
mod schema;
mod stage;
mod stopping;
mod transactional;
mod transactional_blame;
mod transactional_constraints;
mod transactional_sessions;
mod upkeep;
mod vacuum;
mod wake;
