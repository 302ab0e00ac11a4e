//! What a crash of the server takes back. Producers, ticks, vacuum and transactional mode commit durably, and with them all that
//! was committed before; leased acquires and settlements, and the acquires of transactional mode, wait for that, or for the
//! server to get to it.

use super::{
    Course,
    processing::lose_transaction,
    promises::{Kept, on_server_crash},
    sequencing::roll_back,
    world::{Memory, Owner, Partition, Set, State, Ticks, World},
};

/// What would be left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Durable {
    pub(super) ticks: Ticks,
    pub(super) partitions: [Partition; super::world::PARTITIONS],
    pub(super) buried: Set,
}

/// All that is committed is durable.
pub(super) const fn flush(world: &mut World) {
    world.durable = Durable { ticks: world.ticks, partitions: world.partitions, buried: world.buried };
}

/// Whether anything would be taken back.
pub(super) fn is_behind(world: &World) -> bool {
    let links =
        |partitions: &[Partition]| partitions.iter().map(|partition| partition.chain.newest).sum::<u8>();
    links(&world.durable.partitions) != links(&world.partitions)
        || world.durable.ticks.chain.newest != world.ticks.chain.newest
}

/// The server crashes and starts again; the workers find out by and by.
pub(super) fn crash_server(course: &Course, world: &mut World) -> Kept {
    on_server_crash(world)?;
    for transaction in 0..world.transactions.len() {
        if world.transactions[transaction].state == State::Open {
            roll_back(world, transaction);
        }
    }
    for worker in 0..world.workers.len() {
        if let Memory::Within(held) = world.workers[worker] {
            world.workers[worker] = lose_transaction(course, world, held);
        }
    }
    let Durable { ticks, partitions, buried } = world.durable;
    (world.ticks, world.partitions, world.buried) = (ticks, partitions, buried);
    Ok(())
}

/// What is true of the newest link is true of the same link if that is all that is left.
pub(super) fn note(world: &mut World, number: usize, note: impl Fn(&mut Partition)) {
    let newest = world.partitions[number].chain.newest;
    note(&mut world.partitions[number]);
    if world.durable.partitions[number].chain.newest == newest {
        note(&mut world.durable.partitions[number]);
    }
}

/// A worker that is gone owns nothing, whatever is left.
pub(super) fn disown(world: &mut World, worker: usize) {
    for partition in world.partitions.iter_mut().chain(&mut world.durable.partitions) {
        if partition.owner == Owner::Worker(worker) {
            partition.owner = Owner::Gone;
            (partition.is_expired, partition.was_called) = (false, false);
        }
    }
}
