//! The workers that deliver orders: those of the demo itself, and those of the process that it kills, `posthaste demo-worker`.

use std::{path::Path, sync::Arc, time::Duration};

use posthaste::{
    Backend, LeaseConfig, LeasedMessageHandler, MessageResult, Outbox, OutboxError, OutboxHandle,
    OutboxMessage, OutboxProfile, Tables,
};
use sqlx::Pool;
use tokio::io::AsyncReadExt;

use super::{
    ledger::{self, Delivery, Ledger, Process},
    order::{DECLINED, Order, PARTITIONS, QUEUE, key},
    stage,
};
use crate::{
    Context,
    args::DemoWorker,
    database::{Address, on},
    exit,
    failure::{Failure, Outcome},
};

/// How the demo tells the process that it is going to kill where its tables are. Others can see the arguments of a process, and a URL
/// may have a password in it.
pub const URL_VARIABLE: &str = "DATABASE_URL";
pub const PREFIX_VARIABLE: &str = "POSTHASTE_DEMO_TABLE_PREFIX";
/// Empty for that of the connection.
pub const SCHEMA_VARIABLE: &str = "POSTHASTE_DEMO_SCHEMA";
/// What that process says when it is at work.
pub const READY: &str = "ready";

/// How long a partition waits for a worker that was killed.
const SHORT_LEASE: Duration = Duration::from_secs(1);
/// How long shipping takes where workers are killed, so that they are killed at work.
const SHIPPING: Duration = Duration::from_millis(2);
/// Connections of the pool of the process that is killed; its workers have their own.
const CONNECTIONS: u32 = 1;
/// How long handlers may go on when it ends.
const GRACE: Duration = Duration::from_secs(2);

/// Delivers an order: here is where a message broker would be called.
struct Ship {
    ledger: Ledger,
    process: Process,
    takes: Duration,
}

impl LeasedMessageHandler for Ship {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let Some(order) = Order::of(&msg.payload) else {
            return MessageResult::Reject("not an order".to_owned());
        };
        if msg.key.as_deref() != Some(&*key(order.id.customer)) {
            return MessageResult::Reject("the order of another customer".to_owned());
        }
        if order.card_is_declined {
            return MessageResult::Reject(DECLINED.to_owned());
        }
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        // It must be in the ledger before it is settled: what is settled does not come again.
        match self.ledger.note(Delivery { order: order.id, by: self.process, at: ledger::now() }) {
            Ok(()) => MessageResult::Ok,
            Err(_) => MessageResult::Retry,
        }
    }
}

/// Starts the workers of a process. If workers are killed, leases are short.
pub async fn start<DB: Backend>(
    pool: &Pool<DB>,
    tables: &Tables,
    ledger: Ledger,
    process: Process,
    is_killed: bool,
) -> Result<OutboxHandle<DB>, OutboxError> {
    let takes = if is_killed { SHIPPING } else { Duration::ZERO };
    let lease = if is_killed { LeaseConfig::of(SHORT_LEASE) } else { LeaseConfig::default() };
    Outbox::builder(pool.clone())
        .tables(tables.clone())
        .migrate(process == Process::Main)
        .profile(OutboxProfile::low_latency())
        .stats_interval(Duration::ZERO)
        .grace(GRACE)
        .queue(QUEUE, PARTITIONS)
        .leased(Arc::new(Ship { ledger, process, takes }))
        .lease(lease)
        .start()
        .await
}

/// `posthaste demo-worker`: delivers until killed, or until whoever started it is gone.
pub async fn run(options: &DemoWorker, context: &Context) -> Outcome {
    let variable = |name| {
        std::env::var(name).map_err(|_| {
            Failure::Usage(format!("{name} is not set: `posthaste demo --kill` starts this command"))
        })
    };
    let schema = std::env::var(SCHEMA_VARIABLE).ok().filter(|schema| !schema.is_empty());
    let tables = stage::tables(&variable(PREFIX_VARIABLE)?, schema.as_deref())?;
    let address = Address::of(&variable(URL_VARIABLE)?)?;
    let database = address.open(false, CONNECTIONS, context.common.connect_timeout).await?;
    on!(database, pool => Box::pin(work(&pool, &tables, &options.ledger, context)).await)
}

async fn work<DB: Backend>(pool: &Pool<DB>, tables: &Tables, ledger: &Path, context: &Context) -> Outcome {
    let handle = start(pool, tables, Ledger::open(ledger)?, Process::Second, true).await?;
    context.out.line(READY)?;
    // Nobody writes anything: it ends when the other end is closed, by whoever started us or by its death.
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    handle.stop().await;
    Ok(exit::DONE)
}
