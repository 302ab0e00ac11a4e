//! Leases, handlers and settlements.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::SystemTime,
};

use tokio::time::Instant;

use super::{
    Course, Flaw, Mode,
    durability::{disown, flush, note},
    promises::{self, Kept, Promise, keep},
    rules,
    world::{Held, Memory, Owner, Set, Settling, World},
};
use crate::{
    Batch, HandlerResult, OutboxMessage, OutboxMessageId, WorkerTuning,
    batch::Blame,
    processor::{
        Poison, lost,
        settlement::{Handled, decide, exhausted},
    },
    store::Leased,
};

/// How many messages a batch has.
const BATCH: u8 = 2;
/// Of a message.
const MAX_ATTEMPTS: u32 = 2;

/// What a handler does with its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Acks,
    /// It acks all of it, and its slice of time is over.
    AcksLast,
    /// It acks so many, and puts off the next.
    Retries(u8),
    /// It rejects the one at this place.
    Rejects(u8),
    /// The process stops before it has begun.
    Stops,
}

/// What becomes of a question to the database, and of the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Arrives,
    /// What was asked for is done, and the worker does not know.
    IsLost,
    /// The question did not arrive, however often it was asked; in a transaction, all of that is undone.
    IsNone,
}

impl Held {
    /// As the product has it.
    fn leased(&self, world: &World) -> Leased {
        let partition = &world.partitions[self.partition];
        let message = |seq| OutboxMessage {
            id: OutboxMessageId(i64::from(world.ids[partition.message(seq)])),
            queue: Arc::default(),
            partition: 0,
            partition_id: 0,
            seq: i64::from(seq),
            key: None,
            headers: Vec::new(),
            payload: Vec::new(),
            payload_type: String::new(),
            created_at: SystemTime::UNIX_EPOCH,
            attempts: 0,
        };
        Leased {
            epoch: i64::from(self.epoch),
            processed_seq: i64::from(self.processed),
            attempts: u32::from(self.attempts),
            last_error: None,
            messages: (self.processed + 1..=self.processed + self.messages).map(message).collect(),
        }
    }

    /// Whether the message is given up without being tried again.
    pub(super) fn is_exhausted(&self, world: &World) -> bool {
        exhausted(&self.leased(world), Some(MAX_ATTEMPTS)).is_some()
    }
}

pub(super) fn acquire(
    course: &Course,
    world: &mut World,
    number: usize,
    worker: usize,
    answer: Answer,
) -> Kept {
    promises::on_acquire(world, number, worker)?;
    let partition = &mut world.partitions[number];
    partition.attempts = rules::tries(partition, worker);
    let most = rules::batch_size(partition, BATCH);
    let is_takeover = !matches!(partition.owner, Owner::Nobody) && partition.owner != Owner::Worker(worker);
    if !(is_takeover && course.has(Flaw::TakeoverKeepsEpoch)) {
        partition.chain.append();
    }
    partition.owner = Owner::Worker(worker);
    (partition.is_expired, partition.was_called) = (false, false);
    let held = read(world, number, most)?;
    promises::on_epoch(course, world, &held)?;
    if answer == Answer::Arrives {
        world.workers[worker] = Memory::Batch(held);
    }
    Ok(())
}

/// `places.sql`: what is behind the cursor, under the newest link.
fn read(world: &World, number: usize, most: u8) -> Result<Held, promises::Broken> {
    let partition = &world.partitions[number];
    let held = Held {
        partition: number,
        epoch: partition.chain.newest,
        processed: partition.processed,
        attempts: partition.attempts,
        messages: most.min(partition.head - partition.processed),
    };
    promises::on_read(world, &held)?;
    Ok(held)
}

/// Calls a handler, and decides what to tell the database; outside any transaction.
pub(super) fn handle(course: &Course, world: &mut World, worker: usize, outcome: Outcome) -> Kept {
    let Memory::Batch(held) = world.workers[worker] else { return Ok(()) };
    let (settling, acked) = judge(course, world, &held, outcome);
    if !course.has(Flaw::SettleBeforeHandling) {
        ack(course, world, &held, acked)?;
    }
    if outcome != Outcome::Stops {
        note(world, held.partition, |partition| partition.was_called = true);
    }
    world.workers[worker] = Memory::Decided(held, settling);
    Ok(())
}

/// What the product makes of a handler's answer; and which messages, by their places, are handled.
fn judge(course: &Course, world: &World, held: &Held, outcome: Outcome) -> (Settling, Set) {
    let leased = held.leased(world);
    let mut acked = Set::default();
    let handled = match exhausted(&leased, Some(MAX_ATTEMPTS)) {
        Some(verdict) => Handled::judged(verdict),
        None => call(&leased, outcome, &mut acked),
    };
    (settling(course, world, &leased, handled, outcome != Outcome::AcksLast), acked)
}

fn call(leased: &Leased, outcome: Outcome, acked: &mut Set) -> Handled {
    let is_closed = AtomicBool::new(false);
    let mut batch = Batch::new(&leased.messages, Instant::now(), &is_closed);
    if outcome == Outcome::Stops {
        return Handled::abandoned(batch.abandon());
    }
    for place in 0..leased.messages.len() {
        batch.next_msg();
        match outcome {
            Outcome::Retries(done) if place == usize::from(done) => {
                return Handled::judged(batch.verdict(HandlerResult::Retry { reason: String::new() }));
            }
            Outcome::Rejects(bad) if place == usize::from(bad) => batch.reject(""),
            _ => {
                batch.ack();
                acked.insert(place);
            }
        }
    }
    Handled::judged(batch.verdict(HandlerResult::Success))
}

