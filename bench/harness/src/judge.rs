//! Whether all arrived, once and in order: a run for which that does not hold does not count.
//!
//! What a producer sent to a partition must arrive there in the order it was sent, for one of its transactions had committed
//! before the next began. The judge keeps a number for each producer and partition, and those that were overtaken: its memory does not
//! grow with the messages, so that what a system's own memory does is seen.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{clock, message::Origin, tally::Tally, workload::Load};

/// A message that reached a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    pub origin: Origin,
    pub partition: u32,
    pub at: Duration,
}

/// What was wrong with the arrivals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Verdict {
    pub missing: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
}

impl Verdict {
    /// Everything arrived, in order, and once. In transactional mode a message comes again if its transaction did not commit, and it
    /// is the effects that are there once.
    pub fn is_good(self, load: &Load) -> bool {
        let duplicates = if load.transactional { 0 } else { self.duplicates };
        Self { duplicates, ..self } == Self::default()
    }
}

pub struct Judge {
    load: Load,
    lanes: Mutex<Lanes>,
    /// When each transaction had committed, in nanoseconds, by its messages; empty where latency is not measured.
    committed: Vec<AtomicU64>,
    latencies: Mutex<Vec<Duration>>,
    duplicates: AtomicU64,
    out_of_order: AtomicU64,
    last: AtomicU64,
    pub tally: Tally,
}

