//! Enqueueing in a transaction that sqlx knows of, in one that it does not, and in none.

use std::collections::BTreeMap;

use posthaste::{EnqueueMessage, Outbox, OutboxMessageId, Partitions};
use sqlx::{Connection, MySql, MySqlConnection, MySqlPool};

use super::{Family, on_both};
use crate::{
    fresh::Fresh,
    stage::{Memory, assert_consistent, builder, count, eventually, fresh, register, run, settled},
};

on_both! {
    []:
        sixteen_tasks_enqueue_through_one_pool_without_a_transaction (flavor = "multi_thread"),
        sixteen_plain_connections_enqueue_without_a_transaction (flavor = "multi_thread"),
        an_enqueue_on_a_plain_connection_is_whole_or_not_at_all,
        what_is_taken_back_is_in_nobodys_way,
        a_transaction_that_was_begun_by_hand_is_the_callers_to_end,
        a_session_that_does_not_commit_by_itself_is_the_callers_to_commit,
        sixteen_serializable_producers_are_not_in_each_others_way (flavor = "multi_thread"),
        names_that_a_careless_collation_takes_for_one_are_queues_of_their_own,
        large_batches_of_many_sizes_leave_few_statements_in_the_callers_session;
}

/// What a call enqueued, by the ids that it was given.
type Given = BTreeMap<i64, String>;

fn message(text: &str, partition: u32) -> EnqueueMessage<'static> {
    EnqueueMessage::new(text.to_owned()).partition(partition)
}

/// Batches of 1 to 20 messages, each of which says who wrote it, in which batch, and in which place.
fn batches(who: usize) -> impl Iterator<Item = Vec<String>> {
    (1..=20_u32).map(move |size| (0..size).map(|place| format!("{who}/{size}/{place}")).collect())
}

fn messages(texts: &[String]) -> Vec<EnqueueMessage<'static>> {
    texts.iter().zip(0..).map(|(text, place)| message(text, place % 4)).collect()
}

/// What a call was given for these texts.
fn by_ids(ids: Vec<OutboxMessageId>, texts: Vec<String>) -> Given {
    assert_eq!(ids.len(), texts.len());
    assert!(ids.is_sorted(), "in the order of the messages: {ids:?}");
    ids.into_iter().map(|id| id.0).zip(texts).collect()
}

/// What was delivered is what was enqueued: each id once, with the payload that it was given for.
async fn assert_delivered(memory: &Memory, given: &[Given]) {
    let calls: usize = given.iter().map(BTreeMap::len).sum();
    let all: Given = given.iter().flatten().map(|(id, text)| (*id, text.clone())).collect();
    assert_eq!(all.len(), calls, "no id was given twice");
    memory.has(calls).await;
    let seen = memory.all();
    let delivered: Given = seen
        .iter()
        .map(|seen| (seen.message.id.0, String::from_utf8(seen.message.payload.clone()).unwrap()))
        .collect();
    assert_eq!(seen.len(), calls, "each once");
    assert_eq!(delivered, all);
}

async fn sixteen_tasks_enqueue_through_one_pool_without_a_transaction<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|who| {
            let (outbox, pool) = (handle.outbox(), db.pool.clone());
            tokio::spawn(async move {
                let mut given = Given::new();
                for texts in batches(who) {
                    let ids = outbox.enqueue_batch(&pool, "q", &messages(&texts)).await.unwrap();
                    given.extend(by_ids(ids, texts));
                }
                given
            })
        })
        .collect();
    let mut given = Vec::new();
    for task in tasks {
        given.push(task.await.unwrap());
    }
    assert_delivered(&memory, &given).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

async fn connect(pool: &MySqlPool) -> MySqlConnection {
    MySqlConnection::connect_with(&pool.connect_options()).await.unwrap()
}

async fn sixteen_plain_connections_enqueue_without_a_transaction<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|who| {
            let (outbox, pool) = (handle.outbox(), db.pool.clone());
            tokio::spawn(async move {
                let mut conn = connect(&pool).await;
                let mut given = Given::new();
                for texts in batches(who) {
                    let ids = outbox.enqueue_batch(&mut conn, "q", &messages(&texts)).await.unwrap();
                    given.extend(by_ids(ids, texts));
                }
                conn.close().await.unwrap();
                given
            })
        })
        .collect();
    let mut given = Vec::new();
    for task in tasks {
        given.push(task.await.unwrap());
    }
    assert_delivered(&memory, &given).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// A database with the queue, and nobody who delivers.