fn settling(course: &Course, world: &World, leased: &Leased, handled: Handled, go_on: bool) -> Settling {
    let tuning = WorkerTuning::processor();
    let poison = Poison::new(u32::from(BATCH), 2);
    let decision = decide(leased, handled, go_on, poison, &tuning, Some(MAX_ATTEMPTS));
    let settlement = decision.settlement;
    let mut burials = Set::default();
    for burial in &settlement.burials {
        burials.insert(world.ids.iter().position(|id| i64::from(*id) == burial.id).unwrap());
    }
    let passes_retried = course.has(Flaw::CursorPassesRetried) && settlement.backoff.is_some();
    Settling {
        processed: u8::try_from(settlement.processed_seq).unwrap() + u8::from(passes_retried),
        attempts: u8::try_from(settlement.attempts).unwrap(),
        go_on: settlement.go_on,
        burials,
    }
}

fn ack(course: &Course, world: &mut World, held: &Held, acked: Set) -> Kept {
    for place in (0..held.messages).filter(|place| acked.has(usize::from(*place))) {
        let seq = held.processed + 1 + place;
        promises::on_handled(course, world, held, seq)?;
        world.handled.insert(world.partitions[held.partition].message(seq));
    }
    Ok(())
}

/// Locks the partition, then looks whose the lease is.
pub(super) fn begin(world: &mut World, worker: usize) {
    let Memory::Batch(held) = world.workers[worker] else { return };
    let is_mine = rules::is_mine(&world.partitions[held.partition], &held, worker);
    world.workers[worker] = if is_mine { Memory::Within(held) } else { Memory::Idle };
}

/// Calls a handler, settles and commits.
pub(super) fn transact(
    course: &Course,
    world: &mut World,
    worker: usize,
    outcome: Outcome,
    answer: Answer,
) -> Kept {
    let Memory::Within(held) = world.workers[worker] else { return Ok(()) };
    note(world, held.partition, |partition| partition.was_called = true);
    world.workers[worker] = match answer {
        Answer::Arrives => Memory::Idle,
        Answer::IsLost | Answer::IsNone => lose_transaction(course, world, held),
    };
    if answer == Answer::IsNone {
        return Ok(());
    }
    let (settling, acked) = judge(course, world, &held, outcome);
    if !rules::may_settle(course, &world.partitions[held.partition], &held, worker, settling.processed) {
        return Ok(());
    }
    ack(course, world, &held, acked)?;
    let next = move_cursor(course, world, &held, worker, &settling)?;
    if answer == Answer::Arrives {
        world.workers[worker] = next;
    }
    Ok(())
}

/// A transaction is lost, or may be: a retry is written beside it, guarded by the same epoch.
pub(super) fn lose_transaction(course: &Course, world: &World, held: Held) -> Memory {
    let handled = lost(String::new(), Blame::Nobody);
    Memory::Decided(held, settling(course, world, &held.leased(world), handled, false))
}

/// Tells the database what was decided; it is asked again if it does not answer.
pub(super) fn settle(course: &Course, world: &mut World, worker: usize, answer: Answer) -> Kept {
    let Memory::Decided(held, settling) = world.workers[worker] else { return Ok(()) };
    if answer != Answer::IsLost {
        world.workers[worker] = Memory::Idle;
    }
    let partition = &world.partitions[held.partition];
    let is_refused = !rules::may_settle(course, partition, &held, worker, settling.processed);
    if answer == Answer::IsNone || is_refused {
        return Ok(());
    }
    let next = move_cursor(course, world, &held, worker, &settling)?;
    if answer == Answer::Arrives {
        world.workers[worker] = next;
    }
    Ok(())
}

/// `settle.sql`, `link` and `buried`. What the worker has to do next.
fn move_cursor(
    course: &Course,
    world: &mut World,
    held: &Held,
    worker: usize,
    settling: &Settling,
) -> Result<Memory, promises::Broken> {
    promises::on_settle(world, held, worker)?;
    let is_first = world.buried.without(settling.burials) == world.buried;
    keep(Promise::ExactlyOnce, is_first, || "a message was buried twice".to_owned())?;
    world.buried = world.buried.with(settling.burials);
    let partition = &mut world.partitions[held.partition];
    let before = partition.processed;
    let goes_on = settling.go_on && partition.head > settling.processed;
    partition.chain.append();
    partition.processed = settling.processed;
    partition.attempts = if goes_on { 1 } else { settling.attempts };
    partition.owner = if goes_on { Owner::Worker(worker) } else { Owner::Nobody };
    (partition.is_expired, partition.was_called) = (false, false);
    promises::on_moved(world, before, held.partition)?;
    if course.mode == Mode::Transactional {
        let both = world.handled.without(world.buried) == world.handled;
        keep(Promise::ExactlyOnce, both, || "a dead letter has effects".to_owned())?;
        flush(world);
    }
    Ok(if goes_on { Memory::Batch(read(world, held.partition, BATCH)?) } else { Memory::Idle })
}

/// Loses all it knew, and starts again under another name.
pub(super) fn crash(world: &mut World, worker: usize) {
    world.workers[worker] = Memory::Idle;
    disown(world, worker);
}
