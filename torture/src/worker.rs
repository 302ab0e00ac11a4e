//! A process that delivers: handlers that write down what they were given, and behave badly now and then.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use fastrand::Rng;
use posthaste::{
    Batch, HandlerResult, LeaseConfig, LeasedHandler, Outbox, OutboxBuilder, OutboxHandle, OutboxMessage,
    OutboxProfile, Partitions, TransactionalHandler, TransactionalMessageHandler, WorkerTuning,
};
use posthaste_torture_protocol::{
    ongoing::{Doing, Ongoing},
    starving,
    whim::Whim,
};
use sqlx::Executor;

use crate::{
    circumstances::{Circumstances, Setup},
    clock::{millis, now},
    content::{Mode, digest, name_of},
    database::Ground,
    history::{Handling, Line, Pen},
    kill::Fuse,
};

/// From when on a call of a handler takes long.
const LONG: u64 = millis(100);
/// How often a call with several messages rejects all of them for the sake of one.
const WHOLE_CALL: u32 = 8;

pub async fn run<DB: Ground>(circumstances: Circumstances, stop: impl Future<Output = ()>) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let handle = start::<DB>(&circumstances).await?;
    Pen::open(&circumstances.history)?.write(&[Line::Ready])?;
    stop.await;
    handle.stop().await;
    Ok(())
}

/// Starts, which may mean to make the tables, and stops at once.
pub async fn start_and_stop<DB: Ground>(circumstances: Circumstances) -> Result<()>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let handle = start::<DB>(&circumstances).await?;
    Pen::open(&circumstances.history)?.write(&[Line::Ready])?;
    handle.stop().await;
    Ok(())
}

async fn start<DB: Ground>(circumstances: &Circumstances) -> Result<OutboxHandle<DB>>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let setup = &circumstances.setup;
    Fuse::light(circumstances.kill_at.as_ref(), Pen::open(&circumstances.history)?)?;
    starving::notice(circumstances.process, setup.lease(), Pen::open(&circumstances.history)?);
    let pool = DB::pool(&circumstances.url, setup.pool).await?;
    let scribe = Arc::new(Scribe {
        pen: Pen::open(&circumstances.history)?,
        rng: Mutex::new(Rng::with_seed(setup.seed)),
        calls: AtomicU64::new(0),
        ongoing: Ongoing::watch(circumstances.process, LONG, Line::Held, Pen::open(&circumstances.history)?),
        circumstances: circumstances.clone(),
    });
    let (profile, processor) = tuned(setup);
    let mut builder: OutboxBuilder<DB> = Outbox::builder(pool)
        .table_prefix(&circumstances.prefix)
        .profile(profile)
        .processor_tuning(processor)
        .processors(setup.processors)
        .grace(Duration::from_secs(2));
    for (mode, partitions) in &circumstances.shape.queues {
        let (queue, lease) =
            (builder.queue(mode.queue(), Partitions::of(*partitions)), LeaseConfig::of(setup.lease()));
        let scribe = Arc::clone(&scribe);
        builder = match mode {
            Mode::Leased => queue.leased(scribe).lease(lease).outbox(),
            Mode::Transactional if setup.whole_batches => {
                queue.batch_transactional(scribe).lease(lease).handler_timeout(setup.lease()).outbox()
            }
            Mode::Transactional => {
                queue.transactional(scribe).lease(lease).handler_timeout(setup.lease()).outbox()
            }
        };
    }
    Ok(builder.start().await?)
}

/// The profile that was drawn, with the batches that were, and little patience after failures: there are many.
fn tuned(setup: &Setup) -> (OutboxProfile, WorkerTuning) {
    let profile = match setup.profile.as_str() {
        "low-latency" => OutboxProfile::low_latency(),
        "high-throughput" => OutboxProfile::high_throughput(),
        "auto" => OutboxProfile::auto(),
        "relaxed" => OutboxProfile::relaxed(),
        _ => OutboxProfile::default_profile(),
    };
    let size = if setup.profile == "auto" { WorkerTuning::ADAPTIVE } else { setup.batch_size };
    let processor = profile.processor.batch_size(size);
    (profile, processor.retry_base(Duration::from_millis(50)).retry_max(Duration::from_millis(400)))
}

struct Scribe {
    pen: Pen,
    rng: Mutex<Rng>,
    calls: AtomicU64,
    /// Calls that are under way.
    ongoing: Arc<Ongoing>,
    circumstances: Circumstances,
}

/// A call of a handler. If it takes long, that is written down.
struct Call<'s> {
    scribe: &'s Scribe,
    number: u64,
    doing: Doing,
}

