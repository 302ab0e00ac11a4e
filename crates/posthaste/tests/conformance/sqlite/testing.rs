//! Outboxes in memory, for the tests of others.

use posthaste::{
    EnqueueMessage, HandlerResult, Outbox, OutboxMessage, Partitions, TransactionalMessageHandler, testing,
};
use sqlx::{Sqlite, SqliteConnection};

use super::stage::{millis, secs};

const ORDERS: [(&str, Partitions); 1] = [("orders", Partitions::of(4))];

#[tokio::test]
async fn each_outbox_in_memory_has_a_database_of_its_own() {
    let tests = (0..8_usize).map(|n| {
        tokio::spawn(async move {
            let test = testing::sqlite_outbox(&ORDERS).await;
            sqlx::query("CREATE TABLE orders (id INT)").execute(&test.pool).await.unwrap();
            for _ in 0..n {
                let mut tx = test.pool.begin().await.unwrap();
                sqlx::query("INSERT INTO orders VALUES (1)").execute(&mut *tx).await.unwrap();
                test.outbox.enqueue(&mut tx, "orders", EnqueueMessage::new("x").key("k")).await.unwrap();
                tx.commit().await.unwrap();
            }
            testing::assert_enqueued_count(&test.outbox, "orders", n).await;
            let test = test.delivering().await;
            testing::wait_until_drained_within(&test.outbox, "orders", secs(30)).await;
            assert_eq!(test.delivered.len(), n);
            test.handle.stop().await;
        })
    });
    for test in tests.collect::<Vec<_>>() {
        test.await.unwrap();
    }
}

/// As a test does that forgets to stop, or does not care.
#[tokio::test]
async fn an_outbox_in_memory_outlives_what_made_it() {
    let testing::TestOutbox { pool, outbox, .. } = testing::sqlite_outbox(&ORDERS).await;
    outbox.enqueue(&pool, "orders", EnqueueMessage::new("x")).await.unwrap();
    testing::assert_enqueued_count(&outbox, "orders", 1).await;
    drop(outbox);
    let outbox = Outbox::connect(pool.clone()).await.unwrap();
    testing::assert_enqueued_count(&outbox, "orders", 1).await;
}

#[tokio::test]
async fn in_memory_an_open_transaction_is_looked_at_from_inside_and_named_as_the_reason_outside() {
    let test = testing::sqlite_outbox(&ORDERS).await;
    let mut tx = test.pool.begin().await.unwrap();
    test.outbox.enqueue(&mut tx, "orders", EnqueueMessage::new("x")).await.unwrap();
    testing::assert_enqueued_in(&test.outbox, &mut tx, "orders", |m| m.payload == b"x").await;
    let asked = test.outbox.clone();
    let failed = tokio::spawn(async move {
        testing::wait_until_drained_within(&asked, "orders", millis(200)).await;
    });
    let text = failed.await.unwrap_err().into_panic().downcast::<String>().unwrap();
    assert!(text.contains("is a transaction of the test still open?"), "{text}");
    tx.commit().await.unwrap();
    testing::assert_enqueued_count(&test.outbox, "orders", 1).await;
}

struct Audit;

impl TransactionalMessageHandler<Sqlite> for Audit {
    async fn handle(&self, conn: &mut SqliteConnection, msg: &OutboxMessage) -> HandlerResult {
        let insert = sqlx::query("INSERT INTO audit (message) VALUES (?)").bind(msg.id.0);
        insert.execute(conn).await.map(drop).into()
    }
}

/// A message that is made by hand is good for a handler that is called by hand.
#[tokio::test]
async fn a_handler_is_called_with_a_message_as_it_is_delivered() {
    let test = testing::sqlite_outbox(&[]).await;
    sqlx::query("CREATE TABLE audit (message INT)").execute(&test.pool).await.unwrap();
    let message = EnqueueMessage::new("x").key("k").payload_type("t").header("a", "b").partition(3);
    let (one, other) =
        (testing::as_delivered("q", message), testing::as_delivered("q", EnqueueMessage::new("")));
    assert_ne!(one.id, other.id);
    assert_eq!((&*one.queue, one.partition, one.seq, one.attempts), ("q", 3, 1, 0));
    assert_eq!((one.key.as_deref(), &*one.payload_type), (Some("k"), "t"));
    assert_eq!(one.headers, [("a".to_owned(), "b".to_owned())]);
    let mut conn = test.pool.acquire().await.unwrap();
    for message in [&one, &other] {
        assert_eq!(Audit.handle(&mut conn, message).await, HandlerResult::Success);
    }
    let ids: Vec<i64> =
        sqlx::query_scalar("SELECT message FROM audit ORDER BY 1").fetch_all(&mut *conn).await.unwrap();
    assert_eq!(ids, [one.id.0, other.id.0]);
    let refused =
        std::panic::catch_unwind(|| testing::as_delivered("q", EnqueueMessage::new("").payload_type("")));
    assert!(refused.unwrap_err().downcast::<String>().unwrap().contains("is not a payload type"));
}
