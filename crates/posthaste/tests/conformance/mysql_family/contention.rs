//! Producers, workers and vacuum at once: no deadlock of ours reaches a user.

use std::{sync::Arc, time::Duration};

use posthaste::{EnqueueMessage, Outbox, Partitions, WorkerTuning};
use sqlx::{MySql, MySqlPool, Row};
use tokio::time::Instant;

use super::{Dice, Family, on_both};
use crate::{
    dialect::Dialect,
    stage::{
        Memory, SOON, assert_consistent, begin, builder, count, eventually, fresh, millis, run, settled,
        within,
    },
};

on_both! {
    []:
        no_deadlock_reaches_a_user_whoever_works_at_once (flavor = "multi_thread"),
        vacuum_goes_on_behind_messages_of_an_open_producer,
        a_tick_takes_as_many_messages_as_it_may_and_leaves_the_rest_of_a_run,
        a_pause_that_was_given_up_is_not_made_later;
}

/// A server goes on with what it was asked, even if nobody waits for it any more.
async fn a_pause_that_was_given_up_is_not_made_later<S: Family>() {
    let db = fresh::<S>().await;
    builder(&db)
        .queue("q", Partitions::of(1))
        .leased(Memory::new().handler())
        .start()
        .await
        .unwrap()
        .stop()
        .await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let mut locked = db.pool.acquire().await.unwrap();
    sqlx::raw_sql("LOCK TABLES posthaste_queue READ").execute(&mut *locked).await.unwrap();
    // MySQL's list of processes cannot be read while any of them, also of other tests, has bytes in its statement that are no text.
    let waiting = if S::NAME == "mysql" {
        "SELECT count(*) FROM performance_schema.threads WHERE processlist_db = DATABASE()
         AND processlist_state LIKE 'Waiting%'"
    } else {
        "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE '%paused_at%'
         AND id <> CONNECTION_ID()"
    };
    let pausing = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.pause("q").await }
    });
    within(SOON, "it waits", async || count(&db.pool, waiting).await > 0).await;
    pausing.abort();
    assert!(pausing.await.unwrap_err().is_cancelled());
    sqlx::raw_sql("UNLOCK TABLES").execute(&mut *locked).await.unwrap();
    drop(locked);
    within(SOON, "the server has ended it", async || count(&db.pool, waiting).await == 0).await;
    // Whatever came of it is committed, or locked, or gone: an update of the same row waits for that.
    run(&db.pool, "UPDATE posthaste_queue SET partitions = 1").await;
    assert!(!outbox.lag().await.unwrap()[0].is_paused);
    db.remove().await;
}

/// How many seconds it goes on.
const SECONDS: &str = "POSTHASTE_TEST_CONTENTION_SECONDS";
const PRODUCERS: u64 = 16;

/// How often the server had to resolve a deadlock, in all its databases.
async fn deadlocks(pool: &MySqlPool) -> i64 {
    let status =
        sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").fetch_optional(pool).await.unwrap();
    if let Some(row) = status {
        return row.get::<String, _>(1).parse().unwrap();
    }
    let sql = "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'";
    sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
}

fn batch(dice: &mut Dice, most: u64) -> Vec<EnqueueMessage<'static>> {
    (0..=dice.below(most))
        .map(|_| EnqueueMessage::new("x").partition(u32::try_from(dice.below(4)).unwrap()))
        .collect()
}

/// Works in the default isolation level, on rows of its own or in one order: no deadlock is its own fault.
async fn produce(outbox: Outbox<MySql>, pool: MySqlPool, who: u64, until: Instant) -> [i64; 2] {
    let (mut dice, mut sent) = (Dice::new(), [0, 0]);
    while Instant::now() < until {
        let place = usize::try_from(dice.below(2)).unwrap();
        let queue = ["leased", "transactional"][place];
        let messages = match dice.below(3) {
            0 => batch(&mut dice, 40),
            1 => batch(&mut dice, 3),
            _ => batch(&mut dice, 1),
        };
        let added = i64::try_from(messages.len()).unwrap();
        match dice.below(4) {
            0 => {
                outbox.enqueue_batch(&pool, queue, &messages).await.unwrap();
                sent[place] += added;
            }
            1 => {
                outbox.enqueue(&pool, queue, messages[0].clone()).await.unwrap();
                sent[place] += 1;
            }
            way => {
                let mut tx = begin(&pool).await;
                let shared = if way == 2 { who } else { 1000 };
                MySql::run(&mut tx, &format!("UPDATE accounts SET n = n + 1 WHERE id = {shared}"))
                    .await
                    .unwrap();
                outbox.enqueue_batch(&mut tx, queue, &messages).await.unwrap();
                MySql::run(&mut tx, &format!("INSERT INTO business (who) VALUES ({who})")).await.unwrap();
                tokio::time::sleep(millis(dice.below(5))).await;
                outbox.enqueue(&mut tx, queue, messages[0].clone()).await.unwrap();
                if dice.below(5) == 0 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                    sent[place] += added + 1;
                }
            }
        }
    }
    sent
}

