//! What holds on every database, stamped for each of them; and, in `postgres`, the pipeline on PostgreSQL.
//! `cargo xtask test` starts the servers.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is a failure")]

mod fresh;
mod ground;
mod postgres;
mod sqlite;