async fn registered<S: Family>() -> (Fresh<S>, Outbox<MySql>) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(4)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    (db, outbox)
}

/// Messages that wait for their seqs.
const PENDING: &str = "SELECT CAST(coalesce(sum(last_id - id + 1), 0) AS SIGNED) FROM posthaste_pending";

/// Messages, and those of them that wait for their seqs.
async fn written(pool: &MySqlPool) -> (i64, i64) {
    (count(pool, "SELECT count(*) FROM posthaste_incoming").await, count(pool, PENDING).await)
}

/// The second of two statements fails: then the first one's rows are not there either, whoever commits.
async fn an_enqueue_on_a_plain_connection_is_whole_or_not_at_all<S: Family>() {
    let (db, outbox) = registered::<S>().await;
    let messages = [message("a", 0), message("b", 1), message("c", 2)];
    run(
        &db.pool,
        "CREATE TRIGGER full BEFORE INSERT ON posthaste_pending FOR EACH ROW
         SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no more'",
    )
    .await;
    let mut conn = connect(&db.pool).await;
    assert!(
        outbox.enqueue_batch(&mut conn, "q", &messages).await.unwrap_err().to_string().contains("no more")
    );
    assert!(outbox.enqueue_batch(&db.pool, "q", &messages).await.is_err());
    assert_eq!(written(&db.pool).await, (0, 0));
    // In the caller's transaction, who swallows the error and commits.
    let mut tx = conn.begin().await.unwrap();
    sqlx::raw_sql("INSERT INTO ledger VALUES (1, 1, 1)").execute(&mut *tx).await.unwrap();
    assert!(outbox.enqueue_batch(&mut tx, "q", &messages).await.is_err());
    let refused = outbox.enqueue(&mut tx, "q", message("d", 3)).await.unwrap_err();
    assert!(refused.to_string().contains("no more"), "{refused}");
    tx.commit().await.unwrap();
    assert_eq!(written(&db.pool).await, (0, 0));
    assert_eq!(count(&db.pool, "SELECT count(*) FROM ledger").await, 1, "the caller's own stays");
    run(&db.pool, "DROP TRIGGER full").await;
    outbox.enqueue_batch(&mut conn, "q", &messages).await.unwrap();
    assert_eq!(written(&db.pool).await, (3, 3));
    // The first of the statements fails: what was enqueued before stays.
    run(
        &db.pool,
        "CREATE TRIGGER full BEFORE INSERT ON posthaste_incoming FOR EACH ROW
         IF NEW.payload = 'bad' THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no good'; END IF",
    )
    .await;
    let mut tx = conn.begin().await.unwrap();
    outbox.enqueue(&mut tx, "q", message("good", 0)).await.unwrap();
    assert!(outbox.enqueue(&mut tx, "q", message("bad", 0)).await.is_err());
    tx.commit().await.unwrap();
    assert_eq!(written(&db.pool).await, (4, 4));
    conn.close().await.unwrap();
    db.remove().await;
}

/// In whatever session the caller has, and also while it stays open: other producers do not wait for it.
async fn what_is_taken_back_is_in_nobodys_way<S: Family>() {
    let (db, outbox) = registered::<S>().await;
    run(
        &db.pool,
        "CREATE TRIGGER full BEFORE INSERT ON posthaste_pending FOR EACH ROW
         IF @refused THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no more'; END IF",
    )
    .await;
    let mut other = connect(&db.pool).await;
    sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 2").execute(&mut other).await.unwrap();
    let mut there = 0;
    for session in ["SET @refused = 1", "SET @refused = 1, SESSION sql_safe_updates = 1"] {
        for messages in [vec![message("a", 0)], vec![message("b", 1), message("c", 2), message("d", 3)]] {
            let mut conn = connect(&db.pool).await;
            sqlx::raw_sql(session).execute(&mut conn).await.unwrap();
            let mut tx = conn.begin().await.unwrap();
            let refused = outbox.enqueue_batch(&mut tx, "q", &messages).await.unwrap_err();
            assert!(refused.to_string().contains("no more"), "{session}: {refused}");
            outbox.enqueue(&mut other, "q", message("x", 0)).await.unwrap();
            outbox.enqueue_batch(&mut other, "q", &[message("y", 0), message("z", 1)]).await.unwrap();
            tx.commit().await.unwrap();
            there += 3;
            assert_eq!(written(&db.pool).await, (there, there), "{session}");
            conn.close().await.unwrap();
        }
    }
    other.close().await.unwrap();
    db.remove().await;
}

