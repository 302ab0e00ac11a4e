//! What the tests are played on: a fresh database, handlers that remember, and waiting without sleeping.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use posthaste::{
    Batch, HandlerResult, LeasedHandler, Outbox, OutboxBuilder, OutboxMessage, OutboxProfile,
    TransactionalHandler, TransactionalMessageHandler, WorkerTuning,
};
use sqlx::{PgConnection, PgPool, Postgres};
use tokio::{sync::watch, time::Instant};

use super::modes::{make_effects, write_effects};
use crate::fresh::{Fresh, servers};

pub type Db = Fresh<servers::Postgres>;

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A fresh database with a table for the ground truth: what was committed, by whom, in which order; and one for what
/// transactional handlers write.
pub async fn fresh() -> Db {
    // Shown for tests that fail.
    tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init().ok();
    let db = Db::create().await;
    sqlx::raw_sql("CREATE TABLE ledger (id BIGINT PRIMARY KEY, producer INT NOT NULL, n INT NOT NULL)")
        .execute(&db.pool)
        .await
        .expect("a ledger");
    make_effects(&db.pool).await;
    db
}

/// A builder that is quick to retry, so that tests are quick too.
pub fn builder(db: &Db) -> OutboxBuilder<Postgres> {
    builder_on(db.pool.clone())
}

pub fn builder_on(pool: PgPool) -> OutboxBuilder<Postgres> {
    Outbox::builder(pool).profile(OutboxProfile::low_latency()).grace(secs(5))
}

pub fn quick_retries() -> WorkerTuning {
    WorkerTuning::processor_low_latency().retry_base(millis(10)).retry_max(millis(50))
}

/// Waits until `check` is true; a failure after ten seconds says what was expected.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    within(secs(10), what, async || check().await).await;
}

pub async fn within(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(millis(5)).await;
    }
    began.elapsed()
}

/// One message as a handler saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    pub message: OutboxMessage,
    pub at: Instant,
}

/// Remembers what handlers saw, and lets tests wait for it.
#[derive(Clone)]
pub struct Memory {
    seen: Arc<Mutex<Vec<Seen>>>,
    given: Arc<Mutex<Vec<i64>>>,
    count: watch::Sender<usize>,
    calls: Arc<AtomicUsize>,
}

impl Memory {
    pub fn new() -> Self {
        Self {
            seen: Arc::default(),
            given: Arc::default(),
            count: watch::Sender::new(0),
            calls: Arc::default(),
        }
    }

    pub fn note(&self, message: &OutboxMessage) {
        self.seen
            .lock()
            .expect("nobody panics while holding it")
            .push(Seen { message: message.clone(), at: Instant::now() });
        self.count.send_modify(|count| *count += 1);
    }

    pub fn all(&self) -> Vec<Seen> {
        self.seen.lock().expect("nobody panics while holding it").clone()
    }

    pub fn ids(&self) -> Vec<i64> {
        self.all().iter().map(|seen| seen.message.id.0).collect()
    }

    /// The ids of all messages that a handler was called for, whatever came of its writes.
    pub fn given(&self) -> Vec<i64> {
        self.given.lock().expect("nobody panics while holding it").clone()
    }

    fn give(&self, messages: &[OutboxMessage]) {
        let ids = messages.iter().map(|message| message.id.0);
        self.given.lock().expect("nobody panics while holding it").extend(ids);
    }

