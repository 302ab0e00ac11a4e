//! What a run costs the server and the client.

mod mysql;
mod postgres;
mod process;

use anyhow::Result;

pub use self::process::{peak_bytes, reset_peak};
use crate::system::{Database, Target};

/// Counts so far; a run's cost is the difference of two readings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading {
    /// Write-ahead log, or redo log; on SQLite all bytes written to its files.
    pub log_bytes: u64,
    pub server_cpu_us: u64,
    pub client_cpu_us: u64,
}

/// Counts that a server brings up to date only when sessions end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Statements {
    pub statements: u64,
    pub commits: u64,
}

enum Server {
    Postgres(postgres::Meter),
    Mysql(mysql::Meter),
    /// There is none: all work is the client's.
    None,
}

pub struct Meter {
    server: Server,
    server_pid: Option<u32>,
}

impl Meter {
    /// `admin_url` is the server's, not that of the run's own database, whose sessions are counted.
    pub async fn attach(target: &Target, admin_url: &str, server_pid: Option<u32>) -> Result<Self> {
        let server = match target.database {
            Database::Postgres => Server::Postgres(postgres::Meter::attach(admin_url, &target.url).await?),
            Database::Mariadb => Server::Mysql(mysql::Meter::attach(admin_url).await?),
            Database::Sqlite => Server::None,
        };
        Ok(Self { server, server_pid })
    }

    pub async fn read(&mut self) -> Result<Reading> {
        let log_bytes = match &mut self.server {
            Server::Postgres(meter) => meter.log_bytes().await?,
            Server::Mysql(meter) => meter.log_bytes().await?,
            Server::None => process::written_bytes()?,
        };
        let server_cpu_us = self.server_pid.map_or(Ok(0), process::tree_cpu_us)?;
        Ok(Reading { log_bytes, server_cpu_us, client_cpu_us: process::tree_cpu_us(std::process::id())? })
    }

    /// None on SQLite, which does not count. To be read when the run's own sessions are closed.
    pub async fn statements(&mut self) -> Result<Option<Statements>> {
        Ok(match &mut self.server {
            Server::Postgres(meter) => Some(meter.statements().await?),
            Server::Mysql(meter) => Some(meter.statements().await?),
            Server::None => None,
        })
    }
}

/// Of the part of a URL behind its last slash, without options: the name of a database.
fn database_name(url: &str) -> &str {
    let path = url.split('?').next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or_default()
}
