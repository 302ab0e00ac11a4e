//! What the product decides in SQL, a function a statement. A flaw changes one of them.

use super::{
    Course, Flaw, Mode,
    world::{Chain, Held, MESSAGES, Owner, Partition, Set, World, transaction_of},
};

/// `tick.sql`, `fresh` and `late`: the messages of transactions that have committed and that the newest link did not see.
pub(super) fn became_visible(course: &Course, world: &World) -> Set {
    let committed = world.committed();
    let mut taken = Set::default();
    for message in 0..MESSAGES {
        let is_new = match course.flaw {
            Some(Flaw::TickById) => world.ids[message] > world.ticks.last_id,
            _ => !world.ticks.seen.has(transaction_of(message)),
        };
        if committed.has(transaction_of(message)) && is_new {
            taken.insert(message);
        }
    }
    taken
}

/// `tick.sql`, `locked` and `link`: the link it builds on is still there, and has no successor.
pub(super) fn may_append_tick(course: &Course, chain: Chain, tick: u8) -> bool {
    let is_unique = !chain.has(tick + 1);
    is_unique && (chain.has(tick) || course.has(Flaw::TickFromMemory))
}

/// `acquire.sql`, `is_for_us` and `partition`: nobody holds it, or nobody any more, or the worker itself; something is
/// behind the cursor; and no handler's transaction has it locked.
pub(super) fn may_acquire(course: &Course, world: &World, partition: usize, worker: usize) -> bool {
    let is_locked = course.mode == Mode::Transactional && world.is_locked(partition);
    let partition = &world.partitions[partition];
    let is_free = match partition.owner {
        Owner::Nobody | Owner::Gone => true,
        Owner::Worker(owner) => {
            owner == worker || partition.is_expired || course.has(Flaw::AcquireBeforeExpiry)
        }
    };
    is_free && partition.processed < partition.head && !is_locked
}

/// `acquire.sql`, `link`: a link of its own that it called no handler for was only a reply that got lost, and no try.
pub(super) fn tries(partition: &Partition, worker: usize) -> u8 {
    let is_lost_reply = partition.owner == Owner::Worker(worker) && !partition.was_called;
    partition.attempts + u8::from(!is_lost_reply)
}

/// `acquire.sql`, `batch`: what may have killed its worker comes alone.
pub(super) fn batch_size(partition: &Partition, most: u8) -> u8 {
    if partition.owner == Owner::Nobody { most } else { 1 }
}

/// `lock.sql`, and `tip` of `settle.sql`: the newest link is the one that the worker holds.
pub(super) fn is_mine(partition: &Partition, held: &Held, worker: usize) -> bool {
    partition.chain.newest == held.epoch && partition.owner == Owner::Worker(worker)
}

/// `settle.sql`, `tip`, `locked` and `link`.
pub(super) fn may_settle(
    course: &Course,
    partition: &Partition,
    held: &Held,
    worker: usize,
    processed: u8,
) -> bool {
    let is_ours = match course.flaw {
        Some(Flaw::SettleWithoutEpoch) => true,
        Some(Flaw::SettleFromMemory) => !partition.chain.has(held.epoch + 1),
        Some(Flaw::SettleByEpochAlone) => partition.chain.newest == held.epoch,
        _ => is_mine(partition, held, worker),
    };
    is_ours && (partition.processed..=partition.head).contains(&processed)
}

/// `vacuum.sql`, `part`: whatever was planned, the newest link stays, and what is not settled.
pub(super) fn bounded(course: &Course, partition: &Partition, (end, to): (u8, u8)) -> (u8, u8) {
    let end = match course.flaw {
        Some(Flaw::VacuumTakesNewestLink) => end + 1,
        _ => end.min(partition.chain.newest),
    };
    let to = match course.flaw {
        Some(Flaw::VacuumUnbounded | Flaw::VacuumFromMemory) => to,
        _ => to.min(partition.processed),
    };
    (end, to)
}

/// `vacuum.sql`, `segments`: up to which seq segments go. The newest one stays.
pub(super) fn segments_end(course: &Course, partition: &Partition, to: u8) -> u8 {
    let goes = |seq: &u8| {
        let is_newest = *seq == partition.head && !course.has(Flaw::VacuumTakesNewestSegment);
        partition.ends.has(usize::from(*seq)) && !is_newest
    };
    (partition.after + 1..=to).rev().find(goes).unwrap_or(partition.after)
}

/// `vacuum.sql`, `ticks`: the first that stays.
pub(super) fn ticks_end(course: &Course, chain: Chain) -> u8 {
    chain.newest + u8::from(course.has(Flaw::VacuumTakesNewestTick))
}