/// sqlx does not know of it: to begin another one would commit it.
async fn a_transaction_that_was_begun_by_hand_is_the_callers_to_end<S: Family>() {
    let (db, outbox) = registered::<S>().await;
    let mut conn = connect(&db.pool).await;
    for begin in ["BEGIN", "START TRANSACTION", "START TRANSACTION WITH CONSISTENT SNAPSHOT"] {
        for end in ["ROLLBACK", "COMMIT"] {
            sqlx::raw_sql(begin).execute(&mut conn).await.unwrap();
            sqlx::raw_sql("INSERT INTO ledger VALUES (1, 1, 1)").execute(&mut conn).await.unwrap();
            outbox.enqueue(&mut conn, "q", message("one", 0)).await.unwrap();
            outbox.enqueue_batch(&mut conn, "q", &[message("two", 1), message("three", 2)]).await.unwrap();
            assert_eq!(written(&db.pool).await, (0, 0), "{begin}: nothing is committed yet");
            sqlx::raw_sql(end).execute(&mut conn).await.unwrap();
            let there = if end == "COMMIT" { (3, 3) } else { (0, 0) };
            assert_eq!(written(&db.pool).await, there, "{begin}, {end}");
            let business = count(&db.pool, "SELECT count(*) FROM ledger").await;
            assert_eq!(business, i64::from(end == "COMMIT"), "{begin}, {end}: and the caller's own");
            run(
                &db.pool,
                "DELETE FROM ledger; DELETE FROM posthaste_pending; DELETE FROM posthaste_incoming",
            )
            .await;
        }
    }
    // A savepoint of the caller's is still there after an enqueue.
    sqlx::raw_sql("BEGIN; SAVEPOINT mine").execute(&mut conn).await.unwrap();
    outbox.enqueue(&mut conn, "q", message("x", 0)).await.unwrap();
    sqlx::raw_sql("ROLLBACK TO mine; COMMIT").execute(&mut conn).await.unwrap();
    assert_eq!(written(&db.pool).await, (0, 0));
    // Where BEGIN begins no transaction, but a block.
    let oracle = "SET /*M!100000 SESSION sql_mode = 'ORACLE', */ SESSION sql_notes = 1; START TRANSACTION";
    sqlx::raw_sql(oracle).execute(&mut conn).await.unwrap();
    outbox.enqueue(&mut conn, "q", message("one", 0)).await.unwrap();
    outbox.enqueue_batch(&mut conn, "q", &[message("two", 1), message("three", 2)]).await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut conn).await.unwrap();
    assert_eq!(written(&db.pool).await, (3, 3));
    conn.close().await.unwrap();
    db.remove().await;
}

async fn a_session_that_does_not_commit_by_itself_is_the_callers_to_commit<S: Family>() {
    let (db, outbox) = registered::<S>().await;
    let mut conn = connect(&db.pool).await;
    sqlx::raw_sql("SET autocommit = 0").execute(&mut conn).await.unwrap();
    for end in ["ROLLBACK", "COMMIT"] {
        // The enqueue itself begins the transaction.
        outbox.enqueue_batch(&mut conn, "q", &[message("one", 0), message("two", 1)]).await.unwrap();
        sqlx::raw_sql("INSERT INTO ledger VALUES (1, 1, 1)").execute(&mut conn).await.unwrap();
        assert_eq!(written(&db.pool).await, (0, 0), "nothing is committed yet");
        sqlx::raw_sql(end).execute(&mut conn).await.unwrap();
        let there = if end == "COMMIT" { (2, 2) } else { (0, 0) };
        assert_eq!(written(&db.pool).await, there, "{end}");
    }
    let options = (*db.pool.connect_options()).clone();
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1).after_connect(|conn, _| {
        Box::pin(async move { sqlx::raw_sql("SET autocommit = 0").execute(conn).await.map(drop) })
    });
    // On a pool it is the library's own transaction, whatever the session is set to.
    let pool = pool.connect_with(options).await.unwrap();
    outbox.enqueue(&pool, "q", message("three", 2)).await.unwrap();
    assert_eq!(written(&db.pool).await, (3, 3));
    pool.close().await;
    conn.close().await.unwrap();
    db.remove().await;
}

