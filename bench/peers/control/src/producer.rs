//! A process that enqueues: transaction after transaction, each with a row in the ledger. It does what posthaste's does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Error, Result};
use fastrand::Rng;
use modkit_db::{
    Db,
    outbox::{EnqueueMessage, Outbox},
    secure::{TxConfig, TxIsolationLevel},
};
use posthaste_torture_protocol::{
    circumstances::{BACKLOG, Circumstances, Isolation},
    clock::now,
    content::Content,
    history::{Line, Pen, Produced},
};
use tokio::task::JoinSet;

use crate::{
    database::{self, Beside},
    queue, worker,
};

/// After an error, the database gets a little time.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// How often to look at that.
const LOOK: Duration = Duration::from_millis(250);

struct Producer {
    circumstances: Circumstances,
    db: Db,
    outbox: Arc<Outbox>,
    pen: Pen,
    next: AtomicU64,
    stops: AtomicBool,
    /// So much waits that more of it would only make the end longer.
    holds: AtomicBool,
}

/// Why a transaction was not committed. Any other error leaves that open.
#[derive(Debug)]
struct Undone;

impl std::fmt::Display for Undone {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("its commit was not sent")
    }
}

impl std::error::Error for Undone {}

pub async fn run(circumstances: Circumstances, stop: impl Future<Output = ()>) -> Result<()> {
    let pen = Pen::open(&circumstances.history)?;
    let db = database::connect(&circumstances).await?;
    let beside = Beside::connect(&circumstances).await?;
    let outbox = worker::without_workers(&db, &circumstances).await?;
    pen.write(&[Line::Ready])?;
    let tasks = circumstances.setup.transactions;
    let producer = Arc::new(Producer {
        circumstances,
        db,
        outbox,
        pen,
        next: AtomicU64::new(0),
        stops: AtomicBool::new(false),
        holds: AtomicBool::new(false),
    });
    let watching = tokio::spawn({
        let producer = Arc::clone(&producer);
        async move { producer.watch_the_backlog(&beside).await }
    });
    let mut producing = JoinSet::new();
    for task in 0..tasks {
        let producer = Arc::clone(&producer);
        producing.spawn(async move { producer.produce(u64::from(task)).await });
    }
    stop.await;
    producer.stops.store(true, Ordering::Relaxed);
    while let Some(ended) = producing.join_next().await {
        ended??;
    }
    watching.abort();
    Ok(())
}

impl Producer {
    async fn produce(self: Arc<Self>, task: u64) -> Result<()> {
        let setup = &self.circumstances.setup;
        let mut rng = Rng::with_seed(setup.seed ^ task);
        while !self.stops.load(Ordering::Relaxed) {
            if self.holds.load(Ordering::Relaxed) {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            let transaction = self.next.fetch_add(1, Ordering::Relaxed);
            let producer = self.circumstances.process;
            self.pen.write(&[Line::Produced(Produced::Began { producer, transaction, at: now() })])?;
            match self.announce(transaction, &mut rng).await {
                Ok(()) => {
                    let committed = Produced::Committed { producer, transaction, at: now(), ids: Vec::new() };
                    self.pen.write(&[Line::Produced(committed)])?;
                }
                Err(error) => {
                    if error.is::<Undone>() {
                        self.pen.write(&[Line::Produced(Produced::Undone { producer, transaction })])?;
                    }
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
            tokio::time::sleep(setup.rests(&mut rng)).await;
        }
        Ok(())
    }

    async fn watch_the_backlog(&self, beside: &Beside) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Ok(waiting) = beside.waiting(&self.circumstances.prefix).await {
                self.holds.store(waiting > i64::from(BACKLOG), Ordering::Relaxed);
            }
        }
    }

    async fn announce(self: &Arc<Self>, transaction: u64, rng: &mut Rng) -> Result<()> {
        let isolation = TxConfig::with_isolation(match self.circumstances.setup.isolation {
            Isolation::ReadCommitted => TxIsolationLevel::ReadCommitted,
            Isolation::RepeatableRead => TxIsolationLevel::RepeatableRead,
            Isolation::Serializable => TxIsolationLevel::Serializable,
        });
        let (open, is_undone) = (self.circumstances.setup.stays_open(rng), rng.u32(..20) == 0);
        let producer = Arc::clone(self);
        let done = self.db.clone().transaction_with_config(isolation, |tx| {
            Box::pin(async move {
                let written = producer.write(tx, transaction).await;
                written.map_err(|error| error.context(Undone))?;
                tokio::time::sleep(open).await;
                if is_undone { Err(Error::new(Undone)) } else { Ok(()) }
            })
        });
        done.await.1
    }

    async fn write(&self, tx: &modkit_db::DbTx<'_>, transaction: u64) -> Result<()> {
        let Circumstances { process, shape, .. } = &self.circumstances;
        database::write_ledger(tx, *process, transaction).await?;
        let contents = shape.transaction(*process, transaction);
        for run in contents.chunk_by(|one, other| one.mode == other.mode) {
            let messages: Vec<_> = run.iter().map(message).collect();
            let Some(first) = run.first() else { continue };
            self.outbox.enqueue_batch(tx, &queue(&self.circumstances, first.mode), &messages).await?;
        }
        Ok(())
    }
}

/// Plain messages have a partition each, and nothing that could not be said here.
fn message(content: &Content) -> EnqueueMessage<'_> {
    EnqueueMessage {
        partition: content.partition.unwrap_or_default(),
        payload: content.payload.clone(),
        payload_type: &content.payload_type,
    }
}
