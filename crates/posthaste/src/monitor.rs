//! The worker that looks whether others get on: it reports partitions that have work and do not move, with the cause, and a
//! sequencer that stands still. It tells the vacuum which partitions there are, and changes nothing itself.

use std::{
    collections::{HashMap, HashSet},
    mem::Discriminant,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use taskward::CancellationToken;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::{
    DatabaseHealth, Health, OutboxError, PartitionLag, SequencerHealth, Stall, StallCause, WorkerId,
    clock::Clock,
    error::storable,
    outage::Outage,
    processor::Shared,
    store::{Lagging, Store},
    telemetry::{self, Observed},
    timings::Timings,
    vacuum::Waste,
};

/// A look takes at most this part of the time, however many partitions there are.
const SHARE: u32 = 20;
/// How much of a handler's last error is logged, in bytes.
const LOGGED: usize = 256;
/// How often it looks at most, however many ask.
const LEAST_INTERVAL: Duration = Duration::from_millis(50);

/// Looks now and then, and when it is asked: one look at a time, whoever asks.
pub(crate) struct Monitor<S> {
    store: S,
    clock: Clock,
    outage: Outage,
    waste: Waste,
    busy: Busy,
    watch: Watch,
    asked: Arc<Notify>,
    seen: watch::Sender<Seen>,
}

/// What the last look came to, and when it began.
#[derive(Debug, Clone)]
struct Seen {
    began: Option<Instant>,
    health: Health,
}

/// Asks the monitor. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Probe {
    asked: Arc<Notify>,
    seen: watch::Receiver<Seen>,
    /// How long the database may take to answer.
    limit: Duration,
}

impl Probe {
    /// What is seen from now on; it is not waited for, for long. `is_sequencing` if this process has its sequencer.
    pub(crate) async fn health(mut self, is_sequencing: bool) -> Health {
        let began = Instant::now();
        self.asked.notify_one();
        let is_new = |seen: &Seen| seen.began.is_some_and(|look| look >= began);
        let seen = tokio::time::timeout(self.limit, self.seen.wait_for(is_new)).await;
        let mut health = match seen {
            Ok(Ok(seen)) => seen.health.clone(),
            Ok(Err(_)) => Health::unknown("the outbox has stopped".to_owned()),
            Err(_) => Health::unknown(no_answer(self.limit)),
        };
        health.sequencer.is_alive &= is_sequencing;
        health
    }
}

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?}")
}

impl<S: Store> Monitor<S> {
    pub(crate) fn new(shared: &Shared<S>, watch: Watch) -> Self {
        let nothing = Health::unknown("the database was not asked yet".to_owned());
        Self {
            store: shared.store.clone(),
            clock: shared.clock.clone(),
            outage: shared.outage.clone(),
            waste: shared.waste.clone(),
            busy: shared.busy.clone(),
            watch,
            asked: Arc::default(),
            seen: watch::Sender::new(Seen { began: None, health: nothing }),
        }
    }

    pub(crate) fn probe(&self) -> Probe {
        let limit = self.store.timings().health_limit;
        Probe { asked: Arc::clone(&self.asked), seen: self.seen.subscribe(), limit }
    }

    /// Looks soon, then again and again until cancelled.
    pub(crate) async fn run(mut self, cancel: CancellationToken) {
        let watching = async {
            let (mut complained, mut before) = (None, Duration::ZERO);
            // At the start others have more urgent things to do, unless somebody asks.
            tokio::time::timeout(self.store.timings().monitor_delay, self.asked.notified()).await.ok();
            loop {
                let began = Instant::now();
                if let Err(error) = self.look().await {
                    self.complain(&error, &mut complained);
                }
                // One that took long may have waited for others; two in a row take their time.
                let took = began.elapsed();
                let interval = self.store.timings().monitor_interval.max(took.min(before) * SHARE);
                before = took;
                tokio::select! {
                    () = tokio::time::sleep_until(began + interval) => {}
                    () = self.asked.notified() => tokio::time::sleep_until(began + LEAST_INTERVAL).await,
                }
            }
        };
        cancel.run_until_cancelled(watching).await;
    }