/// There every read locks. On MySQL the look for the ids of a batch is such a read, so there the messages go in one by one.
async fn sixteen_serializable_producers_are_not_in_each_others_way<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|who| {
            let (outbox, pool) = (handle.outbox(), db.pool.clone());
            tokio::spawn(async move {
                let mut conn = connect(&pool).await;
                let serializable = "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE";
                sqlx::raw_sql(serializable).execute(&mut conn).await.unwrap();
                let mut given = Given::new();
                for texts in batches(who) {
                    let mut tx = conn.begin().await.unwrap();
                    let mut ids = Vec::new();
                    let size = if S::NAME == "mysql" { 1 } else { texts.len() };
                    for texts in texts.chunks(size) {
                        ids.extend(outbox.enqueue_batch(&mut tx, "q", &messages(texts)).await.unwrap());
                    }
                    // Others write meanwhile.
                    tokio::task::yield_now().await;
                    tx.commit().await.unwrap();
                    given.extend(by_ids(ids, texts));
                }
                conn.close().await.unwrap();
                given
            })
        })
        .collect();
    let mut given = Vec::new();
    for task in tasks {
        given.push(task.await.unwrap());
    }
    assert_delivered(&memory, &given).await;
    handle.stop().await;
    db.remove().await;
}

async fn names_that_a_careless_collation_takes_for_one_are_queues_of_their_own<S: Family>() {
    // By case, by trailing characters, by what some collations leave out.
    let names = ["orders", "Orders", "ORDERS", "orders.", "orders-", "orders_", "o-rders"];
    let db = fresh::<S>().await;
    let memories = names.map(|_| Memory::new());
    let mut outbox = builder(&db);
    for (name, memory) in names.iter().zip(&memories) {
        outbox = outbox.queue(name, Partitions::of(2)).leased(memory.handler()).outbox();
    }
    let handle = outbox.start().await.unwrap();
    // A process that asks for them by name finds each its own.
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    for name in names {
        for outbox in [&producer, &handle.outbox()] {
            outbox.enqueue(&db.pool, name, EnqueueMessage::new(name)).await.unwrap();
        }
    }
    for name in ["ordErs", "orders..", "order"] {
        let error = producer.enqueue(&db.pool, name, EnqueueMessage::new(name)).await.unwrap_err();
        assert!(matches!(error, posthaste::OutboxError::QueueNotRegistered(_)), "{name}: {error}");
    }
    for (name, memory) in names.iter().zip(&memories) {
        memory.has(2).await;
        assert_eq!(memory.payloads(), [*name; 2]);
    }
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_queue").await, 7);
    assert_eq!(count(&db.pool, "SELECT count(DISTINCT queue_id) FROM posthaste_partition").await, 7);
    eventually("all is settled", async || settled(&db.pool).await == 14).await;
    handle.stop().await;
    assert!(memories.iter().all(|memory| memory.all().len() == 2));
    db.remove().await;
}

/// Each number of messages is a statement of its own. What the server keeps of a prepared one grows with it, in every session
/// of the caller's: some 4 KB a message on MariaDB.
async fn large_batches_of_many_sizes_leave_few_statements_in_the_callers_session<S: Family>() {
    let (db, outbox) = registered::<S>().await;
    let mut conn = connect(&db.pool).await;
    let prepared = async |conn: &mut MySqlConnection| -> i64 {
        let sql = "SHOW SESSION STATUS LIKE 'Com_stmt_prepare'; SHOW SESSION STATUS LIKE 'Com_stmt_close'";
        let rows = sqlx::raw_sql(sql).fetch_all(conn).await.unwrap();
        let number = |row| sqlx::Row::get::<String, _>(row, 1).parse::<i64>().unwrap();
        number(&rows[0]) - number(&rows[1])
    };
    for size in (0..3000).step_by(117) {
        let ids = outbox.enqueue_batch(&mut conn, "q", &vec![message("x", 0); size]).await.unwrap();
        assert!(ids.len() == size && ids.is_sorted());
    }
    let kept = prepared(&mut conn).await;
    // On MariaDB one for each of the sizes in which messages are written; and some that are always the same.
    assert!(kept <= 7 + 5, "{kept} statements are kept");
    let written = count(&db.pool, PENDING).await;
    assert_eq!(written, (0..3000).step_by(117).sum::<i64>());
    conn.close().await.unwrap();
    db.remove().await;
}
