//! The adapter of graphile_worker: a named queue for each partition, whose jobs run one after the other. Payloads of jobs are
//! JSON, so the messages' are sent as base64.
//!
//! What a transaction sends to one partition is one batch job. A job for each message would lose the order: the jobs of a
//! transaction have the same time, and the worker takes jobs by their time alone.

mod task;

use std::{collections::BTreeMap, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use graphile_worker::{
    BatchTaskHandler, JobSpecBuilder, LocalQueueConfig, RawJobSpec, Worker, WorkerOptions, WorkerUtils,
};
use harness::{Database, Inbox, Outgoing, Producer, System, Target};
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::task::JoinHandle;

use task::{Delivery, Item};

const SCHEMA: &str = "graphile_worker";
/// That of a pool which it makes by itself.
const POOL_CONNECTIONS: u32 = 20;
// The "throughput-oriented worker" of its documentation. Shorter polls, a larger local queue, two of them, none, and
// completions without delay were no faster.
const CONCURRENCY: usize = 16;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const BATCH_DELAY: Duration = Duration::from_millis(5);
const LOCAL_QUEUE: usize = 100;
const LOCAL_QUEUE_TTL: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    harness::main::<GraphileWorker>()
}

struct GraphileWorker {
    target: Target,
    pool: PgPool,
}

/// What runs the jobs.
struct Running {
    worker: Arc<Worker>,
    task: JoinHandle<Result<()>>,
}

impl GraphileWorker {
    fn utils(&self) -> WorkerUtils {
        WorkerUtils::new(self.pool.clone(), SCHEMA)
    }
}

impl System for GraphileWorker {
    type Producer = Sender;
    type Workers = Running;

    async fn open(target: &Target) -> Result<Self> {
        ensure!(target.database == Database::Postgres, "graphile_worker is for PostgreSQL alone");
        if target.load.transactional {
            bail!(
                "graphile_worker completes a job in a transaction of its own, which its handler cannot write in"
            );
        }
        if let Some(variant) = &target.variant {
            bail!("no variant {variant:?}: there is one way");
        }
        let pool = PgPoolOptions::new().max_connections(POOL_CONNECTIONS).connect(&target.url).await?;
        Ok(Self { target: target.clone(), pool })
    }

    async fn prepare(&self) -> Result<()> {
        Ok(self.utils().migrate().await?)
    }

    async fn producer(&self) -> Result<Sender> {
        let conn = PgConnection::connect(&self.target.url).await?;
        Ok(Sender { utils: self.utils(), conn })
    }

    async fn deliver(&self, inbox: Inbox) -> Result<Option<Running>> {
        let worker = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(CONCURRENCY)
            .poll_interval(POLL_INTERVAL)
            .complete_job_batch_delay(BATCH_DELAY)
            .fail_job_batch_delay(BATCH_DELAY)
            .local_queue(LocalQueueConfig::default().with_size(LOCAL_QUEUE).with_ttl(LOCAL_QUEUE_TTL))
            .add_extension(Delivery(inbox))
            .define_batch_job::<Item>()
            .listen_os_shutdown_signals(false)
            .init()
            .await?;
        let worker = Arc::new(worker);
        let running = Arc::clone(&worker);
        let task = tokio::spawn(async move { Ok(running.run().await?) });
        Ok(Some(Running { worker, task }))
    }

    async fn stop(&self, running: Running) -> Result<()> {
        running.worker.request_shutdown();
        running.task.await??;
        self.pool.close().await;
        Ok(())
    }

    async fn is_clean(&self) -> Result<Option<bool>> {
        let left: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)")
            .fetch_one(&self.pool)
            .await?;
        Ok(Some(!left))
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        bail!("no transactional handlers, no effects")
    }
}

/// A producer on a connection of its own.
struct Sender {
    utils: WorkerUtils,
    conn: PgConnection,
}

impl Producer for Sender {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        let mut by_partition: BTreeMap<u32, Vec<Item>> = BTreeMap::new();
        for message in messages {
            by_partition.entry(message.partition).or_default().push(Item::of(message));
        }
        // One call adds the batch jobs of all partitions.
        let jobs = by_partition.into_iter().map(|(partition, items)| {
            Ok(RawJobSpec {
                identifier: Item::IDENTIFIER.to_owned(),
                payload: serde_json::to_value(items)?,
                spec: JobSpecBuilder::new().queue_name(format!("partition-{partition}")).build(),
            })
        });
        let jobs = jobs.collect::<Result<Vec<_>>>()?;
        let mut tx = self.conn.begin().await?;
        self.utils.clone().with_executor(&mut tx).add_raw_jobs(&jobs).await?;
        Ok(tx.commit().await?)
    }
}