    fn complain(&self, error: &OutboxError, complained: &mut Option<Instant>) {
        if error.is_retryable() {
            self.outage.noticed("monitor", error);
        } else if complained.is_none_or(|at| at.elapsed() >= self.store.timings().stall_reminder) {
            tracing::warn!(%error, "cannot look whether the partitions make progress");
            *complained = Some(Instant::now());
        }
    }

    /// Looks, remembers, says what is worth saying, and shows it to whoever asks.
    async fn look(&mut self) -> Result<(), OutboxError> {
        let began = Instant::now();
        let (health, result) = match self.ask_in_time(began).await {
            Ok(lagging) => {
                self.waste.found(lagging.partitions.iter().map(|lag| lag.partition_id));
                let sight = self.watch.look(&lagging, &self.busy, Instant::now());
                sight.words.iter().for_each(Word::say);
                telemetry::observed(true, &sight.observed(&lagging));
                (sight.into_health(began.elapsed()), Ok(()))
            }
            Err(error) => {
                telemetry::observed(false, &[]);
                (Health::unknown(error.to_string()), Err(error))
            }
        };
        self.seen.send_replace(Seen { began: Some(began), health });
        result
    }

    /// Asks, and asks again on a new connection if the first was lost. While there is no answer for long, the database is out of reach;
    /// the answer is waited for all the same, so that there is never more than one question.
    async fn ask_in_time(&self, began: Instant) -> Result<Lagging, OutboxError> {
        let asking = async {
            match self.ask().await {
                // A connection that ended while it was idle says so only now: the next is new.
                Err(error) if error.is_retryable() => self.ask().await,
                asked => asked,
            }
        };
        let (mut asking, limit) = (std::pin::pin!(asking), self.store.timings().health_limit);
        if let Ok(asked) = tokio::time::timeout(limit, &mut asking).await {
            return asked;
        }
        telemetry::observed(false, &[]);
        self.seen.send_replace(Seen { began: Some(began), health: Health::unknown(no_answer(limit)) });
        asking.await
    }

    /// Asks the database how far the partitions are, and what time it is.
    async fn ask(&self) -> Result<Lagging, OutboxError> {
        let asked = std::time::Instant::now();
        let lagging = self.store.lag().await?;
        if let Some(now) = lagging.now_us {
            self.clock.compare(asked, now, std::time::Instant::now());
        }
        Ok(lagging)
    }
}

/// The partitions that handlers of this process are at work on. Cheap to clone, and one for all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Busy {
    partitions: Arc<Mutex<HashSet<i32>>>,
}

impl Busy {
    /// From now on, until the guard is gone.
    pub(crate) fn with(&self, partition_id: i32) -> BusyWith {
        self.lock().insert(partition_id);
        BusyWith { busy: self.clone(), partition_id }
    }

    fn has(&self, partition_id: i32) -> bool {
        self.lock().contains(&partition_id)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<i32>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct BusyWith {
    busy: Busy,
    partition_id: i32,
}

impl Drop for BusyWith {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.partition_id);
    }
}

/// What looks have in common: since when what should move has stood where it is.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Whose leases are those of this process.
    owner: WorkerId,
    /// The partitions that this process has processors for.
    here: HashSet<i32>,
    partitions: HashMap<i32, Standing<Discriminant<StallCause>>>,
    sequencer: Standing<()>,
    timings: Timings,
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    stalled: Vec<Stall>,
    paused: Vec<Arc<str>>,
    /// How long the first message without a seq has been that.
    waiting: Option<Duration>,
    /// That is too long.
    is_sequencer_stalled: bool,
    words: Vec<Word>,
}

impl Sight {
    fn into_health(self, took: Duration) -> Health {
        let is_alive = !self.is_sequencer_stalled;
        Health {
            database: DatabaseHealth::Reachable { took },
            sequencer: SequencerHealth { is_alive, waiting: self.waiting },
            stalled: self.stalled,
            paused: self.paused,
        }
    }

