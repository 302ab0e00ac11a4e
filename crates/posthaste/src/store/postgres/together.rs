//! What several partitions ask for at the same moment is asked of the database in one statement: a tick wakes the processors of
//! all partitions that it found something for, and with a message a transaction that is many partitions and few messages.
//!
//! Nobody waits for company: what is asked while a statement is under way goes together with the next one, or alone if that one
//! is slow.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use sqlx::{
    Postgres, Row,
    postgres::{PgArguments, PgRow},
    query::Query,
};
use tokio::sync::{Semaphore, oneshot};

use super::PostgresStore;
use crate::store::{Result, answer::no_answer};

/// How long to wait for the answer to others: two statements at once cost more than one for both.
const PATIENCE: Duration = Duration::from_millis(10);
/// From so many messages on, a statement is long enough, and its messages would wait for those of others.
const ENOUGH: u64 = 1000;

/// What a partition asks for: the same statement for one or many.
pub(super) trait Ask: Send + Sync + Sized + 'static {
    fn partition_id(&self) -> i32;
    /// How many messages it may be answered with.
    fn most(&self) -> u32;
    /// For these, in ascending order of their partitions.
    fn statement(store: &PostgresStore, asks: &[Self]) -> Query<'static, Postgres, PgArguments>;
    fn gathered(store: &PostgresStore) -> &Together<Self>;
}

/// What the database says about a partition.
#[derive(Default)]
pub(super) struct Answer {
    /// What became of it; none if the statement had nothing to say.
    pub(super) fate: Option<PgRow>,
    pub(super) messages: Vec<PgRow>,
}

struct Asked<A> {
    ask: A,
    answer: oneshot::Sender<Result<Answer>>,
}

/// What was asked for and is not under way.
pub(super) struct Together<A> {
    waiting: Mutex<Vec<Asked<A>>>,
    turn: Semaphore,
}

impl<A: Ask> Together<A> {
    pub(super) fn new() -> Self {
        Self { waiting: Mutex::default(), turn: Semaphore::new(1) }
    }

    /// Whoever is the first to wait has to see that a statement is on its way.
    fn add(&self, asked: Asked<A>) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(asked);
        waiting.len() == 1
    }

    /// What goes together now, by partition, and whether that leaves some behind.
    fn take(&self) -> (Vec<Asked<A>>, bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|asked| !asked.answer.is_closed());
        let mut messages = 0;
        let fits = |asked: &&Asked<A>| {
            let is_room = messages < ENOUGH;
            messages += u64::from(asked.ask.most());
            is_room
        };
        let fitting = waiting.iter().take_while(fits).count();
        let mut together: Vec<_> = waiting.drain(..fitting).collect();
        together.sort_by_key(|asked| asked.ask.partition_id());
        (together, !waiting.is_empty())
    }
}

/// Asks, together with whoever else asks.
pub(super) async fn ask<A: Ask>(store: &PostgresStore, ask: A) -> Result<Answer> {
    let (answer, answered) = oneshot::channel();
    if A::gathered(store).add(Asked { ask, answer }) {
        begin::<A>(store.clone());
    }
    answered.await.unwrap_or_else(|_| Err(no_answer()))
}

/// In a task of its own: whoever gives up waiting does not take the others' answers along.
fn begin<A: Ask>(store: PostgresStore) {
    tokio::spawn(answer_waiting::<A>(store));
}

async fn answer_waiting<A: Ask>(store: PostgresStore) {
    // Whoever was woken at the same moment asks now.
    tokio::task::yield_now().await;
    let _turn = tokio::time::timeout(PATIENCE, A::gathered(&store).turn.acquire()).await;
    let (together, is_more) = A::gathered(&store).take();
    if is_more {
        begin::<A>(store.clone());
    }
    let (asks, answers): (Vec<_>, Vec<_>) =
        together.into_iter().map(|asked| (asked.ask, asked.answer)).unzip();
    match answers_to(&store, &asks).await {
        Ok(found) => found.into_iter().zip(answers).for_each(|(found, answer)| drop(answer.send(Ok(found)))),
        Err(error) if asks.len() == 1 => {
            answers.into_iter().next().map(|answer| answer.send(Err(error)));
        }
        // It may be the fault of one.
        Err(error) => {
            tracing::debug!(%error, partitions = asks.len(), "what was asked together is asked one by one");
            for (ask, answer) in asks.into_iter().zip(answers) {
                let store = store.clone();
                tokio::spawn(async move { answer.send(alone(&store, ask).await) });
            }
        }
    }
}

/// Asks for one partition.
pub(super) async fn alone<A: Ask>(store: &PostgresStore, ask: A) -> Result<Answer> {
    Ok(answers_to(store, &[ask]).await?.remove(0))
}

/// An answer to each.
async fn answers_to<A: Ask>(store: &PostgresStore, asks: &[A]) -> Result<Vec<Answer>> {
    if asks.is_empty() {
        return Ok(Vec::new());
    }
    sorted(store.fetch(A::statement(store, asks)).await?, asks)
}

/// Which rows are about which partition.
pub(super) fn sorted<A: Ask>(rows: Vec<PgRow>, asks: &[A]) -> Result<Vec<Answer>> {
    let mut answers: BTreeMap<i32, Answer> = BTreeMap::new();
    for row in rows {
        let answer = answers.entry(row.try_get("partition_id")?).or_default();
        match row.try_get::<Option<i64>, _>("seq")? {
            Some(_) => answer.messages.push(row),
            None => answer.fate = Some(row),
        }
    }
    Ok(asks.iter().map(|ask| answers.remove(&ask.partition_id()).unwrap_or_default()).collect())
}
