//! What several partitions ask for at the same moment is asked of the database in one go: a tick wakes the processors of all
//! partitions that it found something for, and with a message a transaction that is many partitions and few messages.
//!
//! Nobody waits for company: what is asked while others are being answered goes together with the next, or alone if that
//! takes long.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::sync::{Semaphore, oneshot};
use tracing::Instrument;

use super::{Result, answer::no_answer};

/// How long to wait for the answer to others: two at once cost more than one for both.
const PATIENCE: Duration = Duration::from_millis(10);
/// From so many messages on, an answer is long enough, and its messages would wait for those of others.
const ENOUGH: u64 = 1000;
/// What a partition counts for at least, with or without messages.
const LEAST: u32 = 10;

/// What a partition asks for.
pub(super) trait Ask<S>: Send + Sync + Sized + 'static {
    type Answer: Send + 'static;

    fn partition_id(&self) -> i32;
    /// How many messages it may be answered with.
    fn most(&self) -> u32;
    /// Where it waits for others.
    fn gathered(store: &S) -> &Together<S, Self>;
    fn answer(&self, store: &S) -> impl Future<Output = Result<Self::Answer>> + Send;
    /// An answer to each of several, which are in ascending order of their partitions. If the database refuses one, it may refuse all.
    fn answers(store: &S, asks: &[Self]) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;
}

struct Asked<A, T> {
    ask: A,
    answer: oneshot::Sender<Result<T>>,
}

/// What was asked for and is not under way.
pub(super) struct Together<S, A: Ask<S>> {
    waiting: Mutex<Vec<Asked<A, A::Answer>>>,
    turn: Semaphore,
}

impl<S, A: Ask<S>> Default for Together<S, A> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: Semaphore::new(1) }
    }
}

impl<S, A: Ask<S>> Together<S, A> {
    /// Whoever is the first to wait has to see that somebody asks.
    fn add(&self, asked: Asked<A, A::Answer>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(asked);
        waiting.len() == 1
    }

    fn is_enough(&self) -> bool {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.iter().map(|asked| u64::from(asked.ask.most().max(LEAST))).sum::<u64>() >= ENOUGH
    }

    /// What goes together now, by partition, and whether that leaves some behind.
    fn take(&self) -> (Vec<Asked<A, A::Answer>>, bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|asked| !asked.answer.is_closed());
        let mut messages = 0;
        let fits = |asked: &&Asked<A, A::Answer>| {
            let is_room = messages < ENOUGH;
            messages += u64::from(asked.ask.most().max(LEAST));
            is_room
        };
        let fitting = waiting.iter().take_while(fits).count();
        let mut together: Vec<_> = waiting.drain(..fitting).collect();
        together.sort_by_key(|asked| asked.ask.partition_id());
        (together, !waiting.is_empty())
    }
}

/// Asks, together with whoever else asks.
pub(super) async fn ask<S: Clone + Send + Sync + 'static, A: Ask<S>>(store: &S, ask: A) -> Result<A::Answer> {
    let (answer, answered) = oneshot::channel();
    if A::gathered(store).add(Asked { ask, answer }) {
        begin::<S, A>(store.clone());
    }
    answered.await.unwrap_or_else(|_| Err(no_answer()))
}

/// In a task of its own: whoever gives up waiting does not take the others' answers along.
fn begin<S: Clone + Send + Sync + 'static, A: Ask<S>>(store: S) {
    tokio::spawn(answer_waiting::<S, A>(store).in_current_span());
}

async fn answer_waiting<S: Clone + Send + Sync + 'static, A: Ask<S>>(store: S) {
    // Whoever was woken at the same moment asks now.
    tokio::task::yield_now().await;
    let patience = if A::gathered(&store).is_enough() { Duration::ZERO } else { PATIENCE };
    let _turn = tokio::time::timeout(patience, A::gathered(&store).turn.acquire()).await;
    let (mut together, is_more) = A::gathered(&store).take();
    if is_more {
        begin::<S, A>(store.clone());
    }
    if together.len() == 1
        && let Some(Asked { ask, answer }) = together.pop()
    {
        answer.send(ask.answer(&store).await).ok();
        return;
    }
    if together.is_empty() {
        return;
    }
    let (asks, answers): (Vec<_>, Vec<_>) =
        together.into_iter().map(|asked| (asked.ask, asked.answer)).unzip();
    match A::answers(&store, &asks).await {
        Ok(found) => found.into_iter().zip(answers).for_each(|(found, answer)| drop(answer.send(Ok(found)))),
        // It may be the fault of one.
        Err(error) => {
            tracing::debug!(%error, partitions = asks.len(), "what was asked together is asked one by one");
            for (ask, answer) in asks.into_iter().zip(answers).filter(|(_, answer)| !answer.is_closed()) {
                let store = store.clone();
                tokio::spawn(async move { answer.send(ask.answer(&store).await) });
            }
        }
    }
}
