//! What transactional handlers write: a table without any key, so that duplicates show.

use std::{
    collections::{BTreeMap, HashSet},
    pin::Pin,
    sync::Arc,
};

use posthaste::{
    Backend, EnqueueMessage, HandlerResult, Outbox, OutboxMessage, Partitions, TransactionalHandler,
    TransactionalMessageHandler,
};
use sqlx::Pool;
use tokio::sync::Semaphore;

use crate::{
    dialect::{Dialect, Tested},
    fresh::{Fresh, Server},
    stage::{Memory, eventually, fresh, register, settled, texts},
};

/// A fresh database with queue `q` of one partition, and these messages in it: they come in one batch.
pub async fn stage_with<S: Server>(payloads: &[&'static str]) -> Fresh<S> {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    send(&outbox, &db.pool, payloads).await;
    db
}

pub async fn send<DB: Backend>(outbox: &Outbox<DB>, pool: &Pool<DB>, payloads: &[&'static str]) {
    let messages: Vec<_> = payloads.iter().map(|payload| EnqueueMessage::new(*payload)).collect();
    outbox.enqueue_batch(pool, "q", &messages).await.unwrap();
}

/// The seqs of all effects, sorted.
pub async fn effects<DB: Dialect>(pool: &Pool<DB>) -> Vec<i64> {
    let effects = DB::effects(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let mut seqs: Vec<_> = effects.iter().map(|effect| effect.seq).collect();
    seqs.sort_unstable();
    seqs
}

#[derive(Debug, PartialEq, Eq)]
pub struct Dead {
    pub seq: i64,
    pub attempts: i32,
    pub reason: String,
}

pub async fn dead_letters<DB: Dialect>(pool: &Pool<DB>) -> Vec<Dead> {
    let letters = DB::dead_letters(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let dead = letters.into_iter();
    dead.map(|dead| Dead { seq: dead.seq, attempts: dead.attempts, reason: dead.reason }).collect()
}

/// Why the newest link of the only partition says that the last try failed.
pub async fn last_error<DB: Dialect>(pool: &Pool<DB>) -> Option<String> {
    texts(pool, "SELECT last_error FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1").await.pop()
}

/// Waits until so many messages of all queues are settled.
pub async fn all_settled<DB: Dialect>(pool: &Pool<DB>, messages: i64) {
    eventually("all are settled", async || settled(pool).await == messages).await;
}

/// Partition by partition, seqs 1 to `each` have one effect each, and nothing is a dead letter.
pub async fn assert_exactly_once<DB: Dialect>(pool: &Pool<DB>, partitions: i64, each: i64) {
    let effects = DB::effects(&mut *pool.acquire().await.unwrap()).await.unwrap();
    let mut found: BTreeMap<i32, Vec<i64>> = BTreeMap::new();
    for effect in &effects {
        found.entry(effect.partition_id).or_default().push(effect.seq);
    }
    for (partition, seqs) in &found {
        assert!(seqs.iter().copied().eq(1..=each), "not exactly one effect: partition {partition}, {seqs:?}");
    }
    assert_eq!(i64::try_from(found.len()).unwrap(), partitions, "of every partition");
    let ids: HashSet<_> = effects.iter().map(|effect| effect.id).collect();
    assert_eq!(i64::try_from(ids.len()).unwrap(), partitions * each, "each of another message");
    assert_eq!(dead_letters(pool).await, []);
    assert_eq!(settled(pool).await, partitions * each, "and the cursors are where they belong");
}

pub fn retry(reason: &str) -> HandlerResult {
    HandlerResult::Retry { reason: reason.to_owned() }
}

pub fn reject(reason: &str) -> HandlerResult {
    HandlerResult::Reject { reason: reason.to_owned() }
}

/// Writes the effect of each message and does then what the script says, which is told how often the message was seen.
pub struct Writes<F> {
    memory: Memory,
    script: F,
}

pub fn writes<F>(memory: &Memory, script: F) -> Writes<F>
where
    F: Fn(&OutboxMessage, usize) -> HandlerResult + Send + Sync + 'static,
{
    Writes { memory: memory.clone(), script }
}

impl<DB: Tested, F> TransactionalMessageHandler<DB> for Writes<F>
where
    F: Fn(&OutboxMessage, usize) -> HandlerResult + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        self.memory.note(msg);
        if let Err(error) = DB::write(conn, msg).await {
            return retry(&error.to_string());
        }
        let times = self.memory.ids().into_iter().filter(|id| *id == msg.id.0).count();
        (self.script)(msg, times)
    }
}

impl<DB: Tested, F> TransactionalHandler<DB> for Writes<F>
where
    F: Fn(&OutboxMessage, usize) -> HandlerResult + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        for msg in msgs {
            match <Self as TransactionalMessageHandler<DB>>::handle(self, conn, msg).await {
                HandlerResult::Success => {}
                other => return other,
            }
        }
        HandlerResult::Success
    }
}

pub type Acting<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// Remembers each message and then does whatever it was made for.
pub struct Each<F> {
    memory: Memory,
    act: F,
}

pub fn each<DB: Tested, F>(memory: &Memory, act: F) -> Each<F>
where
    F: for<'a> Fn(&'a mut DB::Connection, &'a OutboxMessage) -> Acting<'a> + Send + Sync + 'static,
{
    Each { memory: memory.clone(), act }
}

impl<DB: Tested, F> TransactionalMessageHandler<DB> for Each<F>
where
    F: for<'a> Fn(&'a mut DB::Connection, &'a OutboxMessage) -> Acting<'a> + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        self.memory.note(msg);
        (self.act)(conn, msg).await
    }
}

/// Remembers the messages of each call and then does whatever it was made for.
pub struct Whole<F> {
    memory: Memory,
    act: F,
}

pub fn whole<DB: Tested, F>(memory: &Memory, act: F) -> Whole<F>
where
    F: for<'a> Fn(&'a mut DB::Connection, &'a [OutboxMessage]) -> Acting<'a> + Send + Sync + 'static,
{
    Whole { memory: memory.clone(), act }
}

impl<DB: Tested, F> TransactionalHandler<DB> for Whole<F>
where
    F: for<'a> Fn(&'a mut DB::Connection, &'a [OutboxMessage]) -> Acting<'a> + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        msgs.iter().for_each(|msg| self.memory.note(msg));
        (self.act)(conn, msgs).await
    }
}

/// A gate that a handler stops at until the test lets it pass.
#[derive(Clone)]
pub struct Turnstile(Arc<Semaphore>);

impl Turnstile {
    pub fn shut() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }

    pub fn let_pass(&self, handlers: usize) {
        self.0.add_permits(handlers);
    }
}