    /// The same for each queue as a whole.
    fn observed<'l>(&self, lagging: &'l Lagging) -> Vec<Observed<'l>> {
        // The partitions come in the order of their queues.
        let queues = lagging.partitions.chunk_by(|one, next| one.queue == next.queue);
        let observed = |of: &'l [PartitionLag]| {
            let queue = &of.first()?.queue;
            let stalled = self.stalled.iter().filter(|stall| stall.queue == *queue).count();
            Some(Observed {
                queue,
                depth: of.iter().map(|lag| lag.depth).sum(),
                oldest_age: of.iter().filter_map(|lag| lag.oldest).max().unwrap_or_default(),
                stalled_partitions: u64::try_from(stalled).unwrap_or(u64::MAX),
                is_paused: of.iter().any(|lag| lag.is_paused),
            })
        };
        queues.filter_map(observed).collect()
    }
}

/// What is worth saying.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    Stalled(Stall),
    Moves { queue: Arc<str>, partition: u32, stood: Duration },
    SequencerStands { since: Duration },
    SequencerMoves { stood: Duration },
}

impl Word {
    fn say(&self) {
        match self {
            Self::Stalled(Stall { queue, partition, depth, since, cause }) => {
                // What a handler says may be long, and is in `lag` and `health` in full.
                let cause = match cause {
                    StallCause::Retrying { attempts, last_error } => {
                        let (attempts, last_error) =
                            (*attempts, last_error.as_deref().map(|error| storable(error, LOGGED)));
                        StallCause::Retrying { attempts, last_error }
                    }
                    cause => cause.clone(),
                };
                tracing::warn!(%queue, partition, depth, ?since, %cause, "a partition has work and does not move");
            }
            Self::Moves { queue, partition, stood } => {
                tracing::info!(%queue, partition, ?stood, "a partition that stood still moves again");
            }
            Self::SequencerStands { since } => {
                tracing::warn!(?since, "committed messages wait for their order, and nobody sequences them");
            }
            Self::SequencerMoves { stood } => {
                tracing::info!(?stood, "messages get their order again");
            }
        }
    }
}

impl Watch {
    pub(crate) fn new(owner: WorkerId, here: impl IntoIterator<Item = i32>, timings: &Timings) -> Self {
        Self {
            owner,
            here: here.into_iter().collect(),
            partitions: HashMap::new(),
            sequencer: Standing::default(),
            timings: *timings,
        }
    }

    pub(crate) fn look(&mut self, lagging: &Lagging, busy: &Busy, now: Instant) -> Sight {
        let mut sight = Sight::default();
        if let Some(stood) = self.sequencer.is_at(lagging.unsequenced_id, now) {
            sight.words.push(Word::SequencerMoves { stood });
        }
        sight.waiting = self.sequencer.stands(now);
        let stalled = sight.waiting.filter(|since| *since >= self.timings.stalled_after);
        sight.is_sequencer_stalled = stalled.is_some();
        if let Some(since) = stalled
            && self.sequencer.is_worth_saying((), now, self.timings.stall_reminder)
        {
            sight.words.push(Word::SequencerStands { since });
        }
        for lag in &lagging.partitions {
            self.look_at(lag, busy, now, &mut sight);
        }
        sight
    }

    fn look_at(&mut self, lag: &PartitionLag, busy: &Busy, now: Instant, sight: &mut Sight) {
        let (queue, partition) = (&lag.queue, lag.partition);
        // They come in the order of their queues.
        if lag.is_paused && sight.paused.last() != Some(queue) {
            sight.paused.push(Arc::clone(queue));
        }
        let should_move = lag.depth > 0 && !lag.is_paused;
        let standing = self.partitions.entry(lag.partition_id).or_default();
        let stood = standing.is_at(should_move.then_some(lag.cursor_seq), now);
        if let Some(stood) = stood.filter(|_| !lag.is_paused) {
            sight.words.push(Word::Moves { queue: Arc::clone(queue), partition, stood });
        }
        let Some(since) = standing.stands(now).filter(|since| *since >= self.timings.stalled_after) else {
            return;
        };
        let is_busy = busy.has(lag.partition_id);
        let cause = cause(lag, self.owner, self.here.contains(&lag.partition_id), is_busy);
        let is_worth_saying =
            standing.is_worth_saying(std::mem::discriminant(&cause), now, self.timings.stall_reminder);
        let stall = Stall { queue: Arc::clone(queue), partition, depth: lag.depth, since, cause };
        if is_worth_saying {
            sight.words.push(Word::Stalled(stall.clone()));
        }
        sight.stalled.push(stall);
    }
}

