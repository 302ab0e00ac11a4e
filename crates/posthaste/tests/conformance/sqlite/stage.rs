//! What the tests are played on: a file, handlers that remember, and waiting without sleeping.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use posthaste::{
    HandlerResult, LeasedMessageHandler, MessageResult, OutboxBuilder, OutboxMessage, TransactionalHandler,
    TransactionalMessageHandler, WorkerTuning,
};
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection, SqlitePool};
use tokio::sync::watch;

use crate::{
    fresh::{Fresh, servers},
    stage::{STANDSTILL, builder_on},
};

pub use crate::stage::{PATIENCE, SOON, eventually, millis, secs};

pub type Db = Fresh<servers::Sqlite>;

/// A fresh database, with a table for what transactional handlers write.
pub async fn fresh() -> Db {
    // Shown for tests that fail.
    tracing_subscriber::fmt().with_test_writer().with_ansi(false).try_init().ok();
    Db::migrated("sqlite", &[EFFECTS]).await
}

/// The same without the tables of an outbox, for tests of migrations.
pub async fn unmigrated() -> Db {
    let db = Db::empty().await;
    make_effects(&db.pool).await;
    db
}

const EFFECTS: &str =
    "CREATE TABLE effects (id INTEGER NOT NULL, partition INTEGER NOT NULL, seq INTEGER NOT NULL)";

pub async fn make_effects(pool: &SqlitePool) {
    sqlx::raw_sql(EFFECTS).execute(pool).await.expect("a table");
}

pub fn builder(pool: &SqlitePool) -> OutboxBuilder<Sqlite> {
    builder_on(pool.clone())
}

pub fn quick_retries() -> WorkerTuning {
    WorkerTuning::processor_low_latency().retry_base(millis(10)).retry_max(millis(50))
}

pub async fn count(pool: &SqlitePool, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(pool).await.expect("a count")
}

/// How far the partitions of all queues are settled, by the newest links.
pub async fn settled(pool: &SqlitePool) -> i64 {
    let sql = "SELECT coalesce(sum(processed_seq), 0) FROM posthaste_cursor c
               WHERE epoch = (SELECT max(epoch) FROM posthaste_cursor n WHERE n.partition_id = c.partition_id)";
    count(pool, sql).await
}

/// Remembers what handlers saw, and lets tests wait for it.
#[derive(Clone)]
pub struct Memory {
    seen: Arc<Mutex<Vec<OutboxMessage>>>,
    count: watch::Sender<usize>,
    delay: Duration,
}

impl Memory {
    pub fn new() -> Self {
        Self::slow(Duration::ZERO)
    }

    /// A handler that takes so long for each message.
    pub fn slow(delay: Duration) -> Self {
        Self { seen: Arc::default(), count: watch::Sender::new(0), delay }
    }

    pub fn all(&self) -> Vec<OutboxMessage> {
        self.seen.lock().unwrap().clone()
    }

    pub async fn has(&self, n: usize) {
        let mut count = self.count.subscribe();
        while *count.borrow_and_update() < n {
            let more = tokio::time::timeout(STANDSTILL, count.changed()).await;
            assert!(more.is_ok(), "{} of {n} messages, and no more for {STANDSTILL:?}", *count.borrow());
        }
    }

    async fn note(&self, message: &OutboxMessage) {
        self.seen.lock().unwrap().push(message.clone());
        self.count.send_modify(|count| *count += 1);
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }
}

/// Writes down that a message was handled.
pub async fn write(conn: &mut SqliteConnection, message: &OutboxMessage) -> Result<(), sqlx::Error> {
    sqlx::query("INSERT INTO effects VALUES (?, ?, ?)")
        .bind(message.id.0)
        .bind(message.partition)
        .bind(message.seq)
        .execute(conn)
        .await
        .map(drop)
}

impl LeasedMessageHandler for Memory {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        self.note(msg).await;
        MessageResult::Ok
    }
}

impl TransactionalMessageHandler<Sqlite> for Memory {
    async fn handle(&self, conn: &mut SqliteConnection, msg: &OutboxMessage) -> HandlerResult {
        let written = write(conn, msg).await;
        self.note(msg).await;
        written.into()
    }
}

impl TransactionalHandler<Sqlite> for Memory {
    async fn handle(&self, conn: &mut SqliteConnection, msgs: &[OutboxMessage]) -> HandlerResult {
        for msg in msgs {
            if let Err(error) = write(conn, msg).await {
                return HandlerResult::Retry { reason: error.to_string() };
            }
            self.note(msg).await;
        }
        HandlerResult::Success
    }
}

/// What the database holds must make sense, whatever was done to it: both chains without a gap, seqs without a gap, each
/// message in one segment, no cursor beyond its head and none that went back.
pub async fn assert_consistent(pool: &SqlitePool) {
    for (what, sql) in [
        (
            "the tick chain has gaps",
            "SELECT count(*) FROM (SELECT id - lag(id) OVER (ORDER BY id) AS step FROM posthaste_tick) WHERE step <> 1",
        ),
        (
            "a cursor chain has gaps",
            "SELECT count(*) FROM (SELECT epoch - lag(epoch) OVER (PARTITION BY partition_id ORDER BY epoch) AS step
             FROM posthaste_cursor) WHERE step <> 1",
        ),
        (
            "a cursor went back",
            "SELECT count(*) FROM (SELECT processed_seq - lag(processed_seq) OVER (PARTITION BY partition_id ORDER BY epoch)
             AS step FROM posthaste_cursor) WHERE step < 0",
        ),
        (
            "seqs have gaps",
            "SELECT count(*) FROM (SELECT first_seq - 1 - lag(last_seq) OVER (PARTITION BY partition_id ORDER BY last_seq)
             AS gap FROM posthaste_outgoing) WHERE gap <> 0",
        ),
        (
            "a segment is not as long as it says",
            "SELECT count(*) FROM posthaste_outgoing
             WHERE json_array_length(ids) <> last_seq - first_seq + 1 OR json_array_length(ids) NOT BETWEEN 1 AND 256",
        ),
        (
            "a message is in two segments",
            "SELECT count(*) FROM (SELECT m.value FROM posthaste_outgoing o, json_each(o.ids) m GROUP BY m.value
             HAVING count(*) > 1)",
        ),
        (
            "a segment has a message that is not there",
            "SELECT count(*) FROM posthaste_outgoing o, json_each(o.ids) m LEFT JOIN posthaste_incoming i ON i.id = m.value
             WHERE i.partition_id <> o.partition_id OR (i.partition_id IS NULL AND o.first_seq + m.key > coalesce(
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
    let whole: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(pool).await.expect("a check");
    assert_eq!(whole, "ok");
}
