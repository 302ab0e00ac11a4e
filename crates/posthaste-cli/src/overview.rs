//! How the queues and their partitions are, as the commands show it.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use posthaste::{Backend, DeadLetterFilter, DeadLetterStatus, Outbox, PartitionLag};
use serde::Serialize;
use sqlx::Pool;

use crate::failure::Failure;

/// How old the first message of a partition must be before it is worth asking why it is still there.
const SUSPICIOUS: Duration = Duration::from_secs(5);
/// How long a cursor must have stood where it is before it stands still.
pub const STANDSTILL: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Serialize)]
pub struct Queue {
    pub queue: String,
    pub is_paused: bool,
    /// Messages that have their order and are not settled.
    pub depth: u64,
    pub oldest_ms: Option<u64>,
    /// Those that wait for somebody to decide.
    pub dead_letters: u64,
    pub partitions: Vec<Partition>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Partition {
    pub partition: u32,
    pub head_seq: i64,
    pub cursor_seq: i64,
    pub depth: u64,
    pub oldest_ms: Option<u64>,
    pub owner: Option<String>,
    pub lease_left_ms: Option<u64>,
    pub attempts: u32,
    pub last_error: Option<String>,
    pub state: State,
    /// Why it stands still, if it does.
    pub reason: Option<String>,
}

/// What a partition is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing waits.
    Idle,
    /// Something waits, not for long or not in vain.
    Waiting,
    /// Somebody is at it.
    Working,
    Paused,
    /// Something has waited for long, and nothing moves.
    Stalled,
}

/// Remembers where the cursors were, to tell whether they move.
#[derive(Debug, Default)]
pub struct Observer {
    cursors: HashMap<i32, (i64, Instant)>,
}

impl Observer {
    /// The queues as they are now, in the order of their names.
    pub async fn look<DB: Backend>(
        &mut self,
        outbox: &Outbox<DB>,
        pool: &Pool<DB>,
    ) -> Result<Vec<Queue>, Failure> {
        let mut lags = outbox.lag().await?;
        show_hidden(outbox, &mut lags).await?;
        let now = Instant::now();
        let mut queues = Vec::new();
        for of_queue in lags.chunk_by(|one, next| one.queue == next.queue) {
            let Some(first) = of_queue.first() else { continue };
            let pending = DeadLetterFilter::default().queue(&*first.queue).status(DeadLetterStatus::Pending);
            queues.push(Queue {
                queue: first.queue.to_string(),
                is_paused: first.is_paused,
                depth: of_queue.iter().map(|lag| lag.depth).sum(),
                oldest_ms: of_queue.iter().filter_map(|lag| lag.oldest).max().map(millis),
                dead_letters: outbox.dead_letter_count(pool, &pending).await?,
                partitions: of_queue.iter().map(|lag| self.partition(lag, now)).collect(),
            });
        }
        Ok(queues)
    }

    fn partition(&mut self, lag: &PartitionLag, now: Instant) -> Partition {
        let (cursor, since) = self.cursors.entry(lag.partition_id).or_insert((lag.cursor_seq, now));
        if *cursor != lag.cursor_seq {
            (*cursor, *since) = (lag.cursor_seq, now);
        }
        let stands = now.duration_since(*since);
        let reason = why_it_stands(lag).filter(|_| is_suspicious(lag) && stands >= STANDSTILL);
        let state = match (&reason, lag.oldest) {
            _ if lag.is_paused => State::Paused,
            (Some(_), _) => State::Stalled,
            (None, _) if lag.owner.is_some() => State::Working,
            (None, Some(_)) => State::Waiting,
            (None, None) => State::Idle,
        };
        Partition {
            partition: lag.partition,
            head_seq: lag.head_seq,
            cursor_seq: lag.cursor_seq,
            depth: lag.depth,
            oldest_ms: lag.oldest.map(millis),
            owner: lag.owner.map(|owner| owner.to_string()),
            lease_left_ms: lag.lease_left.map(millis),
            attempts: lag.attempts,
            last_error: lag.last_error.clone(),
            state,
            reason,
        }
    }

    /// Whether there is a partition of which only another look can tell whether it stands still.
    pub fn has_to_look_again(queues: &[Queue]) -> bool {
        let limit = millis(SUSPICIOUS);
        let partitions = queues.iter().flat_map(|queue| &queue.partitions);
        partitions
            .filter(|partition| matches!(partition.state, State::Waiting | State::Working))
            .any(|partition| partition.oldest_ms.is_some_and(|age| age >= limit))
    }
}

/// The lag looks only at the first messages that have no order yet. If there are many of them, a queue that seems to be idle may have
/// some further back: then its first one is shown.
async fn show_hidden<DB: Backend>(outbox: &Outbox<DB>, lags: &mut [PartitionLag]) -> Result<(), Failure> {
    for of_queue in lags.chunk_by_mut(|one, next| one.queue == next.queue) {
        if of_queue.iter().any(|lag| lag.oldest.is_some()) {
            continue;
        }
        let Some(queue) = of_queue.first().map(|lag| lag.queue.to_string()) else { continue };
        let Some(first) = outbox.unsequenced(&queue, None, None, 1).await?.pop() else { continue };
        let age = outbox.database_time().await?.duration_since(first.created_at).unwrap_or_default();
        if let Some(lag) = of_queue.iter_mut().find(|lag| lag.partition == first.partition) {
            lag.oldest = Some(age);
        }
    }
    Ok(())
}

fn is_suspicious(lag: &PartitionLag) -> bool {
    !lag.is_paused && lag.oldest.is_some_and(|age| age >= SUSPICIOUS)
}

/// What may keep it from moving; nothing, if somebody has only just begun with a message.
fn why_it_stands(lag: &PartitionLag) -> Option<String> {
    let has_failed = lag.attempts > 1 || (lag.attempts == 1 && lag.owner.is_none());
    if lag.depth == 0 {
        return Some("its messages have no order yet: no process with workers is running".to_owned());
    }
    if has_failed {
        let error = lag.last_error.as_deref().unwrap_or("its process died without a word");
        return Some(format!("attempt {} of its next message failed: {error}", lag.attempts));
    }
    let nobody = "nobody works on it: no process with workers for this queue is running, or all of them are busy elsewhere";
    lag.owner.is_none().then(|| nobody.to_owned())
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
