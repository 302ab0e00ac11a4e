//! The adapter of pgmq: a queue for each partition, each read by one consumer in the order of its message ids. The messages are
//! JSON, so the payloads are sent as base64.
//!
//! Its own groups within a queue keep an order too, but each read of them looks at all that waits. The variants `poll` and `notify`
//! say how the consumers learn of new messages.

mod consumer;
mod wake;

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use anyhow::{Result, ensure};
use base64::{Engine, prelude::BASE64_STANDARD};
use harness::{Database, Inbox, Outgoing, Producer, System, Target};
use pgmq::PGMQueueExt;
use sqlx::{Connection, PgConnection, postgres::PgPoolOptions};

use consumer::Consumers;
use wake::Wake;

/// The pool is for what is asked now and then: producers and consumers have connections of their own.
const POOL_CONNECTIONS: u32 = 2;
/// Every insert notifies; a throttle of more would be added to the latency.
const NO_THROTTLE: Duration = Duration::ZERO;

fn main() -> ExitCode {
    harness::main::<Pgmq>()
}

pub struct Pgmq {
    target: Target,
    wake: Wake,
    queues: PGMQueueExt,
}

/// The queue of a partition.
fn queue_name(partition: u32) -> String {
    format!("bench_{partition}")
}

impl System for Pgmq {
    type Producer = Sender;
    type Workers = Consumers;

    async fn open(target: &Target) -> Result<Self> {
        ensure!(target.database == Database::Postgres, "pgmq is for PostgreSQL alone");
        let wake = Wake::of(target)?;
        let pool = PgPoolOptions::new().max_connections(POOL_CONNECTIONS).connect(&target.url).await?;
        let queues = PGMQueueExt::new_with_pool(pool).await;
        Ok(Self { target: target.clone(), wake, queues })
    }

    async fn prepare(&self) -> Result<()> {
        self.queues.install_sql_from_embedded().await?;
        for partition in 0..self.target.load.partitions {
            let queue = queue_name(partition);
            self.queues.create(&queue).await?;
            if self.wake == Wake::Notified {
                self.queues.enable_notify_insert(&queue, NO_THROTTLE).await?;
            }
        }
        if self.target.load.transactional {
            sqlx::raw_sql("CREATE TABLE effects (producer int NOT NULL, number bigint NOT NULL)")
                .execute(&self.queues.connection)
                .await?;
        }
        Ok(())
    }

    async fn producer(&self) -> Result<Sender> {
        let conn = PgConnection::connect(&self.target.url).await?;
        Ok(Sender { queues: self.queues.clone(), conn })
    }

    async fn deliver(&self, inbox: Inbox) -> Result<Option<Consumers>> {
        Ok(Some(Consumers::start(&self.target, self.wake, &self.queues, inbox).await?))
    }

    async fn stop(&self, consumers: Consumers) -> Result<()> {
        consumers.stop().await?;
        self.queues.connection.close().await;
        Ok(())
    }

    async fn is_clean(&self) -> Result<Option<bool>> {
        let left: i64 = sqlx::query_scalar("SELECT sum(queue_length)::bigint FROM pgmq.metrics_all()")
            .fetch_one(&self.queues.connection)
            .await?;
        Ok(Some(left == 0))
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        // Asked when the workers have stopped, and the pool with them.
        let (rows, different): (i64, i64) =
            sqlx::query_as("SELECT count(*), count(DISTINCT (producer, number)) FROM effects")
                .fetch_one(&mut PgConnection::connect(&self.target.url).await?)
                .await?;
        Ok((rows.try_into()?, different.try_into()?))
    }
}

/// A producer on a connection of its own.
pub struct Sender {
    queues: PGMQueueExt,
    conn: PgConnection,
}

impl Producer for Sender {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        // In the order of the partitions, for all producers the same, so that two of them do not deadlock on rows that the
        // insert notifications of their queues write.
        let mut by_partition: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for message in messages {
            let texts = by_partition.entry(message.partition).or_default();
            texts.push(BASE64_STANDARD.encode(&message.payload));
        }
        let mut tx = self.conn.begin().await?;
        for (partition, texts) in &by_partition {
            let queue = queue_name(*partition);
            match texts.as_slice() {
                [text] => self.queues.send_with_cxn(&queue, text, &mut *tx).await.map(drop)?,
                texts => self.queues.send_batch_with_cxn(&queue, texts, &mut *tx).await.map(drop)?,
            }
        }
        Ok(tx.commit().await?)
    }
}
