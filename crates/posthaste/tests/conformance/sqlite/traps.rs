//! What handlers do that they should not, on SQLite.

use posthaste::{EnqueueMessage, HandlerResult, OutboxMessage, Partitions, TransactionalMessageHandler};
use sqlx::{AssertSqlSafe, Sqlite, SqliteConnection};

use super::stage::{
    SOON, assert_consistent, builder, count, eventually, fresh, millis, quick_retries, settled, write,
};

/// Does what the payload says after it has written its effect.
#[derive(Default)]
pub struct Trap {}

impl TransactionalMessageHandler<Sqlite> for Trap {
    async fn handle(&self, conn: &mut SqliteConnection, msg: &OutboxMessage) -> HandlerResult {
        if let Err(error) = write(conn, msg).await {
            return HandlerResult::Retry { reason: error.to_string() };
        }
        match std::str::from_utf8(&msg.payload).unwrap() {
            "fine" => HandlerResult::Success,
            "hang" => std::future::pending().await,
            "endless" => {
                // A statement that nobody waits for any more when the handler is dropped.
                let endless =
                    "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n";
                sqlx::query(endless).fetch_one(conn).await.map(drop).into()
            }
            sql => sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(conn).await.map(drop).into(),
        }
    }
}

#[tokio::test]
async fn g10_no_trap_of_a_handler_wedges_its_partition_or_keeps_others_from_writing() {
    let db = fresh().await;
    let setup = "CREATE TABLE parent (id INTEGER PRIMARY KEY);
         CREATE TABLE child (parent INT REFERENCES parent DEFERRABLE INITIALLY DEFERRED);
         CREATE TABLE one (id INTEGER PRIMARY KEY); INSERT INTO one VALUES (1)";
    sqlx::raw_sql(setup).execute(&db.pool).await.unwrap();
    let handle = builder(&db.pool)
        .processor_tuning(quick_retries())
        .handler_timeout(millis(2000))
        .queue("q", Partitions::of(1))
        .transactional(Trap::default())
        .max_attempts(2)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let bad = [
        "COMMIT",
        "ROLLBACK",
        "COMMIT; BEGIN",
        "INSERT OR ROLLBACK INTO one VALUES (1)",
        "INSERT INTO one VALUES (1)",
        "INSERT INTO child VALUES (4711)",
        "RELEASE nothing",
        "SELECT abs(-9223372036854775808)",
        "hang",
        "endless",
    ];
    let good = [
        "PRAGMA query_only = ON",
        "CREATE TEMP TABLE posthaste_cursor (n INT)",
        "SAVEPOINT mine",
        "ATTACH ':memory:' AS more",
    ];
    for trap in bad.iter().chain(&good) {
        for payload in [trap, "fine"] {
            outbox.enqueue(&db.pool, "q", EnqueueMessage::new(payload)).await.unwrap();
        }
    }
    let all = i64::try_from(2 * (bad.len() + good.len())).unwrap();
    eventually("all is settled", async || settled(&db.pool).await == all).await;
    let buried: Vec<String> =
        sqlx::query_scalar("SELECT CAST(payload AS TEXT) FROM posthaste_dead_letter ORDER BY seq")
            .fetch_all(&db.pool)
            .await
            .unwrap();
    assert_eq!(buried, bad);
    let reasons: Vec<String> = sqlx::query_scalar("SELECT reason FROM posthaste_dead_letter ORDER BY seq")
        .fetch_all(&db.pool)
        .await
        .unwrap();
    for place in 0..4 {
        assert!(
            reasons[place].contains("the handler ended the transaction"),
            "{}: {}",
            bad[place],
            reasons[place]
        );
    }
    assert!(reasons[5].contains("FOREIGN KEY constraint failed"), "{}", reasons[5]);
    assert!(reasons[9].contains("longer than its timeout"), "{}", reasons[9]);
    let effects = "SELECT count(*) FROM effects WHERE seq % 2 = 0";
    assert_eq!(count(&db.pool, effects).await, all / 2, "each of the others is done once");
    eventually("all is removed", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
    })
    .await;
    assert_consistent(&db.pool).await;
    handle.stop().await;
    db.remove().await;
}

/// A statement that nobody waits for any more would keep every other writer waiting.
#[tokio::test]
async fn a_handler_that_is_dropped_in_the_middle_of_a_statement_frees_the_database_at_once() {
    let db = fresh().await;
    let handle = builder(&db.pool)
        .handler_timeout(millis(300))
        .queue("q", Partitions::of(1))
        .transactional(Trap::default())
        .max_attempts(1)
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("endless")).await.unwrap();
    let buried = "SELECT count(*) FROM posthaste_dead_letter";
    eventually("it is buried", async || count(&db.pool, buried).await == 1).await;
    handle.stop().await;
    db.remove().await;
}

/// A handler in the middle of an endless statement does not outlive a stop for long either.
#[tokio::test]
async fn g14_a_stop_ends_a_statement_that_does_not() {
    let db = fresh().await;
    let handle = builder(&db.pool)
        .grace(millis(300))
        .queue("q", Partitions::of(1))
        .transactional(Trap::default())
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("endless")).await.unwrap();
    let held = "SELECT count(*) FROM posthaste_cursor WHERE owner IS NOT NULL";
    eventually("it is at it", async || count(&db.pool, held).await == 1).await;
    tokio::time::sleep(millis(100)).await;
    tokio::time::timeout(SOON, handle.stop()).await.expect("stop ends the statement");
    sqlx::raw_sql("INSERT INTO effects VALUES (0, 0, 0)").execute(&db.pool).await.unwrap();
    let free = "SELECT owner IS NULL FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1";
    assert_eq!(count(&db.pool, free).await, 1, "and its lease is released");
    db.remove().await;
}
