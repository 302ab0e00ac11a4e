//! What it costs, counted by what sqlx logs. Each test has a process of its own, and so a log of its own.

use std::sync::{Arc, Mutex};

use posthaste::{EnqueueMessage, Outbox, OutboxProfile, Partitions};
use sqlx::{AssertSqlSafe, Row, SqlitePool};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

use super::stage::{Memory, count, eventually, millis, secs, settled};
use crate::{
    fresh::{Fresh, servers},
    stage::{insert_by_hand, register},
};

/// The statements that were run so far, in this process. How a transaction begins and ends is not among them.
#[derive(Clone, Default)]
struct Statements(Arc<Mutex<Vec<String>>>);

impl Statements {
    fn listen() -> Self {
        let statements = Self::default();
        tracing::subscriber::set_global_default(statements.clone())
            .expect("a process for each test, as nextest has it");
        statements
    }

    /// Forgets what there was.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// sqlx logs the beginning of a statement, or all of it if it is long.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "summary" || field.name() == "db.statement" {
            self.0.push_str(&format!("{value:?} "));
        }
    }
}

impl Subscriber for Statements {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "sqlx::query"
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn containing(statements: &[String], text: &str) -> usize {
    statements.iter().filter(|statement| statement.contains(text)).count()
}

async fn database() -> (Statements, Fresh<servers::Sqlite>) {
    (Statements::listen(), Fresh::empty().await)
}

#[tokio::test]
async fn an_enqueue_is_one_statement_and_a_batch_in_steady_state_is_two() {
    const MESSAGES: usize = 20_000;
    let ((statements, db), memory) = (database().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .profile(OutboxProfile::high_throughput())
        .queue("q", Partitions::of(1))
        .leased(memory.clone())
        .start()
        .await
        .unwrap();
    statements.take();
    for _ in 0..20 {
        let messages = vec![EnqueueMessage::new("x"); MESSAGES / 20];
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    memory.has(MESSAGES).await;
    eventually("all is settled", async || settled(&db.pool).await == 20_000).await;
    let statements = statements.take();
    assert_eq!(
        containing(&statements, "INSERT INTO \\\"main\\\".\\\"posthaste_incoming\\\""),
        20,
        "an enqueue is one statement"
    );
    let count_of = |text| containing(&statements, text);
    let (settles, acquires, reads) =
        (count_of("tip.goes_on"), count_of("min(tip.attempts"), count_of("m.key AS seq"));
    let links = usize::try_from(count(&db.pool, "SELECT max(id) FROM posthaste_tick").await).unwrap();
    let (looks, ticks) = (count_of("AS tick_id"), count_of("s.head + s.first"));
    println!("{settles} settles, {acquires} acquires, {reads} reads; {links} ticks, {looks} looks");
    assert_eq!(settles, 200, "a batch is settled, and the next one read, in one go");
    assert_eq!(reads, settles + acquires, "nothing is read besides");
    assert!(acquires < settles / 4, "{acquires} acquires for {settles} batches");
    assert!(links <= 60 && ticks == links && looks < 200, "{links} ticks, {ticks} tries, {looks} looks");
    handle.stop().await;
    db.remove().await;
}

/// How often others have changed the database, as a connection that stays the same sees it.
async fn changes(pool: &SqlitePool, conn: &mut Option<sqlx::pool::PoolConnection<sqlx::Sqlite>>) -> i64 {
    if conn.is_none() {
        *conn = Some(pool.acquire().await.unwrap());
    }
    sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut **conn.as_mut().unwrap()).await.unwrap()
}

#[tokio::test]
async fn an_idle_process_reads_little_and_writes_nothing() {
    let ((statements, db), memory) = (database().await, Memory::new());
    let handle = Outbox::builder(db.pool.clone())
        .queue("a", Partitions::of(64))
        .leased(memory.clone())
        .queue("b", Partitions::of(64))
        .leased(memory.clone())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "a", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let left = "SELECT (SELECT count(*) FROM posthaste_incoming) + (SELECT count(*) - 1 FROM posthaste_tick)
                + (SELECT count(*) - 128 FROM posthaste_cursor)";
    eventually("all is removed", async || count(&db.pool, left).await == 0).await;
    tokio::time::sleep(millis(1500)).await;
    let mut conn = None;
    let before = changes(&db.pool, &mut conn).await;
    statements.take();
    tokio::time::sleep(secs(10)).await;
    let ran = statements.take();
    assert_eq!(changes(&db.pool, &mut conn).await, before, "nothing is written");
    // To find out whether anybody is writing, a tick that finds nothing begins to write, looks again, and goes back: the look is
    // logged, the other two are not.
    let ticks = containing(&ran, "AS is_news");
    let all = ran.len() + 2 * ticks;
    println!(
        "{all} statements in 10 s, {} of them looks at the count of changes",
        containing(&ran, "data_version")
    );
    assert!(all <= 10 * 20, "{all} statements in 10 s: {ran:#?}");
    drop(conn);
    handle.stop().await;
    db.remove().await;
}

#[tokio::test]
async fn lag_is_one_statement_that_looks_at_few_messages_however_many_there_are() {
    let (statements, db) = database().await;
    register(&db, Partitions::of(64)).await;
    insert_by_hand(&db.pool, 100, "x").await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    // The first one opens its connection.
    outbox.lag().await.unwrap();
    statements.take();
    outbox.lag().await.unwrap();
    let ran = statements.take();
    assert_eq!(ran.len(), 1, "{ran:#?}");
    // It begins where it should in each of the tables that grow, and never at their beginning; what the newest tick is, is known
    // by the end of the first of them.
    let code = include_str!("../../../src/store/sqlite/sql/lag.sql").lines();
    let mut sql = code.filter(|line| !line.trim_start().starts_with("--")).collect::<Vec<_>>().join("\n");
    for table in ["queue", "partition", "incoming", "tick", "outgoing", "cursor"] {
        sql = sql.replace(&format!("{{{table}}}"), &format!("posthaste_{table}"));
    }
    let sql = sql.replace("{now}", "1").replace("?1", "'default'").replace("?2", "1000");
    let plan =
        sqlx::raw_sql(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"))).fetch_all(&db.pool).await.unwrap();
    let scans: Vec<String> = plan
        .iter()
        .map(|row| row.get::<String, _>("detail"))
        .filter(|detail| detail.starts_with("SCAN"))
        .collect();
    assert_eq!(scans, ["SCAN q", "SCAN t", "SCAN u"], "the queues, the newest tick, the window");
    db.remove().await;
}

#[tokio::test]
async fn an_idle_process_on_a_database_in_memory_reads_little_too() {
    let (statements, memory) = (Statements::listen(), Memory::new());
    let pool = SqlitePool::connect("sqlite::memory:").await.unwrap();
    let handle = Outbox::builder(pool.clone())
        .queue("a", Partitions::of(64))
        .leased(memory.clone())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&pool, "a", EnqueueMessage::new("x")).await.unwrap();
    memory.has(1).await;
    let left = "SELECT (SELECT count(*) FROM posthaste_incoming) + (SELECT count(*) - 1 FROM posthaste_tick)";
    eventually("all is removed", async || count(&pool, left).await == 0).await;
    tokio::time::sleep(millis(1500)).await;
    statements.take();
    let began = std::time::Instant::now();
    tokio::time::sleep(secs(6)).await;
    let ran = statements.take();
    let rate = f64::from(u32::try_from(ran.len()).unwrap()) / began.elapsed().as_secs_f64();
    assert!(rate <= 20.0, "{rate} statements a second: {ran:#?}");
    handle.stop().await;
    pool.close().await;
}
