//! What is promised, asked of what happened rather than of the rules that made it happen.

use std::fmt;

use super::{
    Course, Mode,
    world::{Chain, Held, MESSAGES, Memory, Owner, PLAN, State, World, transaction_of},
};
use crate::store::{Remains, Trim};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// G1
    NothingLost,
    /// G2
    NoPhantom,
    /// G3
    ExactlyOnce,
    /// G4
    OnceWithoutFaults,
    /// G5
    OrderOfAssignment,
    /// G6
    OrderOfDelivery,
    /// G7
    Fencing,
    /// G8
    Cursor,
    /// G15
    StorageGivenBack,
    /// G16
    Vacuum,
}

/// A promise that was broken, and how.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) promise: Promise,
    pub(super) how: String,
}

pub(super) type Kept = Result<(), Broken>;

/// Whether a promise holds; if not, how it was broken is said.
pub(super) fn keep(promise: Promise, holds: bool, how: impl FnOnce() -> String) -> Kept {
    if holds { Ok(()) } else { Err(Broken { promise, how: how() }) }
}

/// A message is about to get the next seq of a partition.
pub(super) fn on_assignment(world: &World, partition: usize, message: usize) -> Kept {
    let transaction = transaction_of(message);
    let is_committed = world.transactions[transaction].state == State::Committed;
    keep(Promise::NoPhantom, is_committed, || {
        format!("message {message} has a seq, and its transaction did not commit")
    })?;
    keep(Promise::OrderOfAssignment, PLAN[message].1 == partition, || {
        format!("message {message} has a seq in partition {partition}")
    })?;
    keep(Promise::OrderOfAssignment, !world.sequenced().has(message), || {
        format!("message {message} has two seqs")
    })?;
    let partition = &world.partitions[partition];
    for earlier in partition.order[..usize::from(partition.head)].iter().copied() {
        let other = transaction_of(earlier);
        let is_late = world.transactions[other].began_after.has(transaction)
            || (other == transaction && world.ids[earlier] > world.ids[message]);
        keep(Promise::OrderOfAssignment, !is_late, || {
            format!("message {message} comes behind message {earlier}, which was written later")
        })?;
    }
    Ok(())
}

/// A worker is about to be given a partition's lease.
pub(super) fn on_acquire(world: &World, partition: usize, worker: usize) -> Kept {
    let is_held = match world.partitions[partition].owner {
        Owner::Worker(owner) => owner != worker && !world.partitions[partition].is_expired,
        Owner::Nobody | Owner::Gone => false,
    };
    keep(Promise::Fencing, !is_held, || {
        format!("partition {partition} has two holders whose leases have not run out")
    })
}

/// A worker was given an epoch.
pub(super) fn on_epoch(course: &Course, world: &World, held: &Held) -> Kept {
    let is_same = |other: &Held| (other.partition, other.epoch) == (held.partition, held.epoch);
    let is_others = world.workers.iter().filter_map(Memory::held).any(is_same);
    // A crash of the server may take an epoch back: then it is another owner's.
    keep(Promise::Fencing, !is_others || has_server_crashed(course, world), || {
        format!("epoch {} of partition {} was given out twice", held.epoch, held.partition)
    })
}

/// A batch was read: a run of consecutive seqs right behind what is settled, of which no message is missing.
pub(super) fn on_read(world: &World, held: &Held) -> Kept {
    let partition = &world.partitions[held.partition];
    keep(Promise::OrderOfDelivery, held.messages > 0 && held.processed == partition.processed, || {
        format!("a batch of partition {} does not begin behind what is settled", held.partition)
    })?;
    (held.processed + 1..=held.processed + held.messages).try_for_each(|seq| {
        let is_there = seq > partition.after && world.rows.has(partition.message(seq));
        keep(Promise::NothingLost, is_there, || {
            format!("message {seq} of partition {} is missing, and delivery stops before it", held.partition)
        })
    })
}

/// A handler is done with a message, or its effects are about to be committed.
pub(super) fn on_handled(course: &Course, world: &World, held: &Held, seq: u8) -> Kept {
    let partition = &world.partitions[held.partition];
    let message = partition.message(seq);
    let was_ended = world.handled.with(world.buried).has(message);
    match course.mode {
        Mode::Transactional => keep(Promise::ExactlyOnce, !was_ended, || {
            format!(
                "the effects of message {message} are committed, and it had been handled or buried before"
            )
        })?,
        Mode::Leased => {
            let is_explained = world.left.faults < course.bounds.faults || has_server_crashed(course, world);
            keep(Promise::OnceWithoutFaults, !was_ended || is_explained, || {
                format!("message {message} was handled twice, and nothing had gone wrong")
            })?;
        }
    }
    let is_passed = |earlier: &usize| !world.handled.with(world.buried).has(*earlier);
    // What precedes it in the batch was given to the same call.
    let passed = partition.order[..usize::from(held.processed)].iter().find(|earlier| is_passed(earlier));
    keep(Promise::OrderOfDelivery, passed.is_none(), || {
        format!("message {message} was delivered before {}, which precedes it", passed.unwrap_or(&MESSAGES))
    })
}

