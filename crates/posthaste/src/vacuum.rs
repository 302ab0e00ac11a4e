//! The worker that removes what every reader has passed, soon after there is enough of it.
//!
//! It remembers how far it got, so that it never reads what is gone again: where an old snapshot keeps dead versions alive,
//! each look at the old end of a table would cost more than the one before.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use taskward::{CancellationToken, Directive, WorkerAction};
use tokio::{sync::Notify, time::Instant};
use tracing::Instrument;

use crate::{
    OutboxError, WorkerTuning,
    limits::SEGMENT,
    outage::Outage,
    store::{Remains, Store, Surveyed, Trim, Trimmed},
    telemetry::{self, VacuumMetrics},
};

/// This part of a chunk is enough to begin a pass at once.
const ENOUGH: u32 = 10;

/// What the workers of this process have left behind for vacuum.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waste {
    heap: Arc<Mutex<Heap>>,
    bell: Arc<Notify>,
    enough: u64,
    /// How long a little of it may stay.
    linger: Duration,
    /// Every partition of the outbox, those without a handler in this process included.
    all_partitions: Arc<Mutex<HashSet<i32>>>,
}

#[derive(Debug, Default)]
struct Heap {
    partitions: HashSet<i32>,
    rows: u64,
    since: Option<Instant>,
}

impl Waste {
    pub(crate) fn new(tuning: &WorkerTuning, linger: Duration) -> Self {
        Self { enough: u64::from(tuning.batch_size / ENOUGH), linger, ..Self::default() }
    }