/// What each producer sends to each partition.
struct Lanes {
    /// The number that the next message must have.
    next: Vec<u64>,
    /// Those that others overtook, and that have not arrived.
    overtaken: HashSet<(usize, u64)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Judge {
    pub fn of(load: &Load) -> Self {
        let partitions = u64::from(load.partitions);
        let first = |producer: u32, partition: u32| {
            (u64::from(partition) + partitions - u64::from(producer) % partitions) % partitions
        };
        let lanes = (0..load.producers).flat_map(|from| (0..load.partitions).map(move |to| first(from, to)));
        // Of messages that wait on purpose, nobody asks how long.
        let timed = if load.waiting { 0 } else { load.messages };
        Self {
            lanes: Mutex::new(Lanes { next: lanes.collect(), overtaken: HashSet::new() }),
            committed: (0..timed).map(|_| AtomicU64::new(0)).collect(),
            latencies: Mutex::new(Vec::with_capacity(usize::try_from(timed).unwrap_or_default())),
            load: load.clone(),
            duplicates: AtomicU64::new(0),
            out_of_order: AtomicU64::new(0),
            last: AtomicU64::new(0),
            tally: Tally::of(load.messages),
        }
    }

    fn commit_time(&self, origin: Origin) -> Option<&AtomicU64> {
        let index = origin.number * u64::from(self.load.producers) + u64::from(origin.producer);
        self.committed.get(usize::try_from(index).ok()?)
    }

    /// The transaction of these messages has committed just now.
    pub fn committed(&self, producer: u32, numbers: std::ops::Range<u64>) {
        let now = nanos(clock::now());
        for number in numbers {
            if let Some(time) = self.commit_time(Origin { producer, number }) {
                time.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Nobody reads these: with their commit they have arrived, and there is no latency to speak of.
    pub fn committed_is_arrived(&self, producer: u32, numbers: std::ops::Range<u64>) {
        let at = clock::now();
        for number in numbers {
            let partition = self.load.partition(producer, number);
            self.check(Arrival { origin: Origin { producer, number }, partition, at });
        }
    }

    /// A message has reached a handler.
    pub fn arrived(&self, arrival: Arrival) {
        let is_new = self.check(arrival);
        if let Some(committed) = self.commit_time(arrival.origin).filter(|_| is_new) {
            // A handler may be faster than the news of the commit, whose time is then unknown here: that is no time at all.
            let committed = committed.load(Ordering::Relaxed);
            let latency = if committed == 0 { 0 } else { nanos(arrival.at).saturating_sub(committed) };
            locked(&self.latencies).push(Duration::from_nanos(latency));
        }
    }

    /// Whether it is one that was sent and has not arrived before.
    fn check(&self, arrival: Arrival) -> bool {
        let Arrival { origin, partition, at } = arrival;
        let partitions = u64::from(self.load.partitions);
        let known = origin.producer < self.load.producers
            && origin.number < self.load.share_of(origin.producer)
            && partition == self.load.partition(origin.producer, origin.number);
        let lane = usize::try_from(u64::from(origin.producer) * partitions + u64::from(partition));
        let mut lanes = locked(&self.lanes);
        let Lanes { next, overtaken } = &mut *lanes;
        let next = lane.as_ref().ok().filter(|_| known).and_then(|lane| next.get_mut(*lane));
        let (Some(next), Ok(lane)) = (next, lane) else {
            // In a partition that it was not sent to.
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
            return false;
        };
        if origin.number < *next && !overtaken.remove(&(lane, origin.number)) {
            self.duplicates.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        if origin.number > *next {
            self.out_of_order.fetch_add(1, Ordering::Relaxed);
            let step = usize::try_from(partitions).unwrap_or(usize::MAX);
            overtaken.extend((*next..origin.number).step_by(step).map(|number| (lane, number)));
        }
        *next = (*next).max(origin.number + partitions);
        self.last.fetch_max(nanos(at), Ordering::Relaxed);
        self.tally.add();
        true
    }

    /// When the last message arrived.
    pub fn last_arrival(&self) -> Duration {
        Duration::from_nanos(self.last.load(Ordering::Relaxed))
    }

    pub fn verdict(&self) -> Verdict {
        Verdict {
            missing: self.load.messages.saturating_sub(self.tally.count()),
            duplicates: self.duplicates.load(Ordering::Relaxed),
            out_of_order: self.out_of_order.load(Ordering::Relaxed),
        }
    }

    /// From commit to handler, sorted.
    pub fn latencies(&self) -> Vec<Duration> {
        let mut latencies = locked(&self.latencies).clone();
        latencies.sort_unstable();
        latencies
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    fn load() -> Load {
        Load { producers: 2, partitions: 2, messages: 8, ..Workload::Batch.load() }
    }

    fn deliver(judge: &Judge, messages: &[(u32, u64)]) {
        for (producer, number) in messages.iter().copied() {
            let origin = Origin { producer, number };
            judge.arrived(Arrival {
                origin,
                partition: load().partition(producer, number),
                at: clock::now(),
            });
        }
    }

    const IN_ORDER: [(u32, u64); 8] = [(0, 0), (1, 0), (0, 1), (1, 1), (1, 2), (0, 2), (0, 3), (1, 3)];

    #[test]
    fn all_of_them_once_and_in_order_are_no_fault() {
        let judge = Judge::of(&load());
        deliver(&judge, &IN_ORDER);
        assert_eq!(judge.verdict(), Verdict::default());
        assert!(judge.verdict().is_good(&load()));
        // Where effects tell, a message may come again.
        let again = Verdict { duplicates: 1, ..Verdict::default() };
        assert!(!again.is_good(&load()) && again.is_good(&Load { transactional: true, ..load() }));
        let lost = Verdict { missing: 1, ..Verdict::default() };
        assert!(!lost.is_good(&Load { transactional: true, ..load() }));
    }

    #[test]
    fn one_that_did_not_come_is_missing() {
        let judge = Judge::of(&load());
        deliver(&judge, &IN_ORDER[..7]);
        assert_eq!(judge.verdict(), Verdict { missing: 1, ..Verdict::default() });
    }

    #[test]
    fn one_that_comes_twice_is_a_duplicate() {
        let judge = Judge::of(&load());
        deliver(&judge, &IN_ORDER);
        deliver(&judge, &[(0, 2)]);
        assert_eq!(judge.verdict(), Verdict { duplicates: 1, ..Verdict::default() });
    }

    #[test]
    fn one_that_overtakes_another_of_its_producer_and_partition_is_out_of_order() {
        let judge = Judge::of(&load());
        // Number 2 goes to the partition of number 0.
        deliver(&judge, &[(0, 2)]);
        assert_eq!(judge.verdict(), Verdict { missing: 7, out_of_order: 1, duplicates: 0 });
        // It is late, and not lost.
        deliver(&judge, &[(0, 0)]);
        assert_eq!(judge.verdict(), Verdict { missing: 6, out_of_order: 1, duplicates: 0 });
        deliver(&judge, &[(0, 0)]);
        assert_eq!(judge.verdict(), Verdict { missing: 6, out_of_order: 1, duplicates: 1 });
    }

    #[test]
    fn one_in_a_partition_that_it_was_not_sent_to_is_out_of_order() {
        let judge = Judge::of(&load());
        judge.arrived(Arrival { origin: Origin { producer: 0, number: 0 }, partition: 1, at: clock::now() });
        assert_eq!(judge.verdict(), Verdict { missing: 8, out_of_order: 1, duplicates: 0 });
    }

    #[test]
    fn nobody_asks_how_long_those_took_that_wait_on_purpose() {
        let judge = Judge::of(&Load { waiting: true, ..load() });
        deliver(&judge, &IN_ORDER);
        assert!(judge.latencies().is_empty());
    }
}