/// A settlement is about to move the cursor.
pub(super) fn on_settle(world: &World, held: &Held, worker: usize) -> Kept {
    let partition = &world.partitions[held.partition];
    let is_holder = partition.owner == Owner::Worker(worker) && partition.chain.newest == held.epoch;
    keep(Promise::Fencing, is_holder, || {
        format!("a settlement for epoch {} of partition {} changed it", held.epoch, held.partition)
    })
}

/// The cursor was moved.
pub(super) fn on_moved(world: &World, before: u8, number: usize) -> Kept {
    let partition = &world.partitions[number];
    keep(Promise::Cursor, before <= partition.processed, || {
        format!("the cursor of partition {number} went back")
    })?;
    (before + 1..=partition.processed).try_for_each(|seq| {
        let is_settled =
            seq <= partition.head && world.handled.with(world.buried).has(partition.message(seq));
        keep(Promise::Cursor, is_settled, || {
            format!("the cursor of partition {number} passed message {seq}, which nobody has settled")
        })
    })
}

/// Vacuum has planned what to remove of what it saw.
pub(super) fn on_planned(remains: &[Remains], trim: &Trim) -> Kept {
    let seen = remains.iter().find(|left| left.partition_id == trim.partition_id);
    let is_bounded =
        seen.is_some_and(|left| trim.end_epoch <= left.newest_epoch && trim.to_seq <= left.settled_seq);
    keep(Promise::Vacuum, is_bounded, || format!("{trim:?} was planned, of {seen:?}"))
}

/// Vacuum has removed something.
pub(super) fn on_removed(world: &World) -> Kept {
    let ticks = world.ticks.chain;
    keep(Promise::Vacuum, ticks.has(ticks.newest), || "the newest tick is gone".to_owned())?;
    for (number, partition) in world.partitions.iter().enumerate() {
        keep(Promise::Vacuum, partition.chain.has(partition.chain.newest), || {
            format!("the newest link of partition {number} is gone")
        })?;
        keep(Promise::Vacuum, partition.head == 0 || partition.after < partition.head, || {
            format!("the newest segment of partition {number} is gone")
        })?;
        for seq in partition.processed + 1..=partition.head {
            let is_left = seq > partition.after && world.rows.has(partition.message(seq));
            keep(Promise::Vacuum, is_left, || {
                format!("message {seq} of partition {number} is gone, and nobody has settled it")
            })?;
        }
    }
    Ok(())
}

/// The server is about to forget what is not durable.
pub(super) fn on_server_crash(world: &World) -> Kept {
    for (number, partition) in world.partitions.iter().enumerate() {
        for seq in world.durable.partitions[number].head + 1..=partition.head {
            let is_known = world.handled.with(world.buried).has(partition.message(seq));
            keep(Promise::OrderOfAssignment, !is_known, || {
                format!("message {seq} of partition {number} was delivered, and may get another seq")
            })?;
        }
    }
    Ok(())
}

const fn has_server_crashed(course: &Course, world: &World) -> bool {
    world.left.server_crashes < course.bounds.server_crashes
}

/// Nobody has anything left to do.
pub(super) fn at_the_end(world: &World) -> Kept {
    let sequenced = world.sequenced();
    let committed = world.committed();
    for message in 0..MESSAGES {
        let is_owed = committed.has(transaction_of(message));
        let is_ended = sequenced.has(message) && world.handled.with(world.buried).has(message);
        keep(Promise::NothingLost, is_ended || !is_owed, || {
            format!("message {message} was committed, and nobody will ever handle it")
        })?;
    }
    for (number, partition) in world.partitions.iter().enumerate() {
        keep(Promise::NothingLost, partition.processed == partition.head, || {
            format!("partition {number} is not settled, and nobody goes on with it")
        })?;
    }
    Ok(())
}

/// Vacuum has done all it could, and nobody has anything left to do.
pub(super) fn when_swept(world: &World) -> Kept {
    let is_trimmed = |chain: &Chain| chain.first == chain.newest;
    let chains = world.partitions.iter().map(|partition| partition.chain).chain([world.ticks.chain]);
    let is_swept = world.rows.is_empty() && chains.into_iter().all(|chain| is_trimmed(&chain));
    keep(Promise::StorageGivenBack, is_swept, || "vacuum leaves something behind for good".to_owned())
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is broken: {}", self.promise, self.how)
    }
}
