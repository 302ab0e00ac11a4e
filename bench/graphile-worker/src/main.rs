//! The adapter of graphile_worker: a named queue for each partition, whose jobs run one after the other. Payloads of jobs are
//! JSON, so the messages' are sent as base64.
//!
//! What a transaction sends to one partition is one batch job; the variant `jobs` makes a job of every message instead.

mod task;

use std::{collections::BTreeMap, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Result, bail, ensure};
use graphile_worker::{
    BatchTaskHandler, JobSpecBuilder, LocalQueueConfig, RawJobSpec, TaskHandler, Worker, WorkerOptions,
    WorkerUtils,
};
use harness::{Database, Inbox, Outgoing, Producer, System, Target};
use serde_json::Value;
use sqlx::{Connection, PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::task::JoinHandle;

use task::{Delivery, Item, Single};

const SCHEMA: &str = "graphile_worker";
/// That of a pool which it makes by itself.
const POOL_CONNECTIONS: u32 = 20;

fn main() -> ExitCode {
    harness::main::<GraphileWorker>()
}

/// What becomes one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    /// All that a transaction sends to one partition.
    Batch,
    Message,
}

struct GraphileWorker {
    target: Target,
    job: Job,
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

fn env(n: &str, d: u64) -> u64 {
    std::env::var(n).ok().and_then(|v| v.parse().ok()).unwrap_or(d)
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
        let job = match target.variant.as_deref() {
            None => Job::Batch,
            Some("jobs") => Job::Message,
            Some(other) => bail!("no variant {other:?}: jobs; none is batch jobs"),
        };
        let pool = PgPoolOptions::new().max_connections(POOL_CONNECTIONS).connect(&target.url).await?;
        Ok(Self { target: target.clone(), job, pool })
    }

    async fn prepare(&self) -> Result<()> {
        Ok(self.utils().migrate().await?)
    }

    async fn producer(&self) -> Result<Sender> {
        let conn = PgConnection::connect(&self.target.url).await?;
        Ok(Sender { utils: self.utils(), conn, job: self.job })
    }

    async fn deliver(&self, inbox: Inbox) -> Result<Option<Running>> {
        let mut options = WorkerOptions::default()
            .pg_pool(self.pool.clone())
            .schema(SCHEMA)
            .concurrency(env("CONC", 16) as usize)
            .poll_interval(Duration::from_millis(env("POLL", 500)))
            .add_extension(Delivery(inbox))
            .define_batch_job::<Item>()
            .define_job::<Single>()
            .listen_os_shutdown_signals(false);
        if env("CB", 5) > 0 {
            options = options.complete_job_batch_delay(Duration::from_millis(env("CB", 5)));
        }
        if env("LQ", 100) > 0 {
            options = options.local_queue(
                LocalQueueConfig::default()
                    .with_size(env("LQ", 100) as usize)
                    .with_queue_count(env("LQN", 1) as usize),
            );
        }
        let worker = Arc::new(options.init().await?);
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

    async fn is_clean(&self) -> Result<bool> {
        let left: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)")
            .fetch_one(&self.pool)
            .await?;
        Ok(!left)
    }

    async fn effects(&self) -> Result<(u64, u64)> {
        bail!("no transactional handlers, no effects")
    }
}

/// A producer on a connection of its own.
struct Sender {
    utils: WorkerUtils,
    conn: PgConnection,
    job: Job,
}

fn raw_job(identifier: &str, partition: u32, payload: Value) -> RawJobSpec {
    let spec = JobSpecBuilder::new().queue_name(format!("partition-{partition}")).build();
    RawJobSpec { identifier: identifier.to_owned(), payload, spec }
}

impl Producer for Sender {
    async fn send(&mut self, messages: &[Outgoing]) -> Result<()> {
        let mut jobs = Vec::new();
        match self.job {
            Job::Message => {
                for message in messages {
                    let payload = serde_json::to_value(Single::of(message))?;
                    jobs.push(raw_job(Single::IDENTIFIER, message.partition, payload));
                }
            }
            Job::Batch => {
                let mut by_partition: BTreeMap<u32, Vec<Item>> = BTreeMap::new();
                for message in messages {
                    by_partition.entry(message.partition).or_default().push(Item::of(message));
                }
                for (partition, items) in by_partition {
                    jobs.push(raw_job(Item::IDENTIFIER, partition, serde_json::to_value(items)?));
                }
            }
        }
        let mut tx = self.conn.begin().await?;
        self.utils.clone().with_executor(&mut tx).add_raw_jobs(&jobs).await?;
        Ok(tx.commit().await?)
    }
}
