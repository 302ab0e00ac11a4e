//! The adapter of cf-modkit-db's outbox. Without a variant its vacuum is as by default, when it sleeps for an hour; with
//! `vacuum` it is made to run all the time.

mod database;
mod settings;

use std::{collections::HashMap, process::ExitCode, sync::Arc};

use anyhow::{Context, Result, bail};
use harness::{Database, Inbox, Origin, Outgoing, Producer, System, Target};
use modkit_db::{
    Db,
    migration_runner::run_migrations_for_module,
    outbox::{
        Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxHandle, OutboxMessage, Partitions,
        TransactionalHandler, outbox_migrations,
    },
};
use sea_orm::{ConnectionTrait, DatabaseConnection};
use tokio::sync::OnceCell;

use settings::Settings;

const QUEUE: &str = "bench";
const PAYLOAD_TYPE: &str = "bench";

fn main() -> ExitCode {
    harness::main::<Modkit>()
}

struct Modkit {
    target: Target,
    settings: Settings,
    db: Db,
    /// For what its interface does not tell.
    beside: DatabaseConnection,
    /// That of the workers where they are in this process: the only ones whom an enqueue can wake.
    outbox: OnceCell<Arc<Outbox>>,
}

impl Modkit {
    fn partitions(&self) -> Result<Partitions> {
        Ok(Partitions::of(self.target.load.partitions.try_into()?))
    }

    /// An outbox is had by starting one. This one has stopped, and its queue no handler: it takes messages and does nothing.
    async fn without_workers(&self) -> Result<Arc<Outbox>> {
        let handle = self.settings.builder(&self.db).start().await?;
        let outbox = Arc::clone(handle.outbox());
        handle.stop().await;
        outbox.register_queue(&self.db, QUEUE, self.partitions()?.count()).await?;
        Ok(outbox)
    }
}

impl System for Modkit {
    type Producer = Sender;
    type Workers = OutboxHandle;

    async fn open(target: &Target) -> Result<Self> {
        let settings = Settings::of(target)?;
        let db = database::connect(target, settings.connections).await?;
        let beside = database::beside(&target.url).await?;
        Ok(Self { target: target.clone(), settings, db, beside, outbox: OnceCell::new() })
    }

    async fn prepare(&self) -> Result<()> {
        run_migrations_for_module(&self.db, QUEUE, outbox_migrations()).await?;
        self.without_workers().await?;
        if self.target.load.transactional {
            database::make_effects(&self.beside).await?;
        }
        Ok(())
    }

    async fn producer(&self) -> Result<Sender> {
        let outbox = self.outbox.get_or_try_init(|| self.without_workers()).await?;
        Ok(Sender { db: self.db.clone(), outbox: Arc::clone(outbox) })
    }

    async fn deliver(&self, inbox: Inbox) -> Result<Option<OutboxHandle>> {
        if self.target.database == Database::Sqlite && self.target.load.worker_processes > 0 {
            bail!("its documentation allows one process on SQLite");
        }
        let handler = Handler { inbox, partitions: database::partitions_by_id(&self.beside, QUEUE).await? };
        let queue = self.settings.builder(&self.db).queue(QUEUE, self.partitions()?);
        let handle = match self.target.load.transactional {
            true => queue.batch_transactional(handler).start().await?,
            false => queue.leased(handler).start().await?,
        };
        let outbox = Arc::clone(handle.outbox());
        self.outbox.set(outbox).ok().context("the workers start before the producers")?;
        Ok(Some(handle))
    }

    async fn stop(&self, handle: OutboxHandle) -> Result<()> {
        handle.stop().await;
        Ok(())
    }

    async fn is_clean(&self) -> Result<Option<bool>> {
        Ok(match self.settings.vacuums {
            true => Some(database::is_empty(&self.beside).await?),
            false => None,
        })
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        database::count_effects(&self.beside).await
    }
}

struct Sender {
    db: Db,
    outbox: Arc<Outbox>,
}

impl Producer for Sender {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| EnqueueMessage {
                partition: message.partition,
                payload: message.payload.clone(),
                payload_type: PAYLOAD_TYPE,
            })
            .collect();
        let outbox = Arc::clone(&self.outbox);
        // It wakes the sequencers after the commit.
        let sent = self.outbox.transaction(self.db.clone(), |tx| {
            Box::pin(async move {
                match <[_; 1]>::try_from(messages) {
                    // One by itself costs fewer statements than a batch of one.
                    Ok([message]) => {
                        let EnqueueMessage { partition, payload, payload_type } = message;
                        outbox.enqueue(tx, QUEUE, partition, payload, payload_type).await?;
                    }
                    Err(messages) => {
                        outbox.enqueue_batch(tx, QUEUE, &messages).await?;
                    }
                }
                Ok(())
            })
        });
        sent.await.1
    }
}

struct Handler {
    inbox: Inbox,
    partitions: HashMap<i64, u32>,
}

impl Handler {
    fn got(&self, message: &OutboxMessage) -> Result<()> {
        let partition =
            self.partitions.get(&message.partition_id).context("a message of no known partition")?;
        self.inbox.got(*partition, &message.payload)
    }
}

fn reject(error: &anyhow::Error) -> HandlerResult {
    HandlerResult::Reject { reason: error.to_string() }
}

#[async_trait::async_trait]
impl LeasedHandler for Handler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while let Some(message) = batch.next_msg() {
            if let Err(error) = self.got(message) {
                return reject(&error);
            }
            batch.ack();
        }
        HandlerResult::Success
    }
}

#[async_trait::async_trait]
impl TransactionalHandler for Handler {
    async fn handle(&self, conn: &dyn ConnectionTrait, messages: &[OutboxMessage]) -> HandlerResult {
        let done = async {
            let origins: Result<Vec<_>> =
                messages.iter().map(|message| Origin::of(&message.payload)).collect();
            database::insert_effects(conn, &origins?).await?;
            messages.iter().try_for_each(|message| self.got(message))
        };
        // What the database says, a deadlock for one, is no fault of the messages.
        let retry = |error: anyhow::Error| HandlerResult::Retry { reason: error.to_string() };
        done.await.map_or_else(retry, |()| HandlerResult::Success)
    }
}
