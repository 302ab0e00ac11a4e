//! A process that delivers: handlers that write down what they were given, and behave badly now and then. They do what posthaste's do, as
//! far as they can.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;
use modkit_db::{
    Db,
    migration_runner::run_migrations_for_module,
    outbox::{
        Batch, HandlerResult, LeasedHandler, Outbox, OutboxHandle, OutboxMessage, Partitions,
        TransactionalHandler, TransactionalMessageHandler, outbox_migrations,
    },
};
use posthaste_torture_protocol::{
    circumstances::Circumstances,
    clock::{millis, now},
    content::{Mode, digest, name_of},
    history::{Handling, Line, Pen},
    ongoing::{Doing, Ongoing},
    starving,
    whim::Whim,
};
use sea_orm::ConnectionTrait;

use crate::{
    database::{self, Beside},
    queue, settings,
    slow::SlowBatches,
};

/// From when on a transaction of a handler is open for long.
const LONG: u64 = millis(100);

pub async fn run(
    circumstances: Circumstances,
    slow: SlowBatches,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let db = database::connect(&circumstances).await?;
    let handle = start(&db, &circumstances, slow).await?;
    Pen::open(&circumstances.history)?.write(&[Line::Ready])?;
    stop.await;
    handle.stop().await;
    Ok(())
}

/// Makes the tables, starts, and stops at once.
pub async fn start_and_stop(circumstances: Circumstances, slow: SlowBatches) -> Result<()> {
    let db = database::connect(&circumstances).await?;
    let beside = Beside::connect(&circumstances).await?;
    // It does not say that several may migrate at once.
    beside.lock().await?;
    run_migrations_for_module(&db, "torture", outbox_migrations()).await?;
    without_workers(&db, &circumstances).await?;
    drop(beside);
    let handle = start(&db, &circumstances, slow).await?;
    Pen::open(&circumstances.history)?.write(&[Line::Ready])?;
    handle.stop().await;
    Ok(())
}

/// An outbox is had by starting one. This one has stopped, and its queues no handlers: it takes messages and does nothing.
pub async fn without_workers(db: &Db, circumstances: &Circumstances) -> Result<Arc<Outbox>> {
    let handle = settings::builder(db, &circumstances.setup).start().await?;
    let outbox = Arc::clone(handle.outbox());
    handle.stop().await;
    for (mode, partitions) in &circumstances.shape.queues {
        outbox.register_queue(db, &queue(circumstances, *mode), u16::try_from(*partitions)?).await?;
    }
    Ok(outbox)
}

async fn start(db: &Db, circumstances: &Circumstances, slow: SlowBatches) -> Result<OutboxHandle> {
    let setup = &circumstances.setup;
    starving::notice(circumstances.process, circumstances.setup.lease(), Pen::open(&circumstances.history)?);
    let beside = Beside::connect(circumstances).await?;
    let scribe = Arc::new(Scribe {
        pen: Pen::open(&circumstances.history)?,
        rng: Mutex::new(Rng::with_seed(setup.seed)),
        calls: AtomicU64::new(0),
        partitions: beside.partitions_by_id(&circumstances.prefix).await?,
        slow,
        open: Ongoing::watch(circumstances.process, LONG, Line::Held, Pen::open(&circumstances.history)?),
        circumstances: circumstances.clone(),
    });
    let mut builder = settings::builder(db, setup);
    for (mode, partitions) in &circumstances.shape.queues {
        let queue = builder.queue(&queue(circumstances, *mode), Partitions::of(u16::try_from(*partitions)?));
        let handler = Handler(Arc::clone(&scribe));
        builder = match mode {
            Mode::Leased => queue.leased(handler).lease(settings::lease(setup)).done(),
            Mode::Transactional if setup.whole_batches => queue.batch_transactional(handler),
            Mode::Transactional => queue.transactional(handler),
        };
    }
    Ok(builder.start().await?)
}

struct Handler(Arc<Scribe>);

struct Scribe {
    pen: Pen,
    rng: Mutex<Rng>,
    calls: AtomicU64,
    /// Which partition the row of an id is.
    partitions: HashMap<i64, u32>,
    slow: SlowBatches,
    /// Transactions of handlers.
    open: Arc<Ongoing>,
    circumstances: Circumstances,
}

/// A call of a handler. If it is dropped before its end, that is written down; or, if it is in a transaction, that this is open for long.
struct Call<'s> {
    scribe: &'s Scribe,
    mode: Mode,
    number: u64,
    has_returned: bool,
    _open: Option<Doing>,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.mode == Mode::Leased && !self.has_returned {
            self.abandon();
        }
    }
}

