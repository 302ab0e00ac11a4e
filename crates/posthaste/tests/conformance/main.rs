//! What holds on every database, stamped for each of them. `cargo xtask test` starts the servers.

mod fresh;
mod ground;
