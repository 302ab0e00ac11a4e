//! The worker that looks whether others get on: it reports partitions that have work and do not move, with the cause, and a
//! sequencer that stands still. It changes nothing.

use std::{
    collections::{HashMap, HashSet},
    mem::Discriminant,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use taskward::CancellationToken;
use tokio::time::Instant;

use crate::{
    DatabaseHealth, Health, OutboxError, PartitionLag, SequencerHealth, Stall, StallCause, WorkerId,
    clock::Clock,
    error::storable,
    limits::{LOOK_INTERVAL, STALLED_AFTER},
    outage::Outage,
    processor::Shared,
    store::{Lagging, Store},
    telemetry::{self, Observed},
};

/// A look takes at most this part of the time, however many partitions there are.
const SHARE: u32 = 20;
/// How often to say again that something still stands still.
const REMINDER: Duration = Duration::from_secs(60);
/// How much of a handler's last error is logged, in bytes.
const LOGGED: usize = 256;
/// How long whoever asks for the health waits for the database.
const HEALTH_LIMIT: Duration = Duration::from_secs(3);

/// Looks by itself now and then, and whenever it is asked. Cheap to clone, and one memory for all clones.
#[derive(Clone)]
pub(crate) struct Monitor<S> {
    store: S,
    clock: Clock,
    outage: Outage,
    watch: Arc<Mutex<Watch>>,
}

impl<S: Store> Monitor<S> {
    pub(crate) fn new(shared: &Shared<S>, watch: Watch) -> Self {
        Self {
            store: shared.store.clone(),
            clock: shared.clock.clone(),
            outage: shared.outage.clone(),
            watch: Arc::new(Mutex::new(watch)),
        }
    }

    /// Looks at once, then again and again until cancelled.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        let watching = async {
            let mut complained = None;
            loop {
                let began = Instant::now();
                let interval = match self.look().await {
                    Ok(_) => LOOK_INTERVAL.max(began.elapsed() * SHARE),
                    Err(error) => {
                        self.complain(&error, &mut complained);
                        LOOK_INTERVAL
                    }
                };
                tokio::time::sleep_until(began + interval).await;
            }
        };
        cancel.run_until_cancelled(watching).await;
    }

    fn complain(&self, error: &OutboxError, complained: &mut Option<Instant>) {
        if error.is_retryable() {
            self.outage.noticed("monitor", error);
        } else if complained.is_none_or(|at| at.elapsed() >= REMINDER) {
            tracing::warn!(%error, "cannot look whether the partitions make progress");
            *complained = Some(Instant::now());
        }
    }

    /// Looks now, and does not wait for long. `is_sequencing` if this process has its sequencer.
    pub(crate) async fn health(self, is_sequencing: bool) -> Health {
        let began = Instant::now();
        let looked = tokio::time::timeout(HEALTH_LIMIT, self.look()).await;
        let error = match looked {
            Ok(Ok(Sight { stalled, paused, waiting, .. })) => {
                let is_alive = is_sequencing && waiting.is_none_or(|waiting| waiting < STALLED_AFTER);
                return Health {
                    database: DatabaseHealth::Reachable { took: began.elapsed() },
                    sequencer: SequencerHealth { is_alive, waiting },
                    stalled,
                    paused,
                };
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {HEALTH_LIMIT:?}"),
        };
        Health::unknown(error, is_sequencing)
    }

    /// Looks, remembers, and says what is worth saying.
    async fn look(&self) -> Result<Sight, OutboxError> {
        let mut lagging = self.ask().await;
        // A connection that ended while it was idle says so only now: the next is new.
        if lagging.as_ref().is_err_and(OutboxError::is_retryable) {
            lagging = self.ask().await;
        }
        if lagging.as_ref().is_err_and(OutboxError::is_retryable) {
            telemetry::observed(false, &[]);
        }
        let lagging = lagging?;
        let sight = self.watch.lock().unwrap_or_else(PoisonError::into_inner).look(&lagging, Instant::now());
        sight.words.iter().for_each(Word::say);
        telemetry::observed(true, &sight.observed(&lagging));
        Ok(sight)
    }

    /// Asks the database how far the partitions are, and what time it is.
    async fn ask(&self) -> Result<Lagging, OutboxError> {
        let asked = SystemTime::now();
        let lagging = self.store.lag().await?;
        if let Some(now) = lagging.now_us {
            self.clock.compare(asked, now, SystemTime::now());
        }
        Ok(lagging)
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
}

/// What a look found.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    stalled: Vec<Stall>,
    paused: Vec<Arc<str>>,
    /// How long the first message without a seq has been that.
    waiting: Option<Duration>,
    words: Vec<Word>,
}