impl Call<'_> {
    fn abandon(&self) {
        let process = self.scribe.circumstances.process;
        self.scribe.pen.write(&[Line::Abandoned { process, call: self.number }]).ok();
    }

    fn handling(&self, message: &OutboxMessage, whim: Whim) -> Handling {
        // It has no keys and no headers, nor had what was sent.
        let digest =
            digest(self.mode.queue(), &message.payload_type, None, std::iter::empty(), &message.payload);
        Handling {
            at: now(),
            process: self.scribe.circumstances.process,
            call: self.number,
            // A partition that nobody knows is one that nobody sent it to.
            partition: self.scribe.partitions.get(&message.partition_id).copied().unwrap_or(u32::MAX),
            seq: message.seq,
            // Handlers are not told.
            id: 0,
            name: name_of(&message.payload),
            digest,
            fate: whim.fate(),
        }
    }

    /// Behaves badly, if that is its whim; an error is what to return.
    async fn misbehave(&self, whim: Whim) -> Result<(), HandlerResult> {
        match whim {
            Whim::Ack | Whim::Reject | Whim::Nonsense => Ok(()),
            Whim::Retry => Err(HandlerResult::Retry { reason: "a whim".to_owned() }),
            Whim::Panic => std::panic::panic_any("a whim"),
            Whim::Hang => std::future::pending().await,
            Whim::Block => {
                self.abandon();
                let lease = self.scribe.circumstances.setup.lease();
                tokio::task::block_in_place(|| std::thread::sleep(lease + Duration::from_millis(300)));
                Ok(())
            }
        }
    }
}

fn retry(error: impl ToString) -> HandlerResult {
    HandlerResult::Retry { reason: error.to_string() }
}

impl Scribe {
    fn call(&self, mode: Mode) -> Call<'_> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let open = (mode == Mode::Transactional).then(|| self.open.begin(None));
        Call { scribe: self, mode, number, has_returned: false, _open: open }
    }

    fn whim(&self, mode: Mode, message: &OutboxMessage) -> Whim {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        match Whim::draw(&self.circumstances, name_of(&message.payload), &mut rng) {
            // It believes whoever miscounts.
            Whim::Nonsense => Whim::Ack,
            // Nothing ends it in a transaction, and a stop waits for it until its lease is over.
            Whim::Hang if mode == Mode::Transactional || self.circumstances.setup.lease_ms > 1000 => {
                Whim::Ack
            }
            whim => whim,
        }
    }
}

#[async_trait::async_trait]
impl LeasedHandler for Handler {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let scribe = &*self.0;
        let mut call = scribe.call(Mode::Leased);
        let mut is_first = true;
        while !batch.remaining().is_zero() {
            let remaining = batch.remaining();
            let Some(message) = batch.next_msg() else { break };
            if std::mem::take(&mut is_first) {
                scribe.slow.begin(message.partition_id, remaining);
            }
            let whim = scribe.whim(Mode::Leased, message);
            let line = [Line::Handled(call.handling(message, whim))];
            // What is not written down has not happened, so it must not be settled.
            let written = if scribe.circumstances.setup.whole_batches {
                scribe.pen.write(&line)
            } else {
                scribe.pen.write_and_sync(&line)
            };
            if let Err(error) = written {
                return retry(error);
            }
            if let Err(result) = call.misbehave(whim).await {
                call.has_returned = true;
                return result;
            }
            batch.ack();
        }
        if let Err(error) = scribe.pen.write_and_sync(&[]) {
            return retry(error);
        }
        call.has_returned = true;
        HandlerResult::Success
    }
}

#[async_trait::async_trait]
impl TransactionalHandler for Handler {
    async fn handle(&self, conn: &dyn ConnectionTrait, messages: &[OutboxMessage]) -> HandlerResult {
        let scribe = &*self.0;
        let call = scribe.call(Mode::Transactional);
        let whims: Vec<Whim> =
            messages.iter().map(|message| scribe.whim(Mode::Transactional, message)).collect();
        let effects: Vec<Handling> =
            messages.iter().zip(&whims).map(|(message, whim)| call.handling(message, *whim)).collect();
        if let Err(error) = database::write_effects(conn, &effects).await {
            return retry(error);
        }
        // The effects are written, and must be undone if it comes to that.
        for whim in whims {
            if let Err(result) = call.misbehave(whim).await {
                return result;
            }
        }
        HandlerResult::Success
    }
}

#[async_trait::async_trait]
impl TransactionalMessageHandler for Handler {
    async fn handle(&self, conn: &dyn ConnectionTrait, message: &OutboxMessage) -> HandlerResult {
        TransactionalHandler::handle(self, conn, std::slice::from_ref(message)).await
    }
}
