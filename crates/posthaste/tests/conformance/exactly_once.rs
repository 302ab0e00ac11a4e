//! G3: over whatever breaks, each message has its effect exactly once.

use posthaste::{EnqueueMessage, HandlerResult, LeaseConfig, Outbox, OutboxHandle, Partitions};
use sqlx::Pool;

use crate::{
    cases::cases,
    dialect::{Dialect, Tested},
    effects::{
        Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, send, stage_with, whole,
        writes,
    },
    fresh::{Fresh, Server},
    proxy::{Cut, Proxy},
    stage::{
        Memory, SOON, builder, builder_on, fresh, grows_to, millis, quick_retries, register, secs, settled,
        take_over, within,
    },
};

cases! {
    []:
        g3_sessions_that_are_killed_at_any_moment
            except(sqlite = "there are no sessions to kill"),
        g3_a_connection_that_breaks_before_the_commit_arrives
            except(sqlite = "there is no connection that could break"),
        g3_a_connection_that_breaks_before_the_answer_to_the_commit_arrives
            except(sqlite = "there is no connection that could break"),
        g3_a_commit_whose_answer_is_lost_is_not_handled_again
            except(sqlite = "there is no connection that could break"),
        g7_after_a_takeover_the_handlers_transaction_commits_nothing
            except(sqlite = "one writer at a time is its nature: nobody takes over beside an open transaction"),
        g3_nobody_takes_over_from_a_handler_that_is_slower_than_its_lease,
        g3_outboxes_that_compete_for_the_same_partitions;
}

const PARTITIONS: u32 = 4;

/// An outbox on this pool whose handler writes the effects, one by one or batch by batch.
pub async fn working<DB: Tested>(pool: Pool<DB>, memory: &Memory, is_batch: bool) -> OutboxHandle<DB> {
    let handler = writes(memory, |_, _| HandlerResult::Success);
    let queue = builder_on(pool)
        .processor_tuning(quick_retries().batch_size(5))
        .queue("q", Partitions::of(PARTITIONS));
    let queue = if is_batch { queue.batch_transactional(handler) } else { queue.transactional(handler) };
    queue.start().await.unwrap()
}

/// A database with the table and the queue, and a producer that nothing happens to.
pub async fn stage_and_producer<S: Server>() -> (Fresh<S>, Outbox<S::Db>) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(PARTITIONS)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    (db, outbox)
}

/// Messages flow: so many to each partition, a transaction for each handful.
pub async fn flow<DB: Tested>(outbox: &Outbox<DB>, pool: &Pool<DB>, each: u32) {
    for n in 0..each {
        let messages: Vec<_> = (0..PARTITIONS)
            .map(|partition| EnqueueMessage::new(n.to_string()).partition(partition))
            .collect();
        outbox.enqueue_batch(pool, "q", &messages).await.unwrap();
        if n % 7 == 0 {
            tokio::time::sleep(millis(5)).await;
        }
    }
}

/// From outside, at whatever moment, while messages flow.
async fn g3_sessions_that_are_killed_at_any_moment<S: Server>() {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer::<S>().await, Memory::new());
        let handle = working(db.pool.clone(), &memory, is_batch).await;
        let flowing = {
            let (outbox, pool) = (outbox.clone(), db.pool.clone());
            tokio::spawn(async move { flow(&outbox, &pool, 100).await })
        };
        let mut killed = 0;
        while settled(&db.pool).await < 300 {
            // Only those that are in a handler's transaction.
            killed += S::Db::kill_some_in_transactions(&db.pool).await.unwrap();
            tokio::time::sleep(millis(10)).await;
        }
        flowing.await.unwrap();
        grows_to(400, "are settled", async || settled(&db.pool).await).await;
        handle.stop().await;
        assert!(killed >= 5, "{killed} were killed");
        assert_exactly_once(&db.pool, 4, 100).await;
        db.remove().await;
    }
}

async fn connections_break<S: Server>(cut: Cut) {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer::<S>().await, Memory::new());
        let proxy = Proxy::before(&db.pool, cut, 3).await;
        let pool = proxy.pool(&db.pool).await;
        let handle = working(pool.clone(), &memory, is_batch).await;
        proxy.arm();
        flow(&outbox, &db.pool, 40).await;
        grows_to(160, "are settled", async || settled(&db.pool).await).await;
        handle.stop().await;
        assert!(proxy.cuts() >= 5, "{} commits were cut", proxy.cuts());
        assert_exactly_once(&db.pool, 4, 40).await;
        pool.close().await;
        db.remove().await;
    }
}