/// Why a partition stands still. That it has failed before matters more than who is at it now; that a handler is at it here, more than
/// whether its lease is over.
fn cause(lag: &PartitionLag, owner: WorkerId, is_processed_here: bool, is_busy: bool) -> StallCause {
    let (attempts, last_error, left) =
        (lag.attempts, lag.last_error.clone(), lag.lease_left.unwrap_or_default());
    match lag.owner {
        Some(_) if attempts > 1 => StallCause::Retrying { attempts, last_error },
        Some(holder) => StallCause::Leased { owner: holder, is_here: holder == owner, left },
        None if !is_processed_here => StallCause::NoProcessorHere,
        None if is_busy && attempts <= 1 => StallCause::Leased { owner, is_here: true, left },
        None if attempts > 0 || last_error.is_some() => StallCause::Retrying { attempts, last_error },
        None => StallCause::NotTakenUp,
    }
}

/// Where something is that should move, and since when; and what has been said of it lately, by kind.
#[derive(Debug)]
struct Standing<K> {
    place: Option<(i64, Instant)>,
    /// Something was said since it is there.
    is_known: bool,
    said: Vec<(K, Instant)>,
}

impl<K> Default for Standing<K> {
    fn default() -> Self {
        Self { place: None, is_known: false, said: Vec::new() }
    }
}

impl<K: PartialEq> Standing<K> {
    /// It is there now, or nowhere from which it should move. How long it stood elsewhere, if that was spoken of.
    fn is_at(&mut self, place: Option<i64>, now: Instant) -> Option<Duration> {
        if self.place.map(|(place, _)| place) == place {
            return None;
        }
        let stood = self.stands(now).filter(|_| self.is_known);
        (self.place, self.is_known) = (place.map(|place| (place, now)), false);
        stood
    }

    /// How long it has stood, if it should move.
    fn stands(&self, now: Instant) -> Option<Duration> {
        self.place.map(|(_, since)| now.saturating_duration_since(since))
    }

