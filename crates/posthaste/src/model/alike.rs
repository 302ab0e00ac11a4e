//! Which states are alike: what can happen from one can happen from the other, and breaks the same promises. Only one of
//! them is followed.

use std::hash::{DefaultHasher, Hasher};

use super::{
    Bounds, Course, Likeness,
    world::{Chain, MESSAGES, Memory, Owner, Partition, Set, State, Ticks, WORKERS, World, transaction_of},
};

/// A number that states which are alike have in common, and others do not.
///
/// Alike are states in which workers have changed places, or all numbers of a chain are larger. The sound rules look at
/// nothing but the newest link: who builds on an older one will be refused, however old it is, and whatever it wants.
pub(super) fn likeness(course: &Course, world: &World) -> u64 {
    let is_coarse = course.likeness == Likeness::Coarse;
    let mut keys = [[0; 8]; WORKERS];
    for (worker, key) in keys.iter_mut().enumerate() {
        *key = remembered(is_coarse, world, &world.workers[worker]);
        for (number, partition) in world.partitions.iter().enumerate() {
            let durable = &world.durable.partitions[number];
            let was_owner = world.left.server_crashes > 0 && durable.owner == Owner::Worker(worker);
            let is_owner = partition.owner == Owner::Worker(worker);
            key[7] |= (u8::from(was_owner) << 2 | u8::from(is_owner)) << number;
        }
    }
    keys.sort_unstable();
    let Bounds { faults, oddities, passes, server_crashes, .. } = world.left;
    let left = server_crashes << 6 | faults << 4 | oddities << 3 | passes;
    let last_id = if is_coarse { 0 } else { world.ticks.last_id };
    let mut bytes = [0; 84];
    bytes[..24].copy_from_slice(keys.as_flattened());
    bytes[24..28].copy_from_slice(&[left, links(is_coarse, world.ticks.chain), world.ticks.seen.0, last_id]);
    bytes[28..36].copy_from_slice(&produced(is_coarse, world));
    for (bytes, partition) in bytes[36..68].chunks_exact_mut(16).zip(&world.partitions) {
        bytes.copy_from_slice(&settled(is_coarse, world, partition));
    }
    if server_crashes > 0 {
        bytes[68..].copy_from_slice(&durable(world));
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(&bytes);
    hasher.finish()
}

/// How many links are older, where anybody asks.
const fn links(is_coarse: bool, chain: Chain) -> u8 {
    if is_coarse { 0 } else { chain.newest - chain.first }
}

fn behind(is_coarse: bool, chain: Chain, number: u8) -> u8 {
    // A crash of the server may have taken it back: then it is ahead.
    let behind = chain.newest.wrapping_sub(number);
    if is_coarse { behind.min(1) } else { behind }
}

fn remembered(is_coarse: bool, world: &World, memory: &Memory) -> [u8; 8] {
    let chain = |partition: usize| world.partitions[partition].chain;
    let held_behind = memory.held().map(|held| behind(is_coarse, chain(held.partition), held.epoch));
    let number = |partition: usize| u8::from(partition > 0);
    match memory {
        Memory::Idle => [0; 8],
        Memory::Looked { tick, taken, seen } => match behind(is_coarse, world.ticks.chain, *tick) {
            // It will find out, and forget what it took.
            1.. if is_coarse => [1, 1, 0, 0, 0, 0, 0, 0],
            behind => [1, behind, taken.0, seen.0, 0, 0, 0, 0],
        },
        // The same for whoever was taken over.
        Memory::Batch(held) | Memory::Decided(held, _) if is_coarse && held_behind > Some(0) => {
            [2, number(held.partition), 1, u8::from(matches!(memory, Memory::Batch(_))), 0, 0, 0, 0]
        }
        Memory::Batch(held) | Memory::Within(held) => {
            let kind = if matches!(memory, Memory::Batch(_)) { 3 } else { 4 };
            let behind = held_behind.unwrap_or_default();
            [kind, number(held.partition), behind, held.processed, held.attempts, held.messages, 0, 0]
        }
        Memory::Decided(held, settling) => {
            let (behind, go_on) = (held_behind.unwrap_or_default(), u8::from(settling.go_on));
            let (processed, attempts) = (settling.processed, settling.attempts);
            [5, number(held.partition), behind, processed, attempts, go_on, settling.burials.0, 0]
        }
        Memory::Planned([first, second]) => {
            let end = |partition: usize, end: u8| match end {
                0 => u8::MAX,
                end => behind(is_coarse, chain(partition), end),
            };
            [6, end(0, first.0), first.1, end(1, second.0), second.1, 0, 0, 0]
        }
    }
}

/// The order of what has a seq is settled: what matters is how the others can still come to lie.
fn produced(is_coarse: bool, world: &World) -> [u8; 8] {
    let sequenced = world.sequenced();
    let mut seen = Set::default();
    (0..MESSAGES).filter(|m| sequenced.has(*m)).for_each(|m| seen.insert(transaction_of(m)));
    let mut bytes = [0; 8];
    for (byte, transaction) in bytes.iter_mut().zip(&world.transactions) {
        let state = match transaction.state {
            State::Ahead => 0,
            State::Open => 1,
            State::Committed => 2,
            State::RolledBack => 3,
        };
        *byte = transaction.began_after.without(seen).0 << 2 | state;
    }
    let waits = |message: usize| world.ids[message] > 0 && !sequenced.has(message) && world.rows.has(message);
    for message in 0..MESSAGES {
        let id = world.ids[message];
        bytes[4 + message] = match waits(message) {
            _ if !is_coarse => id,
            false => u8::from(id > 0) * 9,
            true => (0..MESSAGES).map(|m| u8::from(waits(m) && world.ids[m] <= id)).sum(),
        };
    }
    bytes
}

/// What a crash of the server would leave.
fn durable(world: &World) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (number, durable) in world.durable.partitions.iter().enumerate() {
        let ago = world.partitions[number].chain.newest - durable.chain.newest;
        let is_owned = u8::from(durable.owner != Owner::Nobody);
        let flags = is_owned << 2 | u8::from(durable.is_expired) << 1 | u8::from(durable.was_called);
        bytes[number * 6..][..6].copy_from_slice(&[
            ago,
            durable.processed,
            durable.attempts,
            flags,
            durable.head,
            durable.ends.0,
        ]);
    }
    let Ticks { chain, seen, last_id } = world.durable.ticks;
    bytes[12..].copy_from_slice(&[
        world.ticks.chain.newest - chain.newest,
        seen.0,
        last_id,
        world.durable.buried.0,
    ]);
    bytes
}

