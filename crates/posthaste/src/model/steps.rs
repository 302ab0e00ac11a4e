//! Everything that somebody can do next.

use std::fmt;

use super::{
    Course, Flaw, Likeness, Mode,
    durability::{crash_server, flush, is_behind, note},
    processing::{self, Answer, Outcome},
    promises::Kept,
    rules, sequencing, vacuuming,
    world::{Held, MESSAGES, Memory, Owner, PARTITIONS, State, World, transaction_of},
};

#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Enqueue { message: usize },
    Commit { transaction: usize },
    RollBack { transaction: usize },
    Look { worker: usize },
    Append { worker: usize },
    Acquire { worker: usize, partition: usize, answer: Answer },
    Handle { worker: usize, outcome: Outcome },
    Begin { worker: usize },
    Transact { worker: usize, outcome: Outcome, answer: Answer },
    Settle { worker: usize, answer: Answer },
    Expire { partition: usize },
    Crash { worker: usize },
    CrashServer,
    Flush,
    Survey { worker: usize },
    Remove { worker: usize },
}

impl Step {
    /// What nobody may rely on to happen.
    pub(super) const fn is_fault(self) -> bool {
        match self {
            Self::Expire { .. } | Self::Crash { .. } | Self::CrashServer => true,
            Self::Acquire { answer, .. } | Self::Transact { answer, .. } | Self::Settle { answer, .. } => {
                !matches!(answer, Answer::Arrives)
            }
            _ => false,
        }
    }

    const fn is_odd(self) -> bool {
        match self {
            Self::Handle { outcome, .. } | Self::Transact { outcome, .. } => {
                !matches!(outcome, Outcome::Acks)
            }
            _ => false,
        }
    }

    pub(super) fn take(self, course: &Course, world: &mut World) -> Kept {
        match self {
            Self::CrashServer => world.left.server_crashes -= 1,
            _ => world.left.faults -= u8::from(self.is_fault()),
        }
        world.left.oddities -= u8::from(self.is_odd());
        match self {
            Self::Enqueue { message } => sequencing::enqueue(world, message),
            Self::Commit { transaction } => sequencing::commit(world, transaction),
            Self::RollBack { transaction } => sequencing::roll_back(world, transaction),
            Self::Look { worker } => sequencing::look(course, world, worker),
            Self::Append { worker } => sequencing::append(course, world, worker)?,
            Self::Acquire { worker, partition, answer } => {
                processing::acquire(course, world, partition, worker, answer)?;
            }
            Self::Handle { worker, outcome } => processing::handle(course, world, worker, outcome)?,
            Self::Begin { worker } => processing::begin(world, worker),
            Self::Transact { worker, outcome, answer } => {
                processing::transact(course, world, worker, outcome, answer)?;
            }
            Self::Settle { worker, answer } => processing::settle(course, world, worker, answer)?,
            Self::Expire { partition } => note(world, partition, |partition| partition.is_expired = true),
            Self::Crash { worker } => processing::crash(world, worker),
            Self::CrashServer => crash_server(course, world)?,
            Self::Flush => flush(world),
            Self::Survey { worker } => {
                world.left.passes -= 1;
                world.workers[worker] = vacuuming::look(course, world)?;
            }
            Self::Remove { worker } => vacuuming::remove(course, world, worker)?,
        }
        Ok(())
    }
}

/// All that can happen next.
pub(super) fn possible(course: &Course, world: &World) -> Vec<Step> {
    let mut steps = Vec::new();
    // A call outside any transaction touches nothing that others see: nothing is missed if it comes at once.
    let called = world.workers.iter().position(|memory| matches!(memory, Memory::Batch(_)));
    if let Some(worker) = called.filter(|_| calls_apart(course)) {
        of_worker(course, world, worker, &mut steps);
        return steps;
    }
    // Whenever a tick finds out that another was faster, it changes nothing.
    let is_late =
        |memory: &Memory| matches!(memory, Memory::Looked { tick, .. } if *tick < world.ticks.chain.newest);
    if course.likeness == Likeness::Coarse
        && let Some(worker) = world.workers.iter().position(is_late)
    {
        return vec![Step::Append { worker }];
    }
    producers(world, &mut steps);
    let is_free = |worker: &usize| world.workers[*worker] == Memory::Idle && !is_owner(world, *worker);
    for worker in 0..world.workers.len() {
        // Of workers that are alike, one is enough.
        if !is_free(&worker) || (0..worker).find(is_free).is_none() {
            of_worker(course, world, worker, &mut steps);
        }
    }
    for (partition, held) in world.partitions.iter().enumerate() {
        if world.left.faults > 0 && matches!(held.owner, Owner::Worker(_)) && !held.is_expired {
            steps.push(Step::Expire { partition });
        }
    }
    if world.left.server_crashes > 0 && is_behind(world) {
        steps.extend([Step::CrashServer, Step::Flush]);
    }
    steps
}

/// Whether handlers are called outside the transaction that settles.
fn calls_apart(course: &Course) -> bool {
    course.mode == Mode::Leased || course.has(Flaw::EffectsApart)
}

fn producers(world: &World, steps: &mut Vec<Step>) {
    let has_rolled_back = world.transactions.iter().any(|other| other.state == State::RolledBack);
    for transaction in 0..world.left.transactions {
        let state = world.transactions[transaction].state;
        if matches!(state, State::Committed | State::RolledBack) {
            continue;
        }
        let mut messages = (0..MESSAGES).filter(|message| transaction_of(*message) == transaction);
        match messages.find(|message| world.ids[*message] == 0) {
            Some(message) => steps.push(Step::Enqueue { message }),
            None => steps.push(Step::Commit { transaction }),
        }
        if state == State::Open && !has_rolled_back {
            steps.push(Step::RollBack { transaction });
        }
    }
}