    /// Whether this should be said, and was not for a while: not for each message that takes long, either.
    fn is_worth_saying(&mut self, kind: K, now: Instant, reminder: Duration) -> bool {
        self.said.retain(|(_, at)| now.saturating_duration_since(*at) < reminder);
        if self.said.iter().any(|(said, _)| *said == kind) {
            return false;
        }
        self.said.push((kind, now));
        self.is_known = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const HERE: i32 = 1;
    const ELSEWHERE: i32 = 2;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn us() -> WorkerId {
        WorkerId(Uuid::from_u128(1))
    }

    fn others() -> WorkerId {
        WorkerId(Uuid::from_u128(2))
    }

    /// A partition that nobody has, where so many are settled and so many have seqs.
    fn lag(partition_id: i32, cursor_seq: i64, head_seq: i64) -> PartitionLag {
        PartitionLag {
            queue: Arc::from(if partition_id == HERE { "here" } else { "there" }),
            partition: 0,
            partition_id,
            head_seq,
            cursor_seq,
            depth: (head_seq - cursor_seq).cast_unsigned(),
            oldest: None,
            owner: None,
            lease_left: None,
            attempts: 0,
            last_error: None,
            is_paused: false,
        }
    }

    fn leased(owner: WorkerId, attempts: u32, last_error: Option<&str>) -> PartitionLag {
        let last_error = last_error.map(str::to_owned);
        PartitionLag {
            owner: Some(owner),
            lease_left: Some(secs(9)),
            attempts,
            last_error,
            ..lag(HERE, 0, 1)
        }
    }

    /// A watch, and the time since it began.
    struct Stage {
        watch: Watch,
        busy: Busy,
        began: Instant,
    }

    impl Stage {
        fn new() -> Self {
            Self {
                watch: Watch::new(us(), [HERE], &Timings::default()),
                busy: Busy::default(),
                began: Instant::now(),
            }
        }

        fn sees(&mut self, after: u64, partitions: Vec<PartitionLag>, unsequenced_id: Option<i64>) -> Sight {
            let lagging = Lagging { now_us: Some(0), partitions, unsequenced_id };
            self.watch.look(&lagging, &self.busy, self.began + secs(after))
        }

        /// How long the partition has stood, if it is stalled.
        fn stalled(&mut self, after: u64, lag: PartitionLag) -> Option<u64> {
            let sight = self.sees(after, vec![lag], None);
            sight.stalled.first().map(|stall| stall.since.as_secs())
        }

        /// How much is said of it.
        fn words(&mut self, after: u64, lag: PartitionLag) -> usize {
            self.sees(after, vec![lag], None).words.len()
        }
    }

    #[test]
    fn a_partition_is_stalled_if_it_has_work_and_does_not_move_for_5_s() {
        let mut stage = Stage::new();
        assert_eq!(stage.stalled(0, lag(HERE, 3, 7)), None);
        assert_eq!(stage.stalled(4, lag(HERE, 3, 9)), None, "more to do is no progress");
        assert_eq!(stage.stalled(5, lag(HERE, 3, 9)), Some(5));
        assert_eq!(stage.stalled(8, lag(HERE, 3, 9)), Some(8));
        assert_eq!(stage.stalled(9, lag(HERE, 4, 9)), None, "it moved");
        assert_eq!(stage.stalled(13, lag(HERE, 4, 9)), None);
        assert_eq!(stage.stalled(14, lag(HERE, 4, 9)), Some(5), "and stands again");
    }

    #[test]
    fn a_partition_without_work_does_not_stall_however_long_it_stands() {
        let mut stage = Stage::new();
        assert_eq!(stage.stalled(0, lag(HERE, 7, 7)), None);
        assert_eq!(stage.stalled(60, lag(HERE, 7, 7)), None);
        assert_eq!(stage.stalled(61, lag(HERE, 7, 8)), None, "it has work only now");
        assert_eq!(stage.stalled(66, lag(HERE, 7, 8)), Some(5));
    }

    #[test]
    fn a_paused_partition_is_named_as_paused_and_not_stalled() {
        let paused = || PartitionLag { is_paused: true, ..lag(HERE, 3, 7) };
        let mut stage = Stage::new();
        stage.stalled(0, lag(HERE, 3, 7));
        assert_eq!(stage.stalled(6, lag(HERE, 3, 7)), Some(6));
        let sight = stage.sees(7, vec![paused(), paused(), lag(ELSEWHERE, 0, 0)], None);
        assert_eq!(sight.paused, [Arc::from("here")]);
        assert!(sight.stalled.is_empty() && sight.words.is_empty(), "{sight:?}");
        assert_eq!(stage.stalled(9, lag(HERE, 3, 7)), None, "it was resumed just now");
        assert_eq!(stage.stalled(14, lag(HERE, 3, 7)), Some(5));
    }

    #[test]
    fn each_cause_is_told_from_the_others() {
        let busy = |lag: &PartitionLag, is_busy| cause(lag, us(), lag.partition_id == HERE, is_busy);
        let cause = |lag: &PartitionLag| busy(lag, false);
        let is_leased = |owner, is_here| StallCause::Leased { owner, is_here, left: secs(9) };
        assert_eq!(cause(&leased(us(), 1, None)), is_leased(us(), true));
        assert_eq!(cause(&leased(others(), 1, None)), is_leased(others(), false));
        let retrying = |attempts, error: Option<&str>| StallCause::Retrying {
            attempts,
            last_error: error.map(str::to_owned),
        };
        assert_eq!(cause(&leased(us(), 2, Some("no"))), retrying(2, Some("no")));
        assert_eq!(cause(&leased(others(), 2, None)), retrying(2, None), "who had it before died");
        let free = |lag: PartitionLag| PartitionLag { owner: None, ..lag };
        assert_eq!(cause(&free(leased(us(), 1, Some("no")))), retrying(1, Some("no")));
        assert_eq!(cause(&free(leased(us(), 1, None))), retrying(1, None), "its worker died");
        assert_eq!(cause(&lag(HERE, 0, 1)), StallCause::NotTakenUp);
        assert_eq!(cause(&lag(ELSEWHERE, 0, 1)), StallCause::NoProcessorHere);
        let died_elsewhere = PartitionLag { attempts: 1, ..lag(ELSEWHERE, 0, 1) };
        assert_eq!(cause(&died_elsewhere), StallCause::NoProcessorHere);
        let failed_elsewhere = PartitionLag { last_error: Some("no".to_owned()), ..died_elsewhere };
        assert_eq!(cause(&failed_elsewhere), StallCause::NoProcessorHere);
        let beyond_its_lease = PartitionLag { lease_left: None, ..free(leased(us(), 1, None)) };
        let at_work = StallCause::Leased { owner: us(), is_here: true, left: Duration::ZERO };
        assert_eq!(busy(&beyond_its_lease, true), at_work);
    }

    #[test]
    fn what_is_seen_of_partitions_is_summed_up_for_their_queues() {
        let mut stage = Stage::new();
        let partitions = || {
            let old = PartitionLag { oldest: Some(secs(7)), ..lag(HERE, 0, 3) };
            let young = PartitionLag { oldest: Some(secs(2)), partition_id: 3, ..lag(HERE, 1, 2) };
            let paused = PartitionLag { is_paused: true, ..lag(ELSEWHERE, 0, 5) };
            vec![old, young, paused]
        };
        stage.sees(0, partitions(), None);
        let sight = stage.sees(6, partitions(), None);
        let lagging = Lagging { now_us: None, partitions: partitions(), unsequenced_id: None };
        let observed: Vec<_> = sight
            .observed(&lagging)
            .iter()
            .map(|of| (of.queue.to_owned(), of.depth, of.oldest_age, of.stalled_partitions, of.is_paused))
            .collect();
        let expected =
            [("here".to_owned(), 4, secs(7), 2, false), ("there".to_owned(), 5, Duration::ZERO, 0, true)];
        assert_eq!(observed, expected);
    }

    #[test]
    fn a_standstill_is_said_once_a_minute_and_its_end_once() {
        let mut stage = Stage::new();
        assert_eq!(stage.words(0, lag(HERE, 0, 9)), 0);
        assert_eq!(stage.words(5, lag(HERE, 0, 9)), 1);
        assert_eq!(stage.words(64, lag(HERE, 0, 9)), 0);
        assert_eq!(stage.words(65, lag(HERE, 0, 9)), 1, "a reminder");
        assert_eq!(stage.words(70, leased(us(), 1, None)), 1, "another cause");
        assert_eq!(stage.words(73, lag(HERE, 0, 9)), 0, "both are known");
        let moves = stage.sees(76, vec![lag(HERE, 1, 9)], None).words;
        assert_eq!(moves, [Word::Moves { queue: Arc::from("here"), partition: 0, stood: secs(76) }]);
        assert_eq!(stage.words(82, lag(HERE, 1, 9)), 0, "as it was a moment ago: each message takes long");
        assert_eq!(stage.words(85, lag(HERE, 2, 9)), 0, "nobody was told that it stood");
        assert_eq!(stage.words(126, lag(HERE, 2, 9)), 1);
        assert_eq!(stage.words(127, lag(HERE, 9, 9)), 1, "it is done");
    }

    #[test]
    fn a_sequencer_stands_if_the_same_message_is_the_first_in_line_for_5_s() {
        let mut stage = Stage::new();
        let mut waiting = |after, first| {
            let sight = stage.sees(after, Vec::new(), first);
            (sight.waiting.map(|waiting| waiting.as_secs()), sight.words)
        };
        assert_eq!(waiting(0, None), (None, vec![]));
        assert_eq!(waiting(3, Some(7)), (Some(0), vec![]));
        assert_eq!(waiting(6, Some(9)), (Some(0), vec![]), "others wait now");
        assert_eq!(waiting(9, Some(9)), (Some(3), vec![]));
        assert_eq!(waiting(11, Some(9)), (Some(5), vec![Word::SequencerStands { since: secs(5) }]));
        assert_eq!(waiting(14, Some(9)), (Some(8), vec![]));
        assert_eq!(waiting(15, Some(10)), (Some(0), vec![Word::SequencerMoves { stood: secs(9) }]));
        assert_eq!(waiting(16, None), (None, vec![]));
    }
}
