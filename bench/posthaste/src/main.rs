//! The adapter of posthaste. Its variants are the profiles; without one it is `auto()`, which adapts itself.

mod databases;

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Result, bail};
use bench_harness::{Inbox, Origin, Outgoing, Producer, System, Target};
use posthaste::{
    Batch, EnqueueMessage, HandlerResult, LeasedHandler, Outbox, OutboxHandle, OutboxMessage, OutboxProfile,
    Partitions, TransactionalHandler,
};
use sqlx::{MySql, Pool, Postgres, Sqlite, pool::PoolConnection};
use tokio::sync::OnceCell;

use databases::Own;

const QUEUE: &str = "bench";

fn main() -> ExitCode {
    // Which of the types below it is must be known before the command line is read.
    let database = std::env::args().skip_while(|argument| argument != "--db").nth(1);
    match database.as_deref() {
        Some("sqlite") => bench_harness::main::<Posthaste<Sqlite>>(),
        Some("mariadb") => bench_harness::main::<Posthaste<MySql>>(),
        _ => bench_harness::main::<Posthaste<Postgres>>(),
    }
}

struct Posthaste<DB: Own> {
    target: Target,
    pool: Pool<DB>,
    /// That of the workers where they are in this process, as in a service that has both.
    outbox: OnceCell<Outbox<DB>>,
}

impl<DB: Own> Posthaste<DB> {
    fn profile(&self) -> Result<OutboxProfile> {
        Ok(match self.target.variant.as_deref() {
            None => OutboxProfile::auto(),
            Some("default") => OutboxProfile::default_profile(),
            Some("low-latency") => OutboxProfile::low_latency(),
            Some("high-throughput") => OutboxProfile::high_throughput(),
            Some(other) => {
                bail!("no profile {other:?}: default, low-latency or high-throughput; none is auto")
            }
        })
    }

    fn partitions(&self) -> Partitions {
        Partitions::of(self.target.load.partitions)
    }
}

impl<DB: Own> System for Posthaste<DB>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    type Producer = Sender<DB>;
    type Workers = OutboxHandle<DB>;

    async fn open(target: &Target) -> Result<Self> {
        Ok(Self { target: target.clone(), pool: DB::pool(target).await?, outbox: OnceCell::new() })
    }

    async fn prepare(&self) -> Result<()> {
        posthaste::migrate(&self.pool).await?;
        let outbox = Outbox::connect(self.pool.clone()).await?;
        outbox.register(QUEUE, self.partitions()).await?;
        if self.target.load.transactional {
            DB::make_effects(&self.pool).await?;
        }
        Ok(())
    }

    async fn producer(&self) -> Result<Sender<DB>> {
        let connect = || Outbox::connect(self.pool.clone());
        let outbox = self.outbox.get_or_try_init(connect).await?.clone();
        Ok(Sender { outbox, conn: self.pool.acquire().await?, open_for: self.target.load.open_for })
    }

    async fn deliver(&self, inbox: Inbox) -> Result<Option<OutboxHandle<DB>>> {
        let outbox = Outbox::builder(self.pool.clone()).profile(self.profile()?);
        let handle = if self.target.load.transactional {
            let queue = outbox.queue(QUEUE, self.partitions());
            queue.batch_transactional(Handler { inbox }).start().await?
        } else {
            // A leased handler holds no connection: there may be one for each partition.
            let processors = usize::try_from(self.target.load.partitions)?;
            let queue = outbox.processors(processors).queue(QUEUE, self.partitions());
            queue.leased(Handler { inbox }).start().await?
        };
        self.outbox.set(handle.outbox()).ok().context("the workers start before the producers")?;
        Ok(Some(handle))
    }

    async fn stop(&self, handle: OutboxHandle<DB>) -> Result<()> {
        handle.stop().await;
        Ok(())
    }

    async fn is_clean(&self) -> Result<Option<bool>> {
        DB::is_clean(&self.pool).await.map(Some)
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        DB::count_effects(&self.pool).await
    }
}

/// A producer on a connection of its own.
struct Sender<DB: Own> {
    outbox: Outbox<DB>,
    conn: PoolConnection<DB>,
    open_for: Option<Duration>,
}

impl<DB: Own> Producer for Sender<DB> {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| EnqueueMessage::new(message.payload.as_slice()).partition(message.partition))
            .collect();
        let mut tx = sqlx::Acquire::begin(&mut self.conn).await?;
        self.outbox.enqueue_batch(&mut tx, QUEUE, &messages).await?;
        if let Some(open_for) = self.open_for {
            tokio::time::sleep(open_for).await;
        }
        Ok(tx.commit().await?)
    }
}

struct Handler {
    inbox: Inbox,
}

impl LeasedHandler for Handler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        while let Some(message) = batch.next_msg() {
            if let Err(error) = self.inbox.got(message.partition, &message.payload) {
                return HandlerResult::Reject { reason: error.to_string() };
            }
        }
        HandlerResult::Success
    }
}

impl<DB: Own> TransactionalHandler<DB> for Handler {
    async fn handle(&self, conn: &mut DB::Connection, messages: &[OutboxMessage]) -> HandlerResult {
        let origins: Result<Vec<_>> = messages.iter().map(|message| Origin::of(&message.payload)).collect();
        let done = async {
            DB::insert_effects(conn, &origins?).await?;
            messages.iter().try_for_each(|message| self.inbox.got(message.partition, &message.payload))
        };
        done.await.into()
    }
}
