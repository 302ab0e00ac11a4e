//! What only MySQL and MariaDB have: sessions that do not know that they are in a transaction, deadlocks, statements that
//! commit by themselves, servers with odd settings. Stamped for both; the folder has neither's name, by which tests are
//! selected.

mod enqueueing;

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