impl Call<'_> {
    fn abandon(&self) {
        let process = self.scribe.circumstances.process;
        self.scribe.pen.write(&[Line::Abandoned { process, call: self.number }]).ok();
    }

    /// Why this call rejects so many messages: it names itself first. Who misbehaves goes on for more than a megabyte, with what no text
    /// may have; once is enough.
    fn reason(&self, messages: usize) -> String {
        let Circumstances { process, setup, .. } = &self.scribe.circumstances;
        let own = format!("{process}.{} rejects", self.number);
        let goes_on = setup.misbehaves && messages == 1;
        if goes_on { format!("{own}\0{}", "\u{1F4A3}".repeat(300_000)) } else { own }
    }

    /// Rejects all that a transactional call was given. That is written down first, and not in the transaction, which is undone: the judge
    /// compares it with the dead letters.
    fn reject(&self, messages: &[OutboxMessage]) -> HandlerResult {
        let (process, call) = (self.scribe.circumstances.process, self.number);
        let names = messages.iter().filter_map(|message| name_of(&message.payload));
        let lines: Vec<Line> = names.map(|name| Line::Rejected { process, call, name }).collect();
        match self.scribe.pen.write_and_sync(&lines) {
            Ok(()) => HandlerResult::Reject { reason: self.reason(messages.len()) },
            Err(error) => HandlerResult::Retry { reason: error.to_string() },
        }
    }

    fn handling(&self, message: &OutboxMessage, whim: Whim) -> Handling {
        let headers = message.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let digest =
            digest(&message.queue, &message.payload_type, message.key.as_deref(), headers, &message.payload);
        Handling {
            at: now(),
            process: self.scribe.circumstances.process,
            call: self.number,
            partition: message.partition,
            seq: message.seq,
            id: message.id.0,
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

impl Scribe {
    fn call(&self, place: Option<(Mode, u32)>) -> Call<'_> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        Call { scribe: self, number, doing: self.ongoing.begin(place) }
    }

    fn whim(&self, message: &OutboxMessage) -> Whim {
        let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
        Whim::draw(&self.circumstances, name_of(&message.payload), &mut rng)
    }

    fn rejects_whole_call(&self) -> bool {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).u32(..WHOLE_CALL) == 0
    }
}

impl LeasedHandler for Scribe {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        // Its partition is known from its first message on.
        let call = self.call(None);
        while !batch.remaining().is_zero() {
            let Some(message) = batch.next_msg() else { break };
            call.doing.is_at((Mode::Leased, message.partition));
            let whim = self.whim(message);
            let line = [Line::Handled(call.handling(message, whim))];
            // What is not written down has not happened, so it must not be settled.
            let written = if self.circumstances.setup.whole_batches {
                self.pen.write(&line)
            } else {
                self.pen.write_and_sync(&line)
            };
            if let Err(error) = written {
                return HandlerResult::Retry { reason: error.to_string() };
            }
            // Whatever becomes of the call, what was acked before stays so.
            if let Err(result) = call.misbehave(whim).await {
                return result;
            }
            match whim {
                Whim::Reject => batch.reject(call.reason(1)),
                Whim::Nonsense => {
                    batch.ack_chunk(usize::MAX);
                    batch.ack();
                    batch.reject("too late");
                }
                _ => batch.ack(),
            }
        }
        if let Err(error) = self.pen.write_and_sync(&[]) {
            return HandlerResult::Retry { reason: error.to_string() };
        }
        HandlerResult::Success
    }
}

impl<DB: Ground> TransactionalHandler<DB> for Scribe
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        let call = self.call(msgs.first().map(|message| (Mode::Transactional, message.partition)));
        let whims: Vec<Whim> = msgs.iter().map(|message| self.whim(message)).collect();
        let effects: Vec<Handling> =
            msgs.iter().zip(&whims).map(|(message, whim)| call.handling(message, *whim)).collect();
        if let Err(error) = DB::write_effects(conn, &effects).await {
            return HandlerResult::Retry { reason: error.to_string() };
        }
        // The effects are written, and must be undone if it comes to that.
        for whim in whims {
            if let Err(result) = call.misbehave(whim).await {
                return result;
            }
            match whim {
                // All of them or none: mostly, it comes again in smaller batches, until it is alone.
                Whim::Reject if msgs.len() > 1 && !self.rejects_whole_call() => {
                    return HandlerResult::Retry { reason: "one of them is to be rejected".to_owned() };
                }
                Whim::Reject => return call.reject(msgs),
                // Fails, and on PostgreSQL the transaction with it: then what follows cannot be a success, whatever it says.
                Whim::Nonsense => {
                    assert!(conn.execute("SELECT nonsense").await.is_err(), "nonsense was executed");
                }
                _ => {}
            }
        }
        HandlerResult::Success
    }
}

impl<DB: Ground> TransactionalMessageHandler<DB> for Scribe
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        TransactionalHandler::<DB>::handle(self, conn, std::slice::from_ref(msg)).await
    }
}
