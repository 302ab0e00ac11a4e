//! What only MySQL and MariaDB have: sessions that do not know that they are in a transaction, deadlocks, statements that
//! commit by themselves, servers with odd settings. Stamped for both; the folder has neither's name, by which tests are
//! selected.

mod contention;
mod cost;
mod enqueueing;
mod handlers;
mod long_snapshots;
mod odd_settings;
mod order;
mod plans;
mod processes;
mod refused_commits;
mod schema;
mod silence;
mod testing;
mod together;
mod wire;

use std::hash::{BuildHasher, RandomState};

use sqlx::MySql;

use crate::fresh::Server;

/// A server of the family.
pub trait Family: Server<Db = MySql> {}

impl<S: Server<Db = MySql>> Family for S {}

/// Stamps cases for both, as [`cases!`](crate::cases::cases) does for all.
macro_rules! on_both {
    ($($cases:tt)+) => {
        $crate::cases::cases!(@on mariadb Mariadb $($cases)+);
        $crate::cases::cases!(@on mysql Mysql $($cases)+);
    };
}
use on_both;

/// Throws of a dice that no two tests have in common.
struct Dice {
    state: RandomState,
    throws: u64,
}

impl Dice {
    fn new() -> Self {
        Self { state: RandomState::new(), throws: 0 }
    }

    /// From 0 to `end`, which is left out.
    fn below(&mut self, end: u64) -> u64 {
        self.throws += 1;
        self.state.hash_one(self.throws) % end
    }
}
