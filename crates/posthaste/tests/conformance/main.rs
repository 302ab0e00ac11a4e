//! What holds on every database, stamped for each of them; and, in `mysql_family`, `postgres` and `sqlite`, what only those
//! have.
//! `cargo xtask test` starts the servers.
//!
//! A case is in the file of what it is about, and is generic over the `Server`. `fresh` gives it a database of its own, `stage`
//! handlers that remember and ways to wait, `listening` what is traced and logged, `dialect` the
//! words that databases do not share, `cases` the stamp.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is a failure")]

mod cases;
mod dialect;
mod effects;
mod fresh;
mod full_length;
mod ground;
mod listening;
mod modes;
mod mysql_family;
mod postgres;
mod proxy;
mod sqlite;
mod stage;
mod switch;

mod batches;
mod bounds;
mod browsing;
mod crashes;
mod dead_letter_life;
mod dead_letters;
mod delivery;
mod enqueueing;
mod exactly_once;
mod exactly_once_processes;
mod observing;
mod order;
mod outages;
mod pausing;
mod processes;
mod restarts;
mod retries;
mod schema;
mod secrets;
mod sending;
mod stalls;
mod stopping;
mod telemetry;
mod testing;
mod trace_context;
mod transactional;
mod transactional_blame;
mod transactional_sessions;
mod transactional_traps;
mod upkeep;
mod vacuum;
mod wake;