fn of_worker(course: &Course, world: &World, worker: usize, steps: &mut Vec<Step>) {
    let memory = &world.workers[worker];
    match memory {
        Memory::Idle => begin_something(course, world, worker, steps),
        Memory::Looked { .. } => steps.push(Step::Append { worker }),
        Memory::Batch(held) => begin_batch(course, world, worker, held, steps),
        Memory::Within(held) => {
            for outcome in outcomes(world, held) {
                let transact = |answer| Step::Transact { worker, outcome, answer };
                steps.extend(answers(world, &[Answer::IsLost, Answer::IsNone]).map(transact));
            }
        }
        Memory::Decided(held, settling) => {
            let partition = &world.partitions[held.partition];
            let lost: &[_] = match rules::may_settle(course, partition, held, worker, settling.processed) {
                true => &[Answer::IsLost, Answer::IsNone],
                false => &[],
            };
            steps.extend(answers(world, lost).map(|answer| Step::Settle { worker, answer }));
        }
        Memory::Planned(_) => steps.push(Step::Remove { worker }),
    }
    if world.left.faults > 0 && (is_owner(world, worker) || *memory != Memory::Idle) {
        steps.push(Step::Crash { worker });
    }
}

fn is_owner(world: &World, worker: usize) -> bool {
    world.partitions.iter().any(|partition| partition.owner == Owner::Worker(worker))
}

fn begin_something(course: &Course, world: &World, worker: usize, steps: &mut Vec<Step>) {
    if !rules::became_visible(course, world).is_empty() {
        steps.push(Step::Look { worker });
    }
    for partition in (0..PARTITIONS).filter(|p| rules::may_acquire(course, world, *p, worker)) {
        let acquire = |answer| Step::Acquire { worker, partition, answer };
        steps.extend(answers(world, &[Answer::IsLost]).map(acquire));
    }
    if world.left.passes > 0 && vacuuming::has_waste(course, world) {
        steps.push(Step::Survey { worker });
    }
}

fn begin_batch(course: &Course, world: &World, worker: usize, held: &Held, steps: &mut Vec<Step>) {
    if held.is_exhausted(world) {
        // Nobody is called.
        steps.push(Step::Handle { worker, outcome: Outcome::Acks });
        return;
    }
    if calls_apart(course) {
        steps.extend(outcomes(world, held).into_iter().map(|outcome| Step::Handle { worker, outcome }));
    } else if !world.is_locked(held.partition) {
        steps.push(Step::Begin { worker });
    }
    if world.left.oddities > 0 {
        steps.push(Step::Handle { worker, outcome: Outcome::Stops });
    }
}

/// What a handler may do with a batch.
fn outcomes(world: &World, held: &Held) -> Vec<Outcome> {
    let mut outcomes = vec![Outcome::Acks];
    if world.left.oddities > 0 {
        outcomes.push(Outcome::AcksLast);
        outcomes
            .extend((0..held.messages).flat_map(|place| [Outcome::Retries(place), Outcome::Rejects(place)]));
    }
    outcomes
}

/// The answer that arrives, and those that fail.
fn answers(world: &World, lost: &[Answer]) -> impl Iterator<Item = Answer> {
    let lost = if world.left.faults > 0 { lost } else { &[] };
    [Answer::Arrives].into_iter().chain(lost.to_vec())
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enqueue { message } => {
                write!(f, "transaction {} writes message {message}", transaction_of(*message))
            }
            Self::Commit { transaction } => write!(f, "transaction {transaction} commits"),
            Self::RollBack { transaction } => write!(f, "transaction {transaction} rolls back"),
            Self::Look { worker } => write!(f, "worker {worker} looks what became visible"),
            Self::Append { worker } => write!(f, "worker {worker} appends its tick"),
            Self::Acquire { worker, partition, answer } => {
                write!(f, "worker {worker} asks for the lease of partition {partition}{answer}")
            }
            Self::Handle { worker, outcome } => write!(f, "the handler of worker {worker} {outcome}"),
            Self::Begin { worker } => write!(f, "worker {worker} begins a handler's transaction"),
            Self::Transact { worker, outcome, answer } => {
                write!(f, "the handler of worker {worker} {outcome}, it settles and commits{answer}")
            }
            Self::Settle { worker, answer } => write!(f, "worker {worker} settles{answer}"),
            Self::Expire { partition } => write!(f, "the lease of partition {partition} runs out"),
            Self::Crash { worker } => write!(f, "worker {worker} crashes and starts again"),
            Self::CrashServer => write!(f, "the server crashes and starts again"),
            Self::Flush => write!(f, "the server writes to its disk what it has so far"),
            Self::Survey { worker } => write!(f, "vacuum of worker {worker} looks and plans"),
            Self::Remove { worker } => write!(f, "vacuum of worker {worker} removes"),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acks => write!(f, "acks"),
            Self::AcksLast => write!(f, "acks as its slice ends"),
            Self::Retries(done) => write!(f, "acks {done} and puts off the next"),
            Self::Rejects(place) => write!(f, "rejects the message at place {place}"),
            Self::Stops => write!(f, "is not called, the process stops"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Arrives => "",
            Self::IsLost => ": done, but the answer is lost",
            Self::IsNone => ": the question is lost, and given up",
        })
    }
}
