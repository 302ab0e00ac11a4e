//! The consumers: one for each queue, on a connection of its own.

use std::{sync::Arc, time::Duration};

use anyhow::Result;
use base64::{Engine, prelude::BASE64_STANDARD};
use harness::{Inbox, Origin, Target};
use pgmq::{Message, PGMQueueExt};
use sqlx::{Connection, PgConnection};
use tokio::{
    sync::{Notify, watch},
    task::{JoinHandle, JoinSet},
};

use crate::{
    queue_name,
    wake::{Wake, listen},
};

/// Messages that one call reads, and one deletes: a backlog is drained faster than by hundreds.
const BATCH: i32 = 1000;
/// How long the messages of a batch are invisible to others: that of the documentation's examples.
const VISIBILITY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one call polls, and how long a consumer waits for a notification before it looks by itself. Short, for a consumer
/// stops between two calls.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// What is running.
pub struct Consumers {
    tasks: JoinSet<Result<()>>,
    listener: Option<JoinHandle<()>>,
    stop: watch::Sender<bool>,
}

impl Consumers {
    pub async fn start(target: &Target, wake: Wake, queues: &PGMQueueExt, inbox: Inbox) -> Result<Self> {
        let owned = own(target).await?;
        let partitions: Vec<_> = owned.iter().map(|(partition, _)| *partition).collect();
        let (news, listener) = match wake {
            Wake::Polled { .. } => (Vec::new(), None),
            Wake::Notified => {
                let (news, listener) = listen(&target.url, &partitions).await?;
                (news, Some(listener))
            }
        };
        let mut news = news.into_iter();
        let (stop, stopped) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (partition, conn) in owned {
            let consumer = Consumer {
                partition,
                queue: queue_name(partition),
                queues: queues.clone(),
                conn,
                inbox: inbox.clone(),
                wake,
                news: news.next(),
            };
            match target.load.transactional {
                true => tasks.spawn(consumer.consume_in_transactions(stopped.clone())),
                false => tasks.spawn(consumer.consume(stopped.clone())),
            };
        }
        Ok(Self { tasks, listener, stop })
    }

    pub async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        while let Some(done) = self.tasks.join_next().await {
            done??;
        }
        if let Some(listener) = self.listener {
            listener.abort();
        }
        Ok(())
    }
}

/// The partitions that this process consumes, each with the connection that owns it: by an advisory lock of its session, so that
/// no queue has two consumers. Each of several processes takes its share.
async fn own(target: &Target) -> Result<Vec<(u32, PgConnection)>> {
    let share = target.load.partitions.div_ceil(target.load.worker_processes.max(1));
    let mut owned = Vec::new();
    let mut conn = PgConnection::connect(&target.url).await?;
    for partition in 0..target.load.partitions {
        if owned.len() == usize::try_from(share)? {
            break;
        }
        let free: bool = sqlx::query_scalar("SELECT pg_try_advisory_lock($1)")
            .bind(i64::from(partition))
            .fetch_one(&mut conn)
            .await?;
        if free {
            owned.push((partition, conn));
            conn = PgConnection::connect(&target.url).await?;
        }
    }
    Ok(owned)
}

struct Consumer {
    partition: u32,
    queue: String,
    queues: PGMQueueExt,
    conn: PgConnection,
    inbox: Inbox,
    wake: Wake,
    news: Option<Arc<Notify>>,
}

impl Consumer {
    /// Reads, handles, deletes.
    async fn consume(mut self, stopped: watch::Receiver<bool>) -> Result<()> {
        while !*stopped.borrow() {
            let batch = self.read().await?;
            if batch.is_empty() {
                self.news().await;
                continue;
            }
            for message in &batch {
                self.inbox.got(self.partition, &payload(message)?)?;
            }
            self.queues.delete_batch_with_cxn(&self.queue, &ids(&batch), &mut self.conn).await?;
        }
        Ok(())
    }

    /// A batch in order: that of the returned rows is not promised.
    async fn read(&mut self) -> Result<Vec<Message<String>>> {
        let Self { queue, queues, conn, .. } = self;
        let mut batch = match self.wake {
            Wake::Polled { interval } => {
                let (wait, interval) = (Some(MAX_WAIT), Some(interval));
                let polled = queues.read_batch_with_poll_with_cxn(
                    queue,
                    VISIBILITY_TIMEOUT,
                    BATCH,
                    wait,
                    interval,
                    conn,
                );
                polled.await?.unwrap_or_default()
            }
            Wake::Notified => queues.read_batch_with_cxn(queue, VISIBILITY_TIMEOUT, BATCH, conn).await?,
        };
        batch.sort_unstable_by_key(|message| message.msg_id);
        Ok(batch)
    }

    /// Waits where the reading has not.
    async fn news(&self) {
        if let Some(news) = &self.news {
            // Whether there was any, or only time has passed: it looks.
            tokio::time::timeout(MAX_WAIT, news.notified()).await.ok();
        }
    }

    /// Reads, inserts the effects and deletes in one transaction.
    async fn consume_in_transactions(mut self, stopped: watch::Receiver<bool>) -> Result<()> {
        while !*stopped.borrow() {
            let mut tx = self.conn.begin().await?;
            let mut batch: Vec<Message<String>> =
                self.queues.read_batch_with_cxn(&self.queue, VISIBILITY_TIMEOUT, BATCH, &mut *tx).await?;
            if batch.is_empty() {
                tx.rollback().await?;
                match self.wake {
                    Wake::Polled { interval } => tokio::time::sleep(interval).await,
                    Wake::Notified => self.news().await,
                }
                continue;
            }
            batch.sort_unstable_by_key(|message| message.msg_id);
            let payloads = batch.iter().map(payload).collect::<Result<Vec<_>>>()?;
            let origins = payloads.iter().map(|payload| Origin::of(payload)).collect::<Result<Vec<_>>>()?;
            insert_effects(&mut tx, &origins).await?;
            for payload in &payloads {
                self.inbox.got(self.partition, payload)?;
            }
            self.queues.delete_batch_with_cxn(&self.queue, &ids(&batch), &mut *tx).await?;
            tx.commit().await?;
        }
        Ok(())
    }
}

fn ids(batch: &[Message<String>]) -> Vec<i64> {
    batch.iter().map(|message| message.msg_id).collect()
}

fn payload(message: &Message<String>) -> Result<Vec<u8>> {
    Ok(BASE64_STANDARD.decode(&message.message)?)
}

async fn insert_effects(conn: &mut PgConnection, origins: &[Origin]) -> Result<()> {
    let producers: Vec<_> = origins.iter().map(|origin| origin.producer.cast_signed()).collect();
    let numbers: Vec<_> = origins.iter().map(|origin| origin.number.cast_signed()).collect();
    sqlx::query("INSERT INTO effects SELECT * FROM UNNEST($1::int4[], $2::int8[])")
        .bind(producers)
        .bind(numbers)
        .execute(conn)
        .await?;
    Ok(())
}
