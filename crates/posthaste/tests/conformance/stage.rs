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
    TransactionalHandler, TransactionalMessageHandler, WorkerTuning, testing::Timings,
};
use sqlx::{Pool, Transaction};
use tokio::{sync::watch, time::Instant};

use crate::{
    dialect::{Dialect, Tested},
    fresh::{Fresh, Ground, Server},
    modes::{EFFECTS, make_effects},
};

pub use crate::listening::show_logs;

/// The newest links of all cursors, as a table.
pub const NEWEST_LINKS: &str = "(SELECT c.* FROM posthaste_cursor c JOIN (
         SELECT reader, partition_id, max(epoch) AS epoch FROM posthaste_cursor GROUP BY reader, partition_id
     ) newest ON newest.reader = c.reader AND newest.partition_id = c.partition_id AND newest.epoch = c.epoch)";

pub const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub const fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The ground truth: what was committed, by whom, in which order.
const LEDGER: &str = "CREATE TABLE ledger (id BIGINT PRIMARY KEY, producer INT NOT NULL, n INT NOT NULL)";

/// A fresh database with the tables of an outbox, the ledger, and a table for what transactional handlers write.
pub async fn fresh<S: Server>() -> Fresh<S> {
    show_logs();
    Fresh::migrated("conformance", &[LEDGER, EFFECTS]).await
}

/// The same without the tables of an outbox, for tests of migrations.
pub async fn unmigrated<S: Ground>() -> Fresh<S> {
    show_logs();
    let db = Fresh::empty().await;
    run(&db.pool, LEDGER).await;
    make_effects(&db.pool).await;
    db
}

/// How long nothing may happen while there is work: what takes longer than this is stalled.
pub const STANDSTILL: Duration = secs(30);

/// The limit of what must happen soon: an order of magnitude beyond what a busy machine delays it by, and less than the
/// default lease and a handler's minute, which a lost wake-up or a lease that is not released would wait for.
pub const SOON: Duration = secs(25);

/// A builder that is quick to retry, so that tests are quick too.
pub fn builder<S: Server>(db: &Fresh<S>) -> OutboxBuilder<S::Db> {
    builder_on(db.pool.clone())
}

pub fn builder_on<DB: Tested>(pool: Pool<DB>) -> OutboxBuilder<DB> {
    Outbox::builder(pool).profile(OutboxProfile::low_latency()).grace(secs(5)).timings(timings())
}

/// The timings of [`builder`]: what a test waits for takes a tenth of what is promised.
pub fn timings() -> Timings {
    Timings::scaled_down(10)
}

/// No statement is run because time has passed, but for those of watchers: a busy machine does not change the counts.
pub fn without_clocks() -> Timings {
    let never = secs(3600);
    Timings {
        processor_slice: never,
        vacuum_linger: never,
        monitor_interval: never,
        monitor_delay: never,
        ..Timings::without_timers()
    }
}

/// No worker looks for work because it was idle for a while.
pub fn idle_for_ever<DB: Tested>(builder: OutboxBuilder<DB>) -> OutboxBuilder<DB> {
    let (profile, never) = (OutboxProfile::low_latency(), secs(3600));
    builder
        .sequencer_tuning(profile.sequencer.idle_interval(never))
        .processor_tuning(profile.processor.idle_interval(never))
        .reconciler_tuning(profile.reconciler.idle_interval(never))
}

pub fn quick_retries() -> WorkerTuning {
    WorkerTuning::processor_low_latency().retry_base(millis(10)).retry_max(millis(50))
}

/// How long to wait for what must happen, whenever it happens: only a hang outlasts it.
pub const PATIENCE: Duration = secs(60);

/// Waits until `check` is true; a failure after [`PATIENCE`] says what was expected.
pub async fn eventually(what: &str, mut check: impl AsyncFnMut() -> bool) {
    within(PATIENCE, what, async || check().await).await;
}

pub async fn within(limit: Duration, what: &str, mut check: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !check().await {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(millis(5)).await;
    }
    began.elapsed()
}

