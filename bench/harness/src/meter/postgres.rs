//! What PostgreSQL counts: its log's position, the statements by pg_stat_statements, a database's transactions.

use std::time::{Duration, Instant};

use anyhow::Result;
use sqlx::{Connection, PgConnection};

use super::Statements;

const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

pub struct Meter {
    conn: PgConnection,
    database: String,
}

impl Meter {
    pub async fn attach(admin_url: &str, own_url: &str) -> Result<Self> {
        let mut conn = PgConnection::connect(admin_url).await?;
        sqlx::query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&mut conn).await?;
        Ok(Self { conn, database: super::database_name(own_url).to_owned() })
    }

    async fn sessions(&mut self) -> Result<i64> {
        let sessions =
            "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'";
        Ok(sqlx::query_scalar(sessions).bind(&self.database).fetch_one(&mut self.conn).await?)
    }

    pub async fn log_bytes(&mut self) -> Result<u64> {
        let position: i64 = sqlx::query_scalar("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
            .fetch_one(&mut self.conn)
            .await?;
        Ok(position.try_into()?)
    }

    /// A session's counts are complete when it has ended, so this waits until all have. A pooler keeps its idle sessions, so
    /// these are ended.
    pub async fn statements(&mut self) -> Result<Statements> {
        let asked = Instant::now();
        while self.sessions().await? > 0 {
            anyhow::ensure!(asked.elapsed() < PATIENCE, "sessions are left in {}", self.database);
            let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND state = 'idle'";
            sqlx::query(end).bind(&self.database).execute(&mut self.conn).await?;
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        let (statements, commits): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT coalesce(sum(s.calls), 0)::int8 FROM pg_stat_statements s WHERE s.dbid = d.datid AND s.toplevel),
                    d.xact_commit
             FROM pg_stat_database d WHERE d.datname = $1",
        )
        .bind(&self.database)
        .fetch_one(&mut self.conn)
        .await?;
        Ok(Statements { statements: statements.try_into()?, commits: commits.try_into()? })
    }
}