async fn no_deadlock_reaches_a_user_whoever_works_at_once<S: Family>() {
    let duration = std::env::var(SECONDS).ok().map_or(8, |seconds| seconds.parse().expect("a number"));
    let (db, memory) = (fresh::<S>().await, Memory::new());
    run(
        &db.pool,
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB;
         CREATE TABLE business (id BIGINT AUTO_INCREMENT PRIMARY KEY, who BIGINT NOT NULL, KEY (who)) ENGINE = InnoDB;
         INSERT INTO accounts VALUES (1000, 0)",
    )
    .await;
    for who in 0..PRODUCERS {
        run(&db.pool, &format!("INSERT INTO accounts VALUES ({who}, 0)")).await;
    }
    let before = deadlocks(&db.pool).await;
    let effects = Memory::new();
    let mut handles = Vec::new();
    for _ in 0..4 {
        let vacuum =
            WorkerTuning::vacuum().min_interval(millis(20)).active_interval(millis(20)).batch_size(200);
        let queues = builder(&db)
            .vacuum_tuning(vacuum)
            .queue("leased", Partitions::of(4))
            .leased(memory.handler())
            .queue("transactional", Partitions::of(4))
            .batch_transactional(effects.handler());
        handles.push(queues.start().await.unwrap());
    }
    // A pool of its own: no producer waits for another's connection.
    let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(24);
    let pool = pool.connect_with((*db.pool.connect_options()).clone()).await.unwrap();
    let until = Instant::now() + Duration::from_secs(duration);
    let outboxes: Arc<[_]> = handles.iter().map(posthaste::OutboxHandle::outbox).collect();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|who| {
            let outbox = outboxes[usize::try_from(who).unwrap() % 4].clone();
            tokio::spawn(produce(outbox, pool.clone(), who, until))
        })
        .collect();
    let mut sent = [0, 0];
    for producer in producers {
        let more = producer.await.expect("no error reaches a producer");
        sent = [sent[0] + more[0], sent[1] + more[1]];
    }
    eventually("all is settled", async || settled(&db.pool).await == sent[0] + sent[1]).await;
    for handle in handles {
        handle.stop().await;
    }
    assert_eq!(i64::try_from(memory.all().len()).unwrap(), sent[0], "no duplicate under a lease");
    for what in ["count(*)", "count(DISTINCT id)", "count(DISTINCT partition_id, seq)"] {
        let effects = count(&db.pool, &format!("SELECT {what} FROM effects")).await;
        assert_eq!(effects, sent[1], "{what}: one effect each");
    }
    assert_consistent(&db.pool).await;
    println!(
        "{} messages in {duration} s, {} deadlocks on the server",
        sent[0] + sent[1],
        deadlocks(&db.pool).await - before
    );
    pool.close().await;
    db.remove().await;
}

/// The newest segment of a partition stays when its messages are removed, and is read again; and what is not there must not be looked
/// for where an open producer's messages begin.
async fn vacuum_goes_on_behind_messages_of_an_open_producer<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let queue = builder(&db).queue("q", Partitions::of(1));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let rows = async || count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await;
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 100]).await.unwrap();
    within(SOON, "all is removed", async || rows().await == 0).await;
    let mut producer = db.pool.begin().await.unwrap();
    outbox.enqueue(&mut producer, "q", EnqueueMessage::new("open")).await.unwrap();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("y"); 20]).await.unwrap();
    memory.has(120).await;
    within(SOON, "what is settled is removed", async || rows().await == 0).await;
    producer.commit().await.unwrap();
    memory.has(121).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    db.remove().await;
}

/// Messages that were enqueued in one call are pending as one, and ticks are smaller than that.
async fn a_tick_takes_as_many_messages_as_it_may_and_leaves_the_rest_of_a_run<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let tuning = WorkerTuning::sequencer_low_latency().batch_size(3);
    let queue = builder(&db).sequencer_tuning(tuning).queue("q", Partitions::of(2));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let message = |n: u32| EnqueueMessage::new(n.to_string()).partition(n % 2);
    for (first, end) in [(0, 10), (10, 11), (11, 12), (12, 312)] {
        let messages: Vec<_> = (first..end).map(message).collect();
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    }
    memory.has(312).await;
    handle.stop().await;
    for partition in 0..2 {
        let seen = memory.all().into_iter().filter(|seen| seen.message.partition == partition);
        let seen: Vec<_> = seen.map(|seen| String::from_utf8(seen.message.payload).unwrap()).collect();
        let sent: Vec<_> = (partition..312).step_by(2).map(|n| n.to_string()).collect();
        assert_eq!(seen, sent, "partition {partition}");
    }
    let largest = "SELECT max(last_seq - first_seq + 1) FROM posthaste_outgoing";
    assert!(count(&db.pool, largest).await <= 3);
    assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_pending").await, 0);
    assert_consistent(&db.pool).await;
    db.remove().await;
}
