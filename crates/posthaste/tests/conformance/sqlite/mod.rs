//! What is special to SQLite: one writer at a time, databases in memory, the log that is written ahead.

mod busy;
mod cost;
mod log;
mod memory;
mod patience;
mod pipeline;
mod processes;
mod schema;
mod sizes;
mod stage;
mod testing;
mod traps;
