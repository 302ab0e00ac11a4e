//! Vacuum: it looks and plans, and removes later.

use super::{
    Course, Flaw,
    durability::flush,
    promises::{Broken, Kept, on_planned, on_removed},
    rules,
    world::{Memory, PARTITIONS, Partition, World},
};
use crate::{store::Remains, vacuum::plan};

/// A chunk: more than there is.
const CHUNK: u32 = 10_000;

/// `survey.sql`.
fn survey(course: &Course, number: usize, partition: &Partition) -> Remains {
    let settled = if course.has(Flaw::VacuumUnbounded) { partition.head } else { partition.processed };
    Remains {
        partition_id: i32::try_from(number).unwrap(),
        first_epoch: i64::from(partition.chain.first),
        newest_epoch: i64::from(partition.chain.newest),
        first_seq: i64::from(partition.after) + 1,
        settled_seq: i64::from(settled),
        head_seq: i64::from(partition.head),
    }
}

pub(super) fn look(course: &Course, world: &World) -> Result<Memory, Broken> {
    let surveyed = world.partitions.iter().enumerate().map(|(number, left)| survey(course, number, left));
    let remains: Vec<_> = surveyed.filter(|left| !left.is_done()).collect();
    let mut planned = [(0, 0); PARTITIONS];
    for trim in plan(&remains, CHUNK) {
        on_planned(&remains, &trim)?;
        planned[usize::try_from(trim.partition_id).unwrap()] =
            (u8::try_from(trim.end_epoch).unwrap(), u8::try_from(trim.to_seq).unwrap());
    }
    Ok(Memory::Planned(planned))
}

pub(super) fn remove(course: &Course, world: &mut World, worker: usize) -> Kept {
    let Memory::Planned(planned) = world.workers[worker] else { return Ok(()) };
    world.workers[worker] = Memory::Idle;
    for (partition, trim) in world.partitions.iter_mut().zip(planned) {
        if trim == (0, 0) {
            continue;
        }
        let (end, to) = rules::bounded(course, partition, trim);
        partition.chain.trim(end);
        let segments_end = rules::segments_end(course, partition, to);
        // Of a newest segment that is settled, the messages go.
        let rows_end = if partition.head <= to { partition.head } else { segments_end };
        (1..=rows_end).for_each(|seq| world.rows.remove(partition.message(seq)));
        partition.after = segments_end;
    }
    world.ticks.chain.trim(rules::ticks_end(course, world.ticks.chain));
    on_removed(world)?;
    flush(world);
    Ok(())
}

/// Whether there is a message to remove, without which nobody bothers.
pub(super) fn has_waste(course: &Course, world: &World) -> bool {
    world.partitions.iter().any(|partition| {
        let settled = if course.has(Flaw::VacuumUnbounded) { partition.head } else { partition.processed };
        (1..=settled).any(|seq| world.rows.has(partition.message(seq)))
    })
}