    pub(crate) fn bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bell)
    }

    /// The monitor saw these partitions: they are vacuumed although no process may have a handler for them.
    pub(crate) fn found(&self, partitions: impl IntoIterator<Item = i32>) {
        self.all_partitions.lock().unwrap_or_else(PoisonError::into_inner).extend(partitions);
    }

    /// A cursor moved over so many messages.
    pub(crate) fn settled(&self, partition_id: i32, messages: u64) {
        // The link at least.
        self.add(Some(partition_id), messages.max(1));
    }

    /// A pass over these partitions did not end. It wakes nothing: the vacuum knows when to try again, and a pass that
    /// fails because the database is down would wake itself at once.
    fn put_back(&self, partitions: &[i32]) {
        let mut heap = self.lock();
        heap.partitions.extend(partitions);
        heap.rows += u64::try_from(partitions.len()).unwrap_or(u64::MAX);
        heap.since.get_or_insert_with(Instant::now);
    }

    /// A tick was appended.
    pub(crate) fn ticked(&self) {
        self.add(None, 1);
    }

    fn add(&self, partition_id: Option<i32>, rows: u64) {
        let mut heap = self.lock();
        heap.partitions.extend(partition_id);
        let before = heap.rows;
        heap.rows += rows;
        if heap.since.is_none() {
            heap.since = Some(Instant::now());
        }
        let is_news = before == 0 || (before < self.enough && heap.rows >= self.enough);
        drop(heap);
        if is_news {
            self.bell.notify_one();
        }
    }

    /// How long until it is worth a pass; none if there is nothing.
    fn due(&self) -> Option<Duration> {
        let heap = self.lock();
        let since = heap.since?;
        let is_enough = heap.rows >= self.enough;
        Some(if is_enough { Duration::ZERO } else { self.linger.saturating_sub(since.elapsed()) })
    }

    fn take(&self) -> HashSet<i32> {
        std::mem::take(&mut *self.lock()).partitions
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Heap> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Vacuum<S> {
    store: S,
    waste: Waste,
    tuning: WorkerTuning,
    outage: Outage,
    /// Of all known partitions: those that this process has processors for, and those that the monitor found.
    trimmed: HashMap<i32, Trimmed>,
    first_tick: i64,
    /// Which start of the server all that was seen on. Another one, a standby perhaps, may have lost what was removed.
    server: Option<i64>,
    last_pass: Option<Instant>,
    /// When what other processes may have left behind was last looked for.
    last_look: Option<Instant>,
    metrics: VacuumMetrics,
}

/// How a pass ended.
enum Ended {
    /// Nothing is left that could be removed.
    Done,
    /// Its time was up.
    Early,
    /// Another process is at it, or somebody builds on what is old.
    Busy,
}

impl<S: Store> Vacuum<S> {
    pub(crate) fn new(
        store: S,
        waste: Waste,
        tuning: WorkerTuning,
        outage: Outage,
        partition_ids: Vec<i32>,
    ) -> Self {
        let trimmed = partition_ids.into_iter().map(|id| (id, Trimmed::nothing(id))).collect();
        Self {
            store,
            waste,
            tuning,
            outage,
            trimmed,
            first_tick: 0,
            server: None,
            last_pass: None,
            last_look: None,
            metrics: VacuumMetrics::default(),
        }
    }

    /// How long until there is enough to remove, or it is time to look after everything, whoever left it behind.
    fn wait(&self) -> Duration {
        let rested = self.last_pass.map_or(Duration::ZERO, |last| remaining(self.tuning.min_interval, last));
        let due = self.waste.due().map_or(Duration::MAX, |due| due.max(rested));
        due.min(self.next_look())
    }

    fn next_look(&self) -> Duration {
        let interval = self.tuning.idle_interval.min(self.store.timings().beat);
        self.last_look.map_or(Duration::ZERO, |last| remaining(interval, last))
    }

    /// One pass over the partitions whose cursors moved, or over all of them; if it is time for one.
    async fn pass(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        let began = Instant::now();
        let wait = self.wait();
        if !wait.is_zero() {
            return Ok(Directive::Sleep(wait, 0));
        }
        let looks_at_all = self.next_look().is_zero();
        if looks_at_all {
            let found = self.waste.all_partitions.lock().unwrap_or_else(PoisonError::into_inner);
            for id in found.iter() {
                self.trimmed.entry(*id).or_insert_with(|| Trimmed::nothing(*id));
            }
        }
        self.last_pass = Some(began);
        let moved = self.waste.take();
        let partitions: Vec<_> =
            if looks_at_all { self.trimmed.keys().copied().collect() } else { moved.into_iter().collect() };
        let (mut removed, span) = (0, telemetry::vacuum());
        let slice_ends = began + self.store.timings().vacuum_slice;
        let removing = self.remove(&partitions, &mut removed, slice_ends, cancel);
        let ended = removing.instrument(span.clone()).await;
        telemetry::vacuumed(&span, removed);
        self.metrics.removed(removed);
        match &ended {
            Ok(Ended::Done) if looks_at_all => self.last_look = Some(began),
            Ok(Ended::Done) => {}
            // What was removed is remembered, so these are only looked at again.
            _ => self.waste.put_back(&partitions),
        }
        Ok(match ended? {
            Ended::Done => Directive::Sleep(self.wait(), removed),
            Ended::Early => Directive::Proceed(removed),
            Ended::Busy => Directive::Sleep(self.tuning.active_interval, removed),
        })
    }

    /// Removes all that can be removed, now; returns how many messages that were.
    pub(crate) async fn sweep(mut self) -> Result<u64, OutboxError> {
        let partitions: Vec<_> = self.trimmed.keys().copied().collect();
        let (cancel, began, mut removed) = (CancellationToken::new(), Instant::now(), 0);
        let patience = self.store.timings().sweep_patience;
        loop {
            match self.remove(&partitions, &mut removed, began + patience, &cancel).await? {
                Ended::Done => {
                    self.metrics.removed(removed);
                    return Ok(removed);
                }
                Ended::Early => {}
                Ended::Busy if began.elapsed() < patience => {
                    tokio::time::sleep(self.tuning.active_interval / 10).await;
                }
                Ended::Busy => {
                    return Err(OutboxError::Unsuitable(format!(
                        "another session has been removing what is settled, or has had some of it locked, for {patience:?}: try \
                         again later"
                    )));
                }
            }
        }
    }

    /// Removes chunk after chunk.
    async fn remove(
        &mut self,
        partitions: &[i32],
        removed: &mut u64,
        until: Instant,
        cancel: &CancellationToken,
    ) -> Result<Ended, OutboxError> {
        let mut remains = self.survey(partitions).await?;
        loop {
            let trims = plan(&remains, self.tuning.batch_size);
            kill_point!(VacuumBefore);
            let chunk = self.store.vacuum(&trims, self.first_tick, self.tuning.batch_size).await?;
            kill_point!(VacuumAfter);
            let Some(chunk) = chunk else { return Ok(Ended::Busy) };
            *removed += chunk.messages;
            if self.is_elsewhere(chunk.server) {
                return Ok(Ended::Early);
            }
            self.first_tick = chunk.next_tick;
            for trim in &trims {
                self.remember(&mut remains, trim);
            }
            if remains.is_empty() && chunk.ticks < u64::from(self.tuning.batch_size) {
                return Ok(Ended::Done);
            }
            if cancel.is_cancelled() || Instant::now() >= until {
                return Ok(Ended::Early);
            }
        }
    }

    async fn survey(&mut self, partitions: &[i32]) -> Result<Vec<Remains>, OutboxError> {
        if partitions.is_empty() {
            return Ok(Vec::new());
        }
        let known = |this: &Self| -> Vec<_> {
            partitions.iter().filter_map(|id| this.trimmed.get(id)).copied().collect()
        };
        let Surveyed { mut remains, server } = self.store.survey(&known(self)).await?;
        if server.is_some_and(|server| self.is_elsewhere(server)) {
            remains = self.store.survey(&known(self)).await?.remains;
        }
        remains.retain(|left| !left.is_done());
        Ok(remains)
    }

    /// Whether this is not the server that what is remembered is true of; then it is forgotten.
    fn is_elsewhere(&mut self, server: i64) -> bool {
        let is_elsewhere = self.server.is_some_and(|known| known != server);
        if is_elsewhere {
            self.first_tick = 0;
            self.trimmed.iter_mut().for_each(|(id, trimmed)| *trimmed = Trimmed::nothing(*id));
        }
        self.server = Some(server);
        is_elsewhere
    }

    /// What was trimmed need not be looked at again.
    fn remember(&mut self, remains: &mut Vec<Remains>, trim: &Trim) {
        let Some(place) = remains.iter().position(|remains| remains.partition_id == trim.partition_id) else {
            return;
        };
        let left = &mut remains[place];
        left.trimmed(trim);
        let Some(trimmed) = self.trimmed.get_mut(&trim.partition_id) else { return };
        trimmed.first_epoch = trim.end_epoch;
        // The newest segment stays.
        trimmed.after_seq = trimmed.after_seq.max(trim.to_seq.min(left.head_seq - 1));
        if left.is_done() {
            trimmed.seen_epoch = left.newest_epoch;
            remains.swap_remove(place);
        }
    }
}

impl<S: Store> WorkerAction for Vacuum<S> {
    type Payload = u64;
    type Error = OutboxError;

    async fn execute(&mut self, cancel: &CancellationToken) -> Result<Directive<u64>, OutboxError> {
        match self.pass(cancel).await {
            Err(error) if error.is_retryable() => {
                self.outage.noticed("vacuum", &error);
                Ok(Directive::Sleep(self.store.timings().unreachable, 0))
            }
            result => result,
        }
    }
}

fn remaining(interval: Duration, since: Instant) -> Duration {
    interval.saturating_sub(since.elapsed())
}

/// The next chunk: at most so many messages and so many links in all, of each partition the oldest; but of the first one a
/// whole segment at least. Each partition has its share: messages that came together lie together, so a page of the table is
/// emptied by one chunk, instead of being written again for each partition.
pub(crate) fn plan(remains: &[Remains], most: u32) -> Vec<Trim> {
    let (mut messages, mut links) = (i64::from(most), i64::from(most));
    let share = messages / i64::try_from(remains.len().max(1)).unwrap_or(i64::MAX);
    let mut trims = Vec::new();
    for left in remains {
        if messages <= 0 || links <= 0 {
            break;
        }
        let end_epoch = left.newest_epoch.min(left.first_epoch + links.min(share.max(1)));
        // A segment is removed whole, and only once all of it is settled.
        let to_seq = left.settled_seq.min(left.first_seq - 1 + messages.min(share).max(SEGMENT));
        links -= end_epoch - left.first_epoch;
        messages -= (to_seq - left.first_seq + 1).max(0);
        trims.push(Trim {
            partition_id: left.partition_id,
            first_epoch: left.first_epoch,
            end_epoch,
            after_seq: left.first_seq - 1,
            to_seq,
        });
    }
    trims
}

impl Remains {
    fn trimmed(&mut self, trim: &Trim) {
        self.first_epoch = trim.end_epoch;
        self.first_seq = self.first_seq.max(trim.to_seq + 1);
    }

    /// Nothing is left that could be removed.
    pub(crate) const fn is_done(&self) -> bool {
        self.first_epoch >= self.newest_epoch && self.first_seq > self.settled_seq
    }
}

impl Trimmed {
    const fn nothing(partition_id: i32) -> Self {
        Self { partition_id, seen_epoch: -1, first_epoch: 0, after_seq: 0 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn remains() -> impl Strategy<Value = Remains> {
        (0..5_i64, 0..3000_i64, 1..3000_i64, 0..3000_i64, 0..500_i64).prop_map(
            |(first_epoch, links, first_seq, settled, behind)| {
                let settled_seq = first_seq - 1 + settled;
                Remains {
                    partition_id: 0,
                    first_epoch,
                    newest_epoch: first_epoch + links,
                    first_seq,
                    settled_seq,
                    head_seq: settled_seq + behind,
                }
            },
        )
    }

    proptest! {
        /// Chunk by chunk, all that is settled goes, oldest first, and nothing else does.
        #[test]
        fn chunks_are_bounded_and_cover_what_is_settled(mut all in prop::collection::vec(remains(), 1..6), most in 1..2000_u32) {
            for (place, left) in all.iter_mut().enumerate() {
                left.partition_id = i32::try_from(place).unwrap();
            }
            let whole = all.clone();
            let mut gone: Vec<_> = whole.iter().map(|left| (left.first_epoch, left.first_seq - 1)).collect();
            for round in 0.. {
                prop_assert!(round < 100_000, "it comes to an end");
                all.retain(|left| !left.is_done());
                if all.is_empty() {
                    break;
                }
                let trims = plan(&all, most);
                prop_assert!(!trims.is_empty(), "there is always progress");
                let links: i64 = trims.iter().map(|trim| trim.end_epoch - trim.first_epoch).sum();
                let messages: i64 = trims.iter().map(|trim| (trim.to_seq - trim.after_seq).max(0)).sum();
                prop_assert!(links <= i64::from(most) && messages <= i64::from(most) + 1 + SEGMENT);
                for trim in &trims {
                    let place = usize::try_from(trim.partition_id).unwrap();
                    let left = &whole[place];
                    prop_assert!(trim.end_epoch <= left.newest_epoch && trim.to_seq <= left.settled_seq);
                    prop_assert_eq!(trim.first_epoch, gone[place].0, "without a hole");
                    prop_assert!(trim.after_seq <= gone[place].1.max(left.first_seq - 1), "without a hole");
                    gone[place] = (trim.end_epoch, gone[place].1.max(trim.to_seq));
                    all.iter_mut().filter(|other| other.partition_id == trim.partition_id).for_each(|left| left.trimmed(trim));
                }
            }
            for (left, (epoch, seq)) in whole.iter().zip(gone) {
                prop_assert_eq!((epoch, seq), (left.newest_epoch, left.settled_seq.max(left.first_seq - 1)));
            }
        }
    }
}