/// Waits until a number that grows has reached `goal`, for as long as it grows: how fast a machine is, is no test.
pub async fn grows_to(goal: i64, what: &str, mut number: impl AsyncFnMut() -> i64) {
    let (mut reached, mut since) = (i64::MIN, Instant::now());
    while reached != goal {
        let now = number().await;
        if now > reached {
            (reached, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < STANDSTILL, "{reached} of {goal} {what}, and no more for {STANDSTILL:?}");
        tokio::time::sleep(millis(5)).await;
    }
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

    pub fn seqs(&self) -> Vec<i64> {
        self.all().iter().map(|seen| seen.message.seq).collect()
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

    /// Waits until `n` messages were seen, for as long as some are coming.
    pub async fn has(&self, n: usize) {
        let mut count = self.count.subscribe();
        while *count.borrow_and_update() < n {
            let more = tokio::time::timeout(STANDSTILL, count.changed()).await;
            assert!(more.is_ok(), "{} of {n} messages, and no more for {STANDSTILL:?}", *count.borrow());
        }
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

impl<DB: Tested, F: Script> TransactionalMessageHandler<DB> for Scripted<F> {
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        self.transact::<DB>(conn, std::slice::from_ref(msg)).await
    }
}

impl<DB: Tested, F: Script> TransactionalHandler<DB> for Scripted<F> {
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        self.transact::<DB>(conn, msgs).await
    }
}

impl<F: Script> Scripted<F> {
    /// Leaves no prepared statement behind in its session, as is proper where sessions are shared.
    pub fn unprepared(self) -> Self {
        Self { prepares: false, ..self }
    }

    /// Writes the effects of all messages; then the first of them that is not acked decides for the call.
    async fn transact<DB: Dialect>(
        &self,
        conn: &mut DB::Connection,
        messages: &[OutboxMessage],
    ) -> HandlerResult {
        let call = self.memory.call();
        self.memory.give(messages);
        if let Err(error) = DB::write_effects(conn, messages, self.prepares).await {
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

/// The number that a query finds.
pub async fn count<DB: Dialect>(pool: &Pool<DB>, sql: &str) -> i64 {
    let mut conn = pool.acquire().await.expect("a connection");
    DB::number(&mut conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The first column of what a query finds.
pub async fn numbers<DB: Dialect>(pool: &Pool<DB>, sql: &str) -> Vec<i64> {
    let mut conn = pool.acquire().await.expect("a connection");
    DB::numbers(&mut conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// The same of texts, NULLs left out.
pub async fn texts<DB: Dialect>(pool: &Pool<DB>, sql: &str) -> Vec<String> {
    let mut conn = pool.acquire().await.expect("a connection");
    let found = DB::texts(&mut conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    found.into_iter().flatten().collect()
}

/// Runs statements.
pub async fn run<DB: Dialect>(pool: &Pool<DB>, sql: &str) {
    let mut conn = pool.acquire().await.expect("a connection");
    DB::run(&mut conn, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Begins a transaction that will write.
pub async fn begin<DB: Dialect>(pool: &Pool<DB>) -> Transaction<'static, DB> {
    DB::begin(pool).await.expect("a transaction")
}

/// Enqueues so many messages to each partition of all queues, as any client may.
pub async fn insert_by_hand<DB: Dialect>(pool: &Pool<DB>, each: u32, payload: &str) {
    let mut tx = begin(pool).await;
    DB::insert_by_hand(&mut tx, each, payload).await.expect("they are written");
    tx.commit().await.expect("it commits");
}

/// How far the partitions of all queues are settled, by the newest links.
pub async fn settled<DB: Dialect>(pool: &Pool<DB>) -> i64 {
    count(pool, &format!("SELECT coalesce(sum(processed_seq), 0) FROM {NEWEST_LINKS} AS links")).await
}

/// What the database holds must make sense, whatever was done to it: both chains without a gap, seqs without a gap, each
/// message in one segment, no cursor beyond its head and none that went back. Of what is settled, nothing need be left but
/// the newest links and segments: vacuum may have removed the rest.
pub async fn assert_consistent<DB: Dialect>(pool: &Pool<DB>) {
    let (segments, places) = (DB::SEGMENTS, DB::PLACES);
    for (what, sql) in [
        (
            "the tick chain has gaps",
            "SELECT count(*) FROM (SELECT id - lag(id) OVER (ORDER BY id) AS step FROM posthaste_tick) t WHERE step <> 1"
                .to_owned(),
        ),
        (
            "a cursor chain has gaps",
            "SELECT count(*) FROM (SELECT epoch - lag(epoch) OVER (PARTITION BY partition_id ORDER BY epoch) AS step
             FROM posthaste_cursor) t WHERE step <> 1"
                .to_owned(),
        ),
        (
            "a cursor went back",
            "SELECT count(*) FROM (SELECT processed_seq - lag(processed_seq) OVER (PARTITION BY partition_id ORDER BY epoch)
             AS step FROM posthaste_cursor) t WHERE step < 0"
                .to_owned(),
        ),
        (
            "seqs have gaps",
            format!(
                "SELECT count(*) FROM (SELECT first_seq - 1 - lag(last_seq) OVER (PARTITION BY partition_id ORDER BY last_seq)
                 AS gap FROM {segments} AS s) t WHERE gap <> 0"
            ),
        ),
        (
            "a segment has more or fewer messages than seqs",
            format!("SELECT count(*) FROM {segments} AS s WHERE size <> last_seq - first_seq + 1"),
        ),
        (
            "what is not settled is not all in segments",
            format!(
                "SELECT count(*) FROM (SELECT partition_id, min(first_seq) - 1 AS settled FROM {segments} AS s
                 GROUP BY partition_id) o WHERE settled > coalesce((SELECT processed_seq FROM posthaste_cursor c
                 WHERE c.partition_id = o.partition_id ORDER BY epoch DESC LIMIT 1), 0)"
            ),
        ),
        (
            "a message is in two segments",
            format!(
                "SELECT count(*) FROM (SELECT id FROM {places} AS p GROUP BY id HAVING count(*) > 1) t"
            ),
        ),
        (
            "a segment is larger than 256",
            format!("SELECT count(*) FROM {segments} AS s WHERE size NOT BETWEEN 1 AND 256"),
        ),
        (
            "a segment has a message that is not there",
            format!(
                "SELECT count(*) FROM {places} AS p LEFT JOIN posthaste_incoming i ON i.id = p.id
                 WHERE i.partition_id <> p.partition_id OR (i.partition_id IS NULL AND p.seq > coalesce(
                     (SELECT processed_seq FROM posthaste_cursor c WHERE c.partition_id = p.partition_id
                      ORDER BY epoch DESC LIMIT 1), 0))"
            ),
        ),
        (
            "a cursor is beyond its head",
            "SELECT count(*) FROM posthaste_cursor c WHERE processed_seq > coalesce(
             (SELECT max(last_seq) FROM posthaste_outgoing o WHERE o.partition_id = c.partition_id), 0)"
                .to_owned(),
        ),
    ] {
        assert_eq!(count(pool, &sql).await, 0, "{what}");
    }
}

/// Keeps a copy of each link that a cursor chain gets from now on, in the table `links`: vacuum removes the old ones.
pub async fn remember_links<S: Server>(db: &Fresh<S>) {
    posthaste::migrate(&db.pool).await.expect("the tables");
    run(
        &db.pool,
        "CREATE TABLE links (partition_id INT, epoch BIGINT, processed_seq BIGINT, attempts INT, last_error TEXT)",
    )
    .await;
    let remember = "INSERT INTO links VALUES (NEW.partition_id, NEW.epoch, NEW.processed_seq, NEW.attempts, NEW.last_error)";
    run(&db.pool, &S::Db::after_insert("remember_link", "posthaste_cursor", remember)).await;
}

/// Makes the tables and registers queue `q`, as a process does that starts and stops.
pub async fn register<S: Server>(db: &Fresh<S>, partitions: posthaste::Partitions) {
    let handler = Memory::new().handler();
    builder(db).queue("q", partitions).leased(handler).start().await.expect("it starts").stop().await;
}

/// Appends what a worker leaves that dies with its lease, to the chain of the only partition: it was at its `attempts`th try,
/// and the lease of 30 s ends so many milliseconds from now.
pub async fn leave_lease<DB: Dialect>(pool: &Pool<DB>, attempts: u32, ends_in: i64) {
    let sql = format!(
        "INSERT INTO posthaste_cursor (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms)
         SELECT reader, partition_id, epoch + 1, processed_seq, {attempts}, {}, {}, 30000
         FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1",
        DB::SOMEBODY,
        DB::moment(ends_in)
    );
    run(pool, &sql).await;
}

/// Another worker takes the only partition over, as it would after the lease's end, and settles its first message; and
/// vacuum trims the chain, so that the number of a late settlement's link is free again.
pub async fn take_over<DB: Dialect>(pool: &Pool<DB>) {
    run(
        pool,
        "INSERT INTO posthaste_cursor (reader, partition_id, epoch, processed_seq, attempts)
         SELECT reader, partition_id, epoch + n, 1, 0 FROM (SELECT * FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1) c
         CROSS JOIN (SELECT 1 AS n UNION ALL SELECT 2 UNION ALL SELECT 3) ns",
    )
    .await;
    trim_cursor(pool).await;
}

/// Removes all links of the only partition but the newest. By its number, for a statement that looks for it may lock it.
pub async fn trim_cursor<DB: Dialect>(pool: &Pool<DB>) {
    let partition = count(pool, "SELECT max(partition_id) FROM posthaste_cursor").await;
    let newest = count(pool, "SELECT max(epoch) FROM posthaste_cursor").await;
    let sql = format!(
        "DELETE FROM posthaste_cursor WHERE reader = 'default' AND partition_id = {partition} AND epoch < {newest}"
    );
    run(pool, &sql).await;
}

/// Removes all ticks but the newest.
pub async fn trim_ticks<DB: Dialect>(pool: &Pool<DB>) {
    let newest = count(pool, "SELECT max(id) FROM posthaste_tick").await;
    run(pool, &format!("DELETE FROM posthaste_tick WHERE id < {newest}")).await;
}
