//! What transactional handlers write: a table without any key, so that duplicates show.

use std::{pin::Pin, sync::Arc};

use posthaste::{
    EnqueueMessage, HandlerResult, Outbox, OutboxMessage, Partitions, TransactionalHandler,
    TransactionalMessageHandler,
};
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::sync::Semaphore;

use super::stage::{Db, Memory, eventually, fresh, register, settled};

/// A fresh database with queue `q` of one partition, and these messages in it: they come in one batch.
pub async fn stage_with(payloads: &[&'static str]) -> Db {
    let db = fresh().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    send(&outbox, &db.pool, payloads).await;
    db
}

pub async fn send(outbox: &Outbox<Postgres>, pool: &PgPool, payloads: &[&'static str]) {
    let messages: Vec<_> = payloads.iter().map(|payload| EnqueueMessage::new(*payload)).collect();
    outbox.enqueue_batch(pool, "q", &messages).await.unwrap();
}

pub async fn run(pool: &PgPool, sql: &'static str) {
    sqlx::raw_sql(sql).execute(pool).await.unwrap();
}

/// The effect of a message.
pub async fn write(conn: &mut PgConnection, message: &OutboxMessage) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO public.effects (id, partition_id, seq) VALUES ($1, $2, $3)")
        .bind(message.id.0)
        .bind(message.partition_id)
        .bind(message.seq)
        .execute(conn)
        .await?;
    Ok(())
}

/// The seqs of all effects, sorted.
pub async fn effects(pool: &PgPool) -> Vec<i64> {
    sqlx::query_scalar("SELECT seq FROM effects ORDER BY seq").fetch_all(pool).await.unwrap()
}

#[derive(Debug, PartialEq, Eq)]
pub struct Dead {
    pub seq: i64,
    pub attempts: i32,
    pub reason: String,
}

pub async fn dead_letters(pool: &PgPool) -> Vec<Dead> {
    let sql = "SELECT seq, attempts, reason FROM posthaste_dead_letter ORDER BY seq";
    let rows: Vec<(i64, i32, String)> = sqlx::query_as(sql).fetch_all(pool).await.unwrap();
    rows.into_iter().map(|(seq, attempts, reason)| Dead { seq, attempts, reason }).collect()
}

/// Why the newest link of the only partition says that the last try failed.
pub async fn last_error(pool: &PgPool) -> Option<String> {
    let sql = "SELECT last_error FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

/// Waits until so many messages of all queues are settled.
pub async fn all_settled(pool: &PgPool, messages: i64) {
    eventually("all are settled", async || settled(pool).await == messages).await;
}

/// Partition by partition, seqs 1 to `each` have one effect each, and nothing is a dead letter.
pub async fn assert_exactly_once(pool: &PgPool, partitions: i64, each: i64) {
    let wrong: Vec<(i32, i64, i64)> = sqlx::query_as(
        "SELECT p, s, count(e.id) FROM (SELECT DISTINCT partition_id FROM effects) p (p)
         CROSS JOIN generate_series(1, greatest($1, (SELECT max(seq) FROM effects))) s
         LEFT JOIN effects e ON e.partition_id = p AND e.seq = s GROUP BY p, s HAVING count(e.id) <> 1",
    )
    .bind(each)
    .fetch_all(pool)
    .await
    .unwrap();
    assert!(wrong.is_empty(), "not exactly one effect (partition, seq, effects): {wrong:?}");
    let counts: (i64, i64) =
        sqlx::query_as("SELECT count(*), count(DISTINCT id) FROM effects").fetch_one(pool).await.unwrap();
    assert_eq!(counts, (partitions * each, partitions * each), "each of another message");
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

impl<F> TransactionalMessageHandler<Postgres> for Writes<F>
where
    F: Fn(&OutboxMessage, usize) -> HandlerResult + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut PgConnection, msg: &OutboxMessage) -> HandlerResult {
        self.memory.note(msg);
        if let Err(error) = write(conn, msg).await {
            return retry(&error.to_string());
        }
        let times = self.memory.ids().into_iter().filter(|id| *id == msg.id.0).count();
        (self.script)(msg, times)
    }
}

impl<F> TransactionalHandler<Postgres> for Writes<F>
where
    F: Fn(&OutboxMessage, usize) -> HandlerResult + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut PgConnection, msgs: &[OutboxMessage]) -> HandlerResult {
        for msg in msgs {
            match TransactionalMessageHandler::handle(self, conn, msg).await {
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

pub fn each<F>(memory: &Memory, act: F) -> Each<F>
where
    F: for<'a> Fn(&'a mut PgConnection, &'a OutboxMessage) -> Acting<'a> + Send + Sync + 'static,
{
    Each { memory: memory.clone(), act }
}

impl<F> TransactionalMessageHandler<Postgres> for Each<F>
where
    F: for<'a> Fn(&'a mut PgConnection, &'a OutboxMessage) -> Acting<'a> + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut PgConnection, msg: &OutboxMessage) -> HandlerResult {
        self.memory.note(msg);
        (self.act)(conn, msg).await
    }
}

/// Remembers the messages of each call and then does whatever it was made for.
pub struct Whole<F> {
    memory: Memory,
    act: F,
}

pub fn whole<F>(memory: &Memory, act: F) -> Whole<F>
where
    F: for<'a> Fn(&'a mut PgConnection, &'a [OutboxMessage]) -> Acting<'a> + Send + Sync + 'static,
{
    Whole { memory: memory.clone(), act }
}

impl<F> TransactionalHandler<Postgres> for Whole<F>
where
    F: for<'a> Fn(&'a mut PgConnection, &'a [OutboxMessage]) -> Acting<'a> + Send + Sync + 'static,
{
    async fn handle(&self, conn: &mut PgConnection, msgs: &[OutboxMessage]) -> HandlerResult {
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
