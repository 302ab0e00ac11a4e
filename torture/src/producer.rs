//! A process that enqueues: transaction after transaction, each with a row in the ledger.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;
use posthaste::{EnqueueMessage, Outbox, OutboxError, Tables, Target};
use sqlx::Pool;
use tokio::task::JoinSet;

use crate::{
    circumstances::{BACKLOG, Circumstances},
    clock::now,
    content::Content,
    database::Ground,
    history::{Line, Pen, Produced},
    kill::{COMMIT_AFTER, COMMIT_BEFORE, Fuse},
};

/// After an error, the database gets a little time.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// How often to look at that.
const LOOK: Duration = Duration::from_millis(250);

struct Producer<DB: Ground> {
    circumstances: Circumstances,
    pool: Pool<DB>,
    outbox: Outbox<DB>,
    pen: Pen,
    fuse: Option<&'static Fuse>,
    next: AtomicU64,
    stops: AtomicBool,
    /// So much waits that more of it would only make the end longer.
    holds: AtomicBool,
}

pub async fn run<DB: Ground>(circumstances: Circumstances, stop: impl Future<Output = ()>) -> Result<()> {
    let pen = Pen::open(&circumstances.history)?;
    let fuse = Fuse::light(circumstances.kill_at.as_ref(), Pen::open(&circumstances.history)?)?;
    let pool = DB::pool(&circumstances.url, circumstances.setup.pool).await?;
    let outbox =
        Outbox::connect_with(pool.clone(), &Tables::default().prefix(&circumstances.prefix)?).await?;
    pen.write(&[Line::Ready])?;
    let tasks = circumstances.setup.transactions;
    let producer = Arc::new(Producer {
        circumstances,
        pool,
        outbox,
        pen,
        fuse,
        next: AtomicU64::new(0),
        stops: AtomicBool::new(false),
        holds: AtomicBool::new(false),
    });
    let watching = tokio::spawn({
        let producer = Arc::clone(&producer);
        async move { producer.watch_the_backlog().await }
    });
    let mut producing = JoinSet::new();
    for task in 0..tasks {
        let producer = Arc::clone(&producer);
        producing.spawn(async move { producer.produce(u64::from(task)).await });
    }
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop, if !producer.stops.load(Ordering::Relaxed) => {
                producer.stops.store(true, Ordering::Relaxed);
            }
            // One that ends before that cannot go on, or has panicked.
            ended = producing.join_next() => match ended {
                Some(ended) => ended??,
                None => break,
            },
        }
    }
    watching.abort();
    producer.outbox.close().await;
    Ok(())
}

impl<DB: Ground> Producer<DB> {
    async fn produce(&self, task: u64) -> Result<()> {
        let setup = &self.circumstances.setup;
        let mut rng = Rng::with_seed(setup.seed ^ task);
        while !self.stops.load(Ordering::Relaxed) {
            if self.holds.load(Ordering::Relaxed) {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            let transaction = self.next.fetch_add(1, Ordering::Relaxed);
            let (producer, began) = (self.circumstances.process, now());
            self.pen.write(&[Line::Produced(Produced::Began { producer, transaction, at: began })])?;
            let contents = self.circumstances.shape.transaction(producer, transaction);
            match self.announce(&contents, transaction, &mut rng).await {
                Ok(Outcome::Committed(ids)) => {
                    let committed = Produced::Committed { producer, transaction, at: now(), ids };
                    self.pen.write(&[Line::Produced(committed)])?;
                }
                Ok(Outcome::Undone) => self.undone(transaction)?,
                // The commit was sent: who knows.
                Ok(Outcome::Unknown) => tokio::time::sleep(AFTER_ERROR).await,
                // It was not, so nobody will ever commit it.
                Err(error) => {
                    self.undone(transaction)?;
                    if !error.is_retryable() {
                        let (from, until, why) = (began, now(), error.to_string());
                        self.pen.write(&[Line::Refused { producer, from, until, why }])?;
                    }
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
            tokio::time::sleep(setup.rests(&mut rng)).await;
        }
        Ok(())
    }

    async fn watch_the_backlog(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            if let Ok(lag) = self.outbox.lag().await {
                let depth: u64 = lag.iter().map(|partition| partition.depth).sum();
                self.holds.store(depth > u64::from(BACKLOG), Ordering::Relaxed);
            }
        }
    }

    fn undone(&self, transaction: u64) -> Result<()> {
        self.pen
            .write(&[Line::Produced(Produced::Undone { producer: self.circumstances.process, transaction })])
    }

    async fn announce(
        &self,
        contents: &[Content],
        transaction: u64,
        rng: &mut Rng,
    ) -> Result<Outcome, OutboxError> {
        let mut tx = DB::begin(&self.pool, self.circumstances.setup.isolation).await?;
        DB::write_ledger(&mut tx, self.circumstances.process, transaction).await?;
        let mut ids = Vec::with_capacity(contents.len());
        for run in contents.chunk_by(|one, other| one.mode == other.mode) {
            let messages: Vec<_> = run.iter().map(message).collect();
            let Some(first) = run.first() else { continue };
            let target = Target::Connection(&mut *tx);
            let enqueued = self.outbox.enqueue_batch(target, first.mode.queue(), &messages).await?;
            ids.extend(enqueued.iter().map(|id| id.0));
        }
        tokio::time::sleep(self.circumstances.setup.stays_open(rng)).await;
        if rng.u32(..20) == 0 {
            tx.rollback().await.ok();
            return Ok(Outcome::Undone);
        }
        self.reached(COMMIT_BEFORE);
        let committed = tx.commit().await;
        self.reached(COMMIT_AFTER);
        Ok(if committed.is_ok() { Outcome::Committed(ids) } else { Outcome::Unknown })
    }

    fn reached(&self, point: &str) {
        if let Some(fuse) = self.fuse {
            fuse.reached(point);
        }
    }
}

enum Outcome {
    /// With these ids.
    Committed(Vec<i64>),
    Undone,
    Unknown,
}

fn message(content: &Content) -> EnqueueMessage<'_> {
    let mut message = EnqueueMessage::new(content.payload.clone()).payload_type(&content.payload_type);
    if let Some(partition) = content.partition {
        message = message.partition(partition);
    }
    if let Some(key) = &content.key {
        message = message.key(key.as_str());
    }
    for (name, value) in &content.headers {
        message = message.header(name.as_str(), value.as_str());
    }
    message
}