impl Sight {
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
    pub(crate) fn new(owner: WorkerId, here: impl IntoIterator<Item = i32>) -> Self {
        Self {
            owner,
            here: here.into_iter().collect(),
            partitions: HashMap::new(),
            sequencer: Standing::default(),
        }
    }

    pub(crate) fn look(&mut self, lagging: &Lagging, now: Instant) -> Sight {
        let mut sight = Sight::default();
        if let Some(stood) = self.sequencer.is_at(lagging.unsequenced_id, now) {
            sight.words.push(Word::SequencerMoves { stood });
        }
        sight.waiting = self.sequencer.stands(now);
        if let Some(since) = sight.waiting.filter(|since| *since >= STALLED_AFTER)
            && self.sequencer.is_worth_saying((), now)
        {
            sight.words.push(Word::SequencerStands { since });
        }
        for lag in &lagging.partitions {
            self.look_at(lag, now, &mut sight);
        }
        sight
    }

    fn look_at(&mut self, lag: &PartitionLag, now: Instant, sight: &mut Sight) {
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
        let Some(since) = standing.stands(now).filter(|since| *since >= STALLED_AFTER) else { return };
        let cause = cause(lag, self.owner, self.here.contains(&lag.partition_id));
        let is_worth_saying = standing.is_worth_saying(std::mem::discriminant(&cause), now);
        let stall = Stall { queue: Arc::clone(queue), partition, depth: lag.depth, since, cause };
        if is_worth_saying {
            sight.words.push(Word::Stalled(stall.clone()));
        }
        sight.stalled.push(stall);
    }
}

/// Why a partition stands still. Who has failed more than once, or said why, matters more than who is at it now.
fn cause(lag: &PartitionLag, owner: WorkerId, is_processed_here: bool) -> StallCause {
    let (attempts, last_error) = (lag.attempts, lag.last_error.clone());
    match lag.owner {
        Some(_) if attempts > 1 && last_error.is_some() => StallCause::Retrying { attempts, last_error },
        Some(holder) => StallCause::Leased {
            owner: holder,
            is_here: holder == owner,
            left: lag.lease_left.unwrap_or_default(),
        },
        // A worker that died left no word; whether anybody tries again is another question, unless it is this process.
        None if last_error.is_some() || attempts > 0 && is_processed_here => {
            StallCause::Retrying { attempts, last_error }
        }
        None if !is_processed_here => StallCause::NoProcessorHere,
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
    fn is_worth_saying(&mut self, kind: K, now: Instant) -> bool {
        self.said.retain(|(_, at)| now.saturating_duration_since(*at) < REMINDER);
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
        began: Instant,
    }

    impl Stage {
        fn new() -> Self {
            Self { watch: Watch::new(us(), [HERE]), began: Instant::now() }
        }

        fn sees(&mut self, after: u64, partitions: Vec<PartitionLag>, unsequenced_id: Option<i64>) -> Sight {
            let lagging = Lagging { now_us: Some(0), partitions, unsequenced_id };
            self.watch.look(&lagging, self.began + secs(after))
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
        let cause = |lag: &PartitionLag| cause(lag, us(), lag.partition_id == HERE);
        let is_leased = |owner, is_here| StallCause::Leased { owner, is_here, left: secs(9) };
        assert_eq!(cause(&leased(us(), 1, None)), is_leased(us(), true));
        assert_eq!(cause(&leased(others(), 1, None)), is_leased(others(), false));
        assert_eq!(cause(&leased(others(), 2, None)), is_leased(others(), false), "it took over");
        let retrying = |attempts, error: Option<&str>| StallCause::Retrying {
            attempts,
            last_error: error.map(str::to_owned),
        };
        assert_eq!(cause(&leased(us(), 2, Some("no"))), retrying(2, Some("no")));
        let free = |lag: PartitionLag| PartitionLag { owner: None, ..lag };
        assert_eq!(cause(&free(leased(us(), 1, Some("no")))), retrying(1, Some("no")));
        assert_eq!(cause(&free(leased(us(), 1, None))), retrying(1, None), "its worker died");
        assert_eq!(cause(&lag(HERE, 0, 1)), StallCause::NotTakenUp);
        assert_eq!(cause(&lag(ELSEWHERE, 0, 1)), StallCause::NoProcessorHere);
        let died_elsewhere = PartitionLag { attempts: 1, ..lag(ELSEWHERE, 0, 1) };
        assert_eq!(cause(&died_elsewhere), StallCause::NoProcessorHere);
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