    /// The number of this call, from 1.
    fn call(&self) -> usize {
        self.calls.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub fn payloads(&self) -> Vec<String> {
        self.all().iter().map(|seen| String::from_utf8_lossy(&seen.message.payload).into_owned()).collect()
    }

    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// Waits until `n` messages were seen.
    pub async fn has(&self, n: usize) {
        self.has_within(n, secs(20)).await;
    }

    pub async fn has_within(&self, n: usize, limit: Duration) {
        let mut count = self.count.subscribe();
        let enough = tokio::time::timeout(limit, count.wait_for(|count| *count >= n)).await;
        assert!(enough.is_ok(), "{} of {n} messages after {limit:?}", self.all().len());
    }

    /// A handler, for every mode, that remembers every message it takes, and acks it.
    pub fn handler(&self) -> Scripted<impl Script> {
        self.scripted(|_, _| Step::Ack)
    }

    /// A handler that asks the script what to do with each message; it is told the number of the call, from 1.
    pub fn scripted<F: Script>(&self, script: F) -> Scripted<F> {
        Scripted { memory: self.clone(), script, prepares: true }
    }
}

/// What a scripted handler does with a message, or with its whole batch.
pub enum Step {
    Ack,
    AckAfter(Duration),
    /// Ack it once this is true.
    AckWhen(watch::Receiver<bool>),
    /// Leave it taken and go on.
    Leave,
    Reject(String),
    Return(HandlerResult),
    Panic(String),
    Hang,
    AckMany(usize),
}

pub trait Script: Fn(usize, &OutboxMessage) -> Step + Send + Sync + 'static {}

impl<F: Fn(usize, &OutboxMessage) -> Step + Send + Sync + 'static> Script for F {}

pub struct Scripted<F> {
    memory: Memory,
    script: F,
    prepares: bool,
}

impl<F: Script> LeasedHandler for Scripted<F> {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        let call = self.memory.call();
        while let Some(message) = batch.next_msg() {
            self.memory.give(std::slice::from_ref(message));
            self.memory.note(message);
            match (self.script)(call, message) {
                Step::Ack => batch.ack(),
                Step::AckAfter(delay) => {
                    tokio::time::sleep(delay).await;
                    batch.ack();
                }
                Step::AckWhen(mut told) => {
                    told.wait_for(|told| *told).await.expect("the test goes on");
                    batch.ack();
                }
                Step::Leave => {}
                Step::Reject(reason) => batch.reject(reason),
                Step::Return(result) => return result,
                Step::Panic(text) => panic!("{text}"),
                Step::Hang => std::future::pending().await,
                Step::AckMany(n) => batch.ack_chunk(n),
            }
        }
        HandlerResult::Success
    }
}

impl<F: Script> TransactionalMessageHandler<Postgres> for Scripted<F> {
    async fn handle(&self, conn: &mut PgConnection, msg: &OutboxMessage) -> HandlerResult {
        self.transact(conn, std::slice::from_ref(msg)).await
    }
}

impl<F: Script> TransactionalHandler<Postgres> for Scripted<F> {
    async fn handle(&self, conn: &mut PgConnection, msgs: &[OutboxMessage]) -> HandlerResult {
        self.transact(conn, msgs).await
    }
}

impl<F: Script> Scripted<F> {
    /// Leaves no prepared statement behind in its session, as is proper where sessions are shared.
    pub fn unprepared(self) -> Self {
        Self { prepares: false, ..self }
    }

    /// Writes the effects of all messages; then the first of them that is not acked decides for the call.
    async fn transact(&self, conn: &mut PgConnection, messages: &[OutboxMessage]) -> HandlerResult {
        let call = self.memory.call();
        self.memory.give(messages);
        if let Err(error) = write_effects(messages).persistent(self.prepares).execute(conn).await {
            return HandlerResult::Retry { reason: error.to_string() };
        }
        for message in messages {
            self.memory.note(message);
            match (self.script)(call, message) {
                Step::Ack | Step::Leave | Step::AckMany(_) => {}
                Step::AckAfter(delay) => tokio::time::sleep(delay).await,
                Step::AckWhen(mut told) => {
                    told.wait_for(|told| *told).await.expect("the test goes on");
                }
                Step::Reject(reason) => return HandlerResult::Reject { reason },
                Step::Return(result) => return result,
                Step::Panic(text) => panic!("{text}"),
                Step::Hang => std::future::pending().await,
            }
        }
        HandlerResult::Success
    }
}

pub async fn count(pool: &PgPool, sql: &'static str) -> i64 {
    sqlx::query_scalar(sql).fetch_one(pool).await.expect("a count")
}

/// How far the partitions of all queues are settled, by the newest links.
pub async fn settled(pool: &PgPool) -> i64 {
    count(
        pool,
        "SELECT coalesce(sum(processed_seq), 0)::bigint FROM (
             SELECT DISTINCT ON (partition_id) processed_seq FROM posthaste_cursor ORDER BY partition_id, epoch DESC) t",
    )
    .await
}