async fn g3_a_connection_that_breaks_before_the_commit_arrives<S: Server>() {
    connections_break::<S>(Cut::BeforeCommit).await;
}

async fn g3_a_connection_that_breaks_before_the_answer_to_the_commit_arrives<S: Server>() {
    connections_break::<S>(Cut::AfterCommit).await;
}

/// What succeeded was committed, so nothing of it may be seen again: a lost answer is found out, not guessed.
async fn g3_a_commit_whose_answer_is_lost_is_not_handled_again<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let proxy = Proxy::before(&db.pool, Cut::AfterCommit, 1).await;
    let pool = proxy.pool(&db.pool).await;
    let handler = writes(&memory, |_, _| HandlerResult::Success);
    let outbox = builder_on(pool.clone()).queue("q", Partitions::of(1));
    // One try, which would bury what is tried again.
    let handle = outbox.transactional(handler).max_attempts(1).start().await.unwrap();
    proxy.arm();
    send(&handle.outbox(), &db.pool, &["x"; 5]).await;
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_eq!(memory.all().len(), 5);
    assert_exactly_once(&db.pool, 1, 5).await;
    pool.close().await;
    db.remove().await;
}

async fn g7_after_a_takeover_the_handlers_transaction_commits_nothing<S: Server>() {
    for is_batch in [false, true] {
        let (db, memory, turnstile) = (stage_with::<S>(&["late"]).await, Memory::new(), Turnstile::shut());
        let at_it = turnstile.clone();
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let queue = if is_batch {
            queue.batch_transactional(whole::<S::Db, _>(&memory, move |conn, msgs| {
                let turnstile = at_it.clone();
                Box::pin(async move {
                    S::Db::write(conn, &msgs[0]).await.unwrap();
                    turnstile.pass().await;
                    HandlerResult::Success
                })
            }))
        } else {
            queue.transactional(each::<S::Db, _>(&memory, move |conn, msg| {
                let turnstile = at_it.clone();
                Box::pin(async move {
                    S::Db::write(conn, msg).await.unwrap();
                    turnstile.pass().await;
                    HandlerResult::Success
                })
            }))
        };
        let handle = queue.start().await.unwrap();
        memory.has(1).await;
        take_over(&db.pool).await;
        turnstile.let_pass(2);
        send(&handle.outbox(), &db.pool, &["next"]).await;
        all_settled(&db.pool, 2).await;
        handle.stop().await;
        assert_eq!(memory.payloads(), ["late", "next"]);
        assert_eq!(effects(&db.pool).await, [2], "the late one's effect went with its transaction");
        assert_eq!(dead_letters(&db.pool).await, []);
        db.remove().await;
    }
}

async fn g3_nobody_takes_over_from_a_handler_that_is_slower_than_its_lease<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let start = async || {
        let handler = each::<S::Db, _>(&memory, |conn, msg| {
            Box::pin(async move {
                S::Db::write(conn, msg).await.unwrap();
                tokio::time::sleep(secs(2)).await;
                HandlerResult::Success
            })
        });
        builder(&db)
            .processor_tuning(quick_retries())
            .queue("q", Partitions::of(1))
            .transactional(handler)
            .lease(LeaseConfig { duration: millis(700), headroom: millis(200) })
            .handler_timeout(secs(5))
            .start()
            .await
            .unwrap()
    };
    let (first, second) = (start().await, start().await);
    send(&first.outbox(), &db.pool, &["x"; 3]).await;
    within(SOON, "all are settled", async || settled(&db.pool).await == 3).await;
    first.stop().await;
    second.stop().await;
    let seqs: Vec<_> = memory.all().iter().map(|seen| seen.message.seq).collect();
    assert_eq!(seqs, [1, 2, 3], "each was handled once");
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// Two workers on each partition, none of which knows of the other.
async fn g3_outboxes_that_compete_for_the_same_partitions<S: Server>() {
    let ((db, outbox), memory) = (stage_and_producer::<S>().await, Memory::new());
    let mut handles = Vec::new();
    for is_batch in [false, true, false] {
        handles.push(working(db.pool.clone(), &memory, is_batch).await);
    }
    flow(&outbox, &db.pool, 100).await;
    grows_to(400, "are settled", async || settled(&db.pool).await).await;
    for handle in handles {
        handle.stop().await;
    }
    assert_exactly_once(&db.pool, 4, 100).await;
    assert_eq!(memory.all().len(), 400, "and none was handled in vain");
    db.remove().await;
}
