//! A server as it would be run in earnest, for measuring: what is committed is on the disk, and there is memory to work in.

use std::ffi::OsString;

use super::{Engine, home::Place};
use crate::{database::Database, failure::Result};

/// A kind of server with settings for measuring; of two settings of one name, a server takes the later.
pub struct Durable(pub Box<dyn Engine>);

/// Besides what every private server is started with, of which `fsync` and the like are taken back here.
const POSTGRES: [&str; 6] = [
    "fsync=on",
    "full_page_writes=on",
    "shared_buffers=1GB",
    // No checkpoint in the middle of a run: who has it would pay for all.
    "max_wal_size=8GB",
    "checkpoint_timeout=30min",
    "pg_stat_statements.track=top",
];
const MARIADB: [&str; 7] = [
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-flush-method=O_DIRECT",
    "--innodb-doublewrite=1",
    "--innodb-buffer-pool-size=1G",
    "--innodb-log-file-size=1G",
    "--innodb-use-native-aio=1",
    "--performance-schema=OFF",
];

impl Engine for Durable {
    fn database(&self) -> Database {
        self.0.database()
    }

    fn version(&self) -> &str {
        self.0.version()
    }

    fn initialise(&self, place: &Place) -> Result<()> {
        self.0.initialise(place)
    }

    fn command(&self, place: &Place, port: u16) -> Vec<OsString> {
        let mut command = self.0.command(place, port);
        match self.database() {
            Database::Postgres => {
                command.extend(POSTGRES.iter().flat_map(|setting| ["-c".into(), OsString::from(setting)]));
            }
            Database::Mariadb | Database::Mysql => command.extend(MARIADB.map(OsString::from)),
            Database::Sqlite => {}
        }
        command
    }

    fn ready_line(&self) -> &'static str {
        self.0.ready_line()
    }

    fn url(&self, port: u16) -> String {
        self.0.url(port)
    }
}
