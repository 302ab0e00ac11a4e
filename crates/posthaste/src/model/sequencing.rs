//! Producers, and the tick that follows them.

use super::{
    Course, Flaw,
    durability::flush,
    promises::{Kept, Promise, keep, on_assignment},
    rules,
    world::{MESSAGES, Memory, PLAN, Set, State, World, transaction_of},
};
use crate::store::segments;

/// Writes a message; its transaction begins with the first one.
pub(super) fn enqueue(world: &mut World, message: usize) {
    let committed = world.committed();
    let transaction = &mut world.transactions[transaction_of(message)];
    if transaction.state == State::Ahead {
        transaction.state = State::Open;
        transaction.began_after = committed;
    }
    world.ids[message] = world.ids.iter().max().unwrap_or(&0) + 1;
    world.rows.insert(message);
}

pub(super) const fn commit(world: &mut World, transaction: usize) {
    world.transactions[transaction].state = State::Committed;
    flush(world);
}

pub(super) fn roll_back(world: &mut World, transaction: usize) {
    world.transactions[transaction].state = State::RolledBack;
    for message in (0..MESSAGES).filter(|message| transaction_of(*message) == transaction) {
        world.rows.remove(message);
    }
}

pub(super) fn look(course: &Course, world: &mut World, worker: usize) {
    let (tick, taken) = (world.ticks.chain.newest, rules::became_visible(course, world));
    world.workers[worker] = Memory::Looked { tick, taken, seen: world.committed() };
}

pub(super) fn append(course: &Course, world: &mut World, worker: usize) -> Kept {
    let Memory::Looked { tick, taken, seen } = world.workers[worker] else { return Ok(()) };
    world.workers[worker] = Memory::Idle;
    if rules::may_append_tick(course, world.ticks.chain, tick) {
        world.ticks.chain.append();
        world.ticks.seen = world.ticks.seen.with(seen);
    } else if !course.has(Flaw::SegmentsWithoutLink) {
        return Ok(());
    }
    let mut messages: Vec<_> = (0..MESSAGES).filter(|message| taken.has(*message)).collect();
    messages.sort_by_key(|message| world.ids[*message]);
    world.ticks.last_id = messages.last().map_or(world.ticks.last_id, |last| world.ids[*last]);
    write_segments(world, &messages)?;
    if !course.has(Flaw::TickNotDurable) {
        flush(world);
    }
    Ok(())
}

/// `segments.sql`: behind the heads of the partitions, divided by the product.
fn write_segments(world: &mut World, messages: &[usize]) -> Kept {
    let partition_id = |message: usize| i32::try_from(PLAN[message].1).unwrap();
    let taken: Vec<_> = messages.iter().map(|m| (i64::from(world.ids[*m]), partition_id(*m))).collect();
    let segments: Vec<(usize, u8, u8, String)> = serde_json::from_str(&segments(&taken)).unwrap();
    let heads = world.partitions.map(|partition| partition.head);
    let mut written = Set::default();
    for (number, first, last, ids) in segments {
        let ids: Vec<u8> = serde_json::from_str(&ids).unwrap();
        for (seq, id) in (heads[number] + first..).zip(&ids) {
            let message = world.ids.iter().position(|other| other == id).unwrap();
            on_assignment(world, number, message)?;
            let partition = &mut world.partitions[number];
            keep(Promise::OrderOfAssignment, seq == partition.head + 1, || {
                format!("seq {seq} of partition {number} does not follow the one before")
            })?;
            partition.order[usize::from(partition.head)] = message;
            partition.head = seq;
            written.insert(message);
        }
        let partition = &mut world.partitions[number];
        keep(Promise::OrderOfAssignment, partition.head == heads[number] + last, || {
            format!("a segment of partition {number} does not end where it says")
        })?;
        partition.ends.insert(usize::from(partition.head));
    }
    let is_whole = messages.iter().all(|message| written.has(*message));
    keep(Promise::NothingLost, is_whole, || "a tick took a message and gave it no seq".to_owned())
}