/// What the database holds must make sense, whatever was done to it: both chains without a gap, seqs without a gap, each
/// message in one segment, no cursor beyond its head and none that went back. Of what is settled, nothing need be left but
/// the newest links and segments: vacuum may have removed the rest.
pub async fn assert_consistent(pool: &PgPool) {
    for (what, sql) in [
        (
            "the tick chain has gaps",
            "SELECT count(*) FROM (SELECT id - lag(id) OVER (ORDER BY id) AS step FROM posthaste_tick) t WHERE step <> 1",
        ),
        (
            "a cursor chain has gaps",
            "SELECT count(*) FROM (SELECT epoch - lag(epoch) OVER (PARTITION BY partition_id ORDER BY epoch) AS step
             FROM posthaste_cursor) t WHERE step <> 1",
        ),
        (
            "a cursor went back",
            "SELECT count(*) FROM (SELECT processed_seq - lag(processed_seq) OVER (PARTITION BY partition_id ORDER BY epoch)
             AS step FROM posthaste_cursor) t WHERE step < 0",
        ),
        (
            "seqs have gaps",
            "SELECT count(*) FROM (SELECT last_seq - cardinality(ids) - lag(last_seq) OVER
             (PARTITION BY partition_id ORDER BY last_seq) AS gap FROM posthaste_outgoing) t WHERE gap <> 0",
        ),
        (
            "what is not settled is not all in segments",
            "SELECT count(*) FROM (SELECT partition_id, min(last_seq - cardinality(ids)) AS before FROM posthaste_outgoing
             GROUP BY partition_id) o WHERE before > coalesce((SELECT processed_seq FROM posthaste_cursor c
             WHERE c.partition_id = o.partition_id ORDER BY epoch DESC LIMIT 1), 0)",
        ),
        (
            "a message is in two segments",
            "SELECT count(*) FROM (SELECT id FROM posthaste_outgoing, unnest(ids) AS id GROUP BY id HAVING count(*) > 1) t",
        ),
        (
            "a segment is larger than 256",
            "SELECT count(*) FROM posthaste_outgoing WHERE cardinality(ids) NOT BETWEEN 1 AND 256",
        ),
        (
            "a segment has a message that is not there",
            "SELECT count(*) FROM posthaste_outgoing o CROSS JOIN unnest(o.ids) WITH ORDINALITY AS u (id, n)
             LEFT JOIN posthaste_incoming i USING (id) WHERE i.partition_id <> o.partition_id
             OR (i.partition_id IS NULL AND o.last_seq - cardinality(o.ids) + u.n > coalesce(
                 (SELECT processed_seq FROM posthaste_cursor c WHERE c.partition_id = o.partition_id
                  ORDER BY epoch DESC LIMIT 1), 0))",
        ),
        (
            "a cursor is beyond its head",
            "SELECT count(*) FROM posthaste_cursor c WHERE processed_seq > coalesce(
             (SELECT max(last_seq) FROM posthaste_outgoing o WHERE o.partition_id = c.partition_id), 0)",
        ),
    ] {
        assert_eq!(count(pool, sql).await, 0, "{what}");
    }
}

/// Keeps a copy of each link that a cursor chain gets from now on, in the table `links`: vacuum removes the old ones.
pub async fn remember_links(db: &Db) {
    posthaste::migrate(&db.pool).await.expect("the tables");
    let remember = "CREATE TABLE links (LIKE posthaste_cursor);
        CREATE FUNCTION remember_link() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO links SELECT NEW.*;
            RETURN NULL;
        END $$;
        CREATE TRIGGER remember AFTER INSERT ON posthaste_cursor FOR EACH ROW EXECUTE FUNCTION remember_link()";
    sqlx::raw_sql(remember).execute(&db.pool).await.expect("a trigger");
}

/// Makes the tables and registers queue `q`, as a process does that starts and stops.
pub async fn register(db: &Db, partitions: posthaste::Partitions) {
    let handler = Memory::new().handler();
    builder(db).queue("q", partitions).leased(handler).start().await.expect("it starts").stop().await;
}
