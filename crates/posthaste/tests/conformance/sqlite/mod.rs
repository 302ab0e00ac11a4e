//! What is special to SQLite: one writer at a time, databases in memory, the log that is written ahead.

mod memory;
mod pipeline;
mod schema;
mod stage;
mod traps;
