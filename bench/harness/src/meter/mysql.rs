//! What MariaDB counts: bytes of redo log, statements of all clients, transactions that wrote.

use anyhow::{Context, Result};
use sqlx::{Connection, MySqlConnection};

use super::Statements;

pub struct Meter {
    conn: MySqlConnection,
}

impl Meter {
    pub async fn attach(admin_url: &str) -> Result<Self> {
        let mut conn = MySqlConnection::connect(admin_url).await?;
        sqlx::query("SET GLOBAL innodb_monitor_enable = 'trx_rw_commits'").execute(&mut conn).await?;
        Ok(Self { conn })
    }

    async fn status(&mut self, name: &str) -> Result<u64> {
        let value: String = sqlx::query_scalar(
            "SELECT variable_value FROM information_schema.global_status WHERE variable_name = ?",
        )
        .bind(name)
        .fetch_one(&mut self.conn)
        .await
        .with_context(|| format!("cannot read {name}"))?;
        Ok(value.parse()?)
    }

    pub async fn log_bytes(&mut self) -> Result<u64> {
        self.status("Innodb_os_log_written").await
    }

    pub async fn statements(&mut self) -> Result<Statements> {
        let statements = self.status("Questions").await?;
        let commits: i64 = sqlx::query_scalar(
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rw_commits'",
        )
        .fetch_one(&mut self.conn)
        .await?;
        Ok(Statements { statements, commits: commits.try_into()? })
    }
}