fn settled(is_coarse: bool, world: &World, partition: &Partition) -> [u8; 16] {
    let owner = match partition.owner {
        Owner::Nobody => 0,
        Owner::Gone => 1,
        Owner::Worker(_) => 2,
    };
    let is_vacuumed =
        !is_coarse || world.left.passes > 0 || world.workers.iter().any(|m| matches!(m, Memory::Planned(_)));
    let (ends, after) = if is_vacuumed { (partition.ends.0, partition.after) } else { (0, 0) };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&[
        partition.head,
        ends,
        after,
        partition.processed,
        partition.attempts,
        owner << 2 | u8::from(partition.is_expired) << 1 | u8::from(partition.was_called),
        links(is_coarse, partition.chain),
        0,
    ]);
    for seq in 1..=partition.head {
        let message = partition.message(seq);
        // Of what is settled, only this matters.
        let has_row = u8::from(world.rows.has(message) && is_vacuumed);
        let fate = match seq > partition.processed || !is_coarse {
            true => {
                let number = message.to_le_bytes()[0];
                8 | number << 4
                    | u8::from(world.handled.has(message)) << 1
                    | u8::from(world.buried.has(message)) << 2
            }
            false => 0,
        };
        bytes[7 + usize::from(seq)] = fate | has_row;
    }
    bytes
}
