//! The limit: the same messages into a table with an id key and nothing else, one statement for those of a transaction, and nobody
//! who reads or removes them. What a message costs beyond this is what an outbox costs. A row has what a message has: partition,
//! type, time and payload; in the variant `payload` it has the partition and the payload only.

use std::process::ExitCode;

use anyhow::{Result, bail};
use bench_harness::{Database, Inbox, Outgoing, Producer, System, Target};
use sqlx::{
    AssertSqlSafe, Connection, MySqlConnection, PgConnection, QueryBuilder, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

fn main() -> ExitCode {
    bench_harness::main::<Bare>()
}

struct Bare {
    target: Target,
}

enum Session {
    Postgres(PgConnection),
    Mysql(MySqlConnection),
    Sqlite(SqliteConnection),
}

impl Bare {
    /// What a message has besides; nothing in the variant without it.
    fn more(&self, columns: &'static str) -> Result<&'static str> {
        match self.target.variant.as_deref() {
            None => Ok(columns),
            Some("payload") => Ok(""),
            Some(other) => bail!("no variant {other:?}: payload, or none for all that a message has"),
        }
    }

    async fn session(&self) -> Result<Session> {
        let url = &self.target.url;
        Ok(match self.target.database {
            Database::Postgres => Session::Postgres(PgConnection::connect(url).await?),
            Database::Mariadb => Session::Mysql(MySqlConnection::connect(url).await?),
            Database::Sqlite => {
                let options: SqliteConnectOptions = url.parse()?;
                let options = options
                    .create_if_missing(true)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .busy_timeout(std::time::Duration::from_secs(60));
                Session::Sqlite(SqliteConnection::connect_with(&options).await?)
            }
        })
    }
}

impl System for Bare {
    type Producer = Session;
    type Workers = ();

    async fn open(target: &Target) -> Result<Self> {
        Ok(Self { target: target.clone() })
    }

    async fn prepare(&self) -> Result<()> {
        match &mut self.session().await? {
            Session::Postgres(conn) => {
                let more = self.more("payload_type text NOT NULL DEFAULT 'application/octet-stream', created_at timestamptz NOT NULL DEFAULT clock_timestamp(),")?;
                sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE bare (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition int NOT NULL, {more} payload bytea NOT NULL)")))
                    .execute(conn).await?;
            }
            Session::Mysql(conn) => {
                let more = self.more("payload_type varchar(255) NOT NULL DEFAULT 'application/octet-stream', created_at datetime(6) NOT NULL DEFAULT current_timestamp(6),")?;
                sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE bare (id bigint AUTO_INCREMENT PRIMARY KEY, `partition` int NOT NULL, {more} payload mediumblob NOT NULL) ENGINE = InnoDB")))
                    .execute(conn).await?;
            }
            Session::Sqlite(conn) => {
                let more = self.more("payload_type TEXT NOT NULL DEFAULT 'application/octet-stream', created_at INTEGER NOT NULL DEFAULT (unixepoch()),")?;
                sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE bare (id INTEGER PRIMARY KEY AUTOINCREMENT, partition INTEGER NOT NULL, {more} payload BLOB NOT NULL)")))
                    .execute(conn).await?;
            }
        }
        Ok(())
    }

    async fn producer(&self) -> Result<Session> {
        self.session().await
    }

    async fn deliver(&self, _: Inbox) -> Result<Option<()>> {
        if self.target.load.waiting || self.target.load.worker_processes > 0 {
            bail!(
                "nobody reads the bare table: only loads that are delivered as they are sent can be compared"
            );
        }
        Ok(None)
    }

    async fn stop(&self, (): ()) -> Result<()> {
        Ok(())
    }

    async fn is_clean(&self) -> Result<Option<bool>> {
        Ok(None)
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        const COUNT: &str = "SELECT count(*), count(DISTINCT payload) FROM bare";
        let (rows, different): (i64, i64) = match self.session().await? {
            Session::Postgres(mut conn) => sqlx::query_as(COUNT).fetch_one(&mut conn).await?,
            Session::Mysql(mut conn) => sqlx::query_as(COUNT).fetch_one(&mut conn).await?,
            Session::Sqlite(mut conn) => sqlx::query_as(COUNT).fetch_one(&mut conn).await?,
        };
        Ok((rows.try_into()?, different.try_into()?))
    }
}

impl Producer for Session {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        match self {
            Self::Postgres(conn) => {
                let partitions: Vec<_> =
                    messages.iter().map(|message| message.partition.cast_signed()).collect();
                let payloads: Vec<_> = messages.iter().map(|message| message.payload.as_slice()).collect();
                let mut tx = conn.begin().await?;
                if let [one] = messages {
                    sqlx::query("INSERT INTO bare (partition, payload) VALUES ($1, $2)")
                        .bind(one.partition.cast_signed())
                        .bind(one.payload.as_slice())
                        .execute(&mut *tx)
                        .await?;
                    return Ok(tx.commit().await?);
                }
                sqlx::query(
                    "INSERT INTO bare (partition, payload) SELECT * FROM UNNEST($1::int4[], $2::bytea[])",
                )
                .bind(partitions)
                .bind(payloads)
                .execute(&mut *tx)
                .await?;
                tx.commit().await?;
            }
            Self::Mysql(conn) => {
                let mut tx = conn.begin().await?;
                let mut insert = QueryBuilder::new("INSERT INTO bare (`partition`, payload) ");
                insert.push_values(messages, |mut row, message| {
                    row.push_bind(message.partition).push_bind(message.payload.as_slice());
                });
                insert.build().execute(&mut *tx).await?;
                tx.commit().await?;
            }
            Self::Sqlite(conn) => {
                let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
                let mut insert = QueryBuilder::new("INSERT INTO bare (partition, payload) ");
                insert.push_values(messages, |mut row, message| {
                    row.push_bind(message.partition).push_bind(message.payload.as_slice());
                });
                insert.build().execute(&mut *tx).await?;
                tx.commit().await?;
            }
        }
        Ok(())
    }
}
