//! Breadth first through all states, so that a counter-example is as short as it can be.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    mem::discriminant,
};

use super::{
    Course, Likeness,
    alike::likeness,
    promises::{self, Broken},
    steps::{Step, possible},
    vacuuming,
    world::{Memory, Owner, World},
};

/// What was found.
pub(super) struct Explored {
    pub(super) states: usize,
    /// Those in which nobody has anything left to do.
    pub(super) ends: usize,
    pub(super) counter_example: Option<CounterExample>,
    /// How many kinds of steps were taken.
    pub(super) kinds: usize,
    /// Whether there is a way to go on for ever.
    pub(super) is_endless: bool,
}

pub(super) struct CounterExample {
    pub(super) broken: Broken,
    course: Course,
    pub(super) steps: Vec<Step>,
}

/// How a state was first reached.
type Reached = Option<(u32, Step)>;

pub(super) fn explore(course: Course) -> Explored {
    assert!(
        course.likeness == Likeness::Exact || course.bounds.server_crashes == 0,
        "where a link can be taken back, an old one is not refused for ever"
    );
    let first = World::new(course.bounds);
    let mut numbers: HashMap<u64, u32, BuildHasherDefault<Hashed>> = HashMap::default();
    numbers.insert(likeness(&course, &first), 0);
    let mut reached: Vec<Reached> = vec![None];
    let mut followers = Followers::default();
    let (mut frontier, mut ends) = (vec![(0_u32, first)], 0);
    while !frontier.is_empty() {
        let mut next = Vec::new();
        for (number, world) in &frontier {
            let steps = possible(&course, world);
            if steps.iter().all(|step| step.is_fault()) {
                ends += 1;
                if let Err(broken) = at_the_end(&course, world) {
                    return found(course, broken, &reached, *number, None, ends);
                }
            }
            for step in steps {
                let mut after = *world;
                if let Err(broken) = step.take(&course, &mut after) {
                    return found(course, broken, &reached, *number, Some(step), ends);
                }
                let new = u32::try_from(reached.len()).unwrap();
                let known = *numbers.entry(likeness(&course, &after)).or_insert(new);
                followers.of_last.push(known);
                if known == new {
                    reached.push(Some((*number, step)));
                    next.push((new, after));
                }
            }
            followers.ends.push(followers.of_last.len());
        }
        frontier = next;
    }
    let kinds: HashSet<_> = reached.iter().flatten().map(|(_, step)| discriminant(step)).collect();
    Explored {
        states: reached.len(),
        ends,
        counter_example: None,
        kinds: kinds.len(),
        is_endless: followers.have_a_circle(),
    }
}

/// All must be settled, and vacuum must be able to remove all of it.
fn at_the_end(course: &Course, world: &World) -> Result<(), Broken> {
    promises::at_the_end(world)?;
    let mut swept = *world;
    swept.workers[0] = vacuuming::look(course, world)?;
    vacuuming::remove(course, &mut swept, 0)?;
    promises::when_swept(&swept)
}

fn found(
    course: Course,
    broken: Broken,
    reached: &[Reached],
    mut number: u32,
    last: Option<Step>,
    ends: usize,
) -> Explored {
    let mut steps: Vec<_> = last.into_iter().collect();
    while let Some((before, step)) = reached[usize::try_from(number).unwrap()] {
        steps.push(step);
        number = before;
    }
    steps.reverse();
    let counter_example = Some(CounterExample { broken, course, steps });
    Explored { states: reached.len(), ends, counter_example, kinds: 0, is_endless: false }
}

/// A likeness is a hash already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, likeness: u64) {
        self.0 = likeness;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Which states follow which: those of a state end where those of the next begin.
#[derive(Default)]
struct Followers {
    of_last: Vec<u32>,
    ends: Vec<usize>,
}

impl Followers {
    fn of(&self, state: usize) -> &[u32] {
        let begin = if state == 0 { 0 } else { self.ends[state - 1] };
        &self.of_last[begin..self.ends[state]]
    }

    /// States are taken away that none of the rest leads to, until there are no more of them.
    fn have_a_circle(&self) -> bool {
        let mut leading = vec![0_u32; self.ends.len()];
        for state in &self.of_last {
            leading[usize::try_from(*state).unwrap()] += 1;
        }
        let (mut free, mut gone) = (vec![0_usize], 0);
        while let Some(state) = free.pop() {
            gone += 1;
            for follower in self.of(state) {
                let follower = usize::try_from(*follower).unwrap();
                leading[follower] -= 1;
                if leading[follower] == 0 {
                    free.push(follower);
                }
            }
        }
        gone < self.ends.len()
    }
}

/// Step by step, with what the partitions are like after each.
impl fmt::Display for CounterExample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} {:?}, {} steps", self.course.mode, self.course.flaw, self.steps.len())?;
        let mut world = World::new(self.course.bounds);
        for (place, step) in self.steps.iter().enumerate() {
            writeln!(f, "{:3}. {step}", place + 1)?;
            let before = world;
            if step.take(&self.course, &mut world).is_ok() {
                changes(f, &before, &world)?;
            }
        }
        writeln!(f, "     {}", self.broken)
    }
}

fn changes(f: &mut fmt::Formatter<'_>, before: &World, after: &World) -> fmt::Result {
    for (number, (was, is)) in before.partitions.iter().zip(&after.partitions).enumerate() {
        let state = |world: &super::world::Partition| {
            let owner = match world.owner {
                Owner::Nobody => "nobody's".to_owned(),
                Owner::Gone => "of a worker that is gone".to_owned(),
                Owner::Worker(worker) if world.is_expired => format!("worker {worker}'s, run out"),
                Owner::Worker(worker) => format!("worker {worker}'s"),
            };
            let (processed, head, epoch) = (world.processed, world.head, world.chain.newest);
            format!("partition {number}: settled {processed} of {head}, epoch {epoch} {owner}")
        };
        if state(was) != state(is) {
            writeln!(f, "       {}", state(is))?;
        }
    }
    for (worker, (was, is)) in before.workers.iter().zip(&after.workers).enumerate() {
        if let (Memory::Batch(_) | Memory::Within(_) | Memory::Decided(..), Memory::Idle) = (was, is) {
            writeln!(f, "       worker {worker} has nothing more to do with its batch")?;
        }
    }
    Ok(())
}
