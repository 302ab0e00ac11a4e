//! G3: over whatever breaks, each message has its effect exactly once.

use posthaste::{EnqueueMessage, HandlerResult, LeaseConfig, Outbox, OutboxHandle, Partitions};
use sqlx::{PgPool, Postgres};

use super::{
    effects::{
        Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, run, send, stage_with,
        whole, write, writes,
    },
    proxy::{Cut, Proxy},
    stage::{
        Db, Memory, builder, builder_on, count, eventually, fresh, millis, quick_retries, register, secs,
        settled, within,
    },
};

const PARTITIONS: u32 = 4;

/// An outbox on this pool whose handler writes the effects, one by one or batch by batch.
async fn working(pool: PgPool, memory: &Memory, is_batch: bool) -> OutboxHandle<Postgres> {
    let handler = writes(memory, |_, _| HandlerResult::Success);
    let queue = builder_on(pool)
        .processor_tuning(quick_retries().batch_size(5))
        .queue("q", Partitions::of(PARTITIONS));
    let queue = if is_batch { queue.batch_transactional(handler) } else { queue.transactional(handler) };
    queue.start().await.unwrap()
}

/// A database with the table and the queue, and a producer that nothing happens to.
async fn stage_and_producer() -> (Db, Outbox<Postgres>) {
    let db = fresh().await;
    register(&db, Partitions::of(PARTITIONS)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    (db, outbox)
}

/// Messages flow: so many to each partition, a transaction for each handful.
async fn flow(outbox: &Outbox<Postgres>, pool: &PgPool, each: u32) {
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

/// Sessions die of themselves, every third time that they come by. The number of deaths outlives them.
const DEATHS: &str = "CREATE SEQUENCE passes;
     CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
         IF coalesce(current_query(), '') LIKE TG_ARGV[0] THEN
             IF nextval('passes') % 3 = 0 THEN
                 PERFORM pg_terminate_backend(pg_backend_pid());
                 PERFORM pg_sleep(10);
             END IF;
         END IF;
         RETURN NEW;
     END $$;";

async fn sessions_die(trigger: &'static str, least: i64) {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer().await, Memory::new());
        run(&db.pool, DEATHS).await;
        run(&db.pool, trigger).await;
        let handle = working(db.pool.clone(), &memory, is_batch).await;
        flow(&outbox, &db.pool, 40).await;
        within(secs(40), "all are settled", async || settled(&db.pool).await == 160).await;
        handle.stop().await;
        assert_exactly_once(&db.pool, 4, 40).await;
        let passes = count(&db.pool, "SELECT last_value FROM passes").await;
        assert!(passes / 3 >= least, "{passes} came by");
        db.remove().await;
    }
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_a_handlers_statement() {
    let trigger = "CREATE TRIGGER die AFTER INSERT ON effects FOR EACH ROW EXECUTE FUNCTION die('%effects%')";
    sessions_die(trigger, 20).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_between_the_handler_and_its_settlement() {
    // The last thing before the settlement is what is checked late.
    let trigger = "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON effects DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION die('%RELEASE SAVEPOINT posthaste%')";
    sessions_die(trigger, 20).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_the_settlement() {
    let trigger =
        "CREATE TRIGGER die BEFORE INSERT ON posthaste_cursor FOR EACH ROW EXECUTE FUNCTION die('%buried%')";
    sessions_die(trigger, 5).await;
}

#[tokio::test]
async fn g3_a_session_that_dies_in_the_middle_of_its_commit() {
    // By then what is checked late is checked at once; so it is put off again.
    let trigger = "CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                       SET CONSTRAINTS die DEFERRED;
                       RETURN NEW;
                   END $$;
                   CREATE TRIGGER put_off BEFORE INSERT ON posthaste_cursor FOR EACH ROW EXECUTE FUNCTION put_off();
                   CREATE CONSTRAINT TRIGGER die AFTER INSERT ON posthaste_cursor DEFERRABLE INITIALLY DEFERRED
                   FOR EACH ROW EXECUTE FUNCTION die('COMMIT')";
    sessions_die(trigger, 5).await;
}

/// From outside, at whatever moment, while messages flow.
#[tokio::test]
async fn g3_sessions_that_are_killed_at_any_moment() {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer().await, Memory::new());
        let handle = working(db.pool.clone(), &memory, is_batch).await;
        let flowing = {
            let (outbox, pool) = (outbox.clone(), db.pool.clone());
            tokio::spawn(async move { flow(&outbox, &pool, 100).await })
        };
        let mut killed = 0;
        while settled(&db.pool).await < 300 {
            // Only those that are in a handler's transaction.
            let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                        WHERE datname = current_database() AND application_name LIKE '%posthaste'
                          AND xact_start < clock_timestamp() AND random() < 0.5 AND pid <> pg_backend_pid()";
            killed += count(&db.pool, kill).await;
            tokio::time::sleep(millis(30)).await;
        }
        flowing.await.unwrap();
        within(secs(20), "all are settled", async || settled(&db.pool).await == 400).await;
        handle.stop().await;
        assert!(killed >= 5, "{killed} were killed");
        assert_exactly_once(&db.pool, 4, 100).await;
        db.remove().await;
    }
}

async fn connections_break(cut: Cut) {
    for is_batch in [false, true] {
        let ((db, outbox), memory) = (stage_and_producer().await, Memory::new());
        let proxy = Proxy::before(&db.pool, cut, 3).await;
        let pool = PgPool::connect_with(proxy.options(&db.pool)).await.unwrap();
        let handle = working(pool.clone(), &memory, is_batch).await;
        proxy.arm();
        flow(&outbox, &db.pool, 40).await;
        within(secs(40), "all are settled", async || settled(&db.pool).await == 160).await;
        handle.stop().await;
        assert!(proxy.cuts() >= 5, "{} commits were cut", proxy.cuts());
        assert_exactly_once(&db.pool, 4, 40).await;
        pool.close().await;
        db.remove().await;
    }
}

#[tokio::test]
async fn g3_a_connection_that_breaks_before_the_commit_arrives() {
    connections_break(Cut::BeforeCommit).await;
}

#[tokio::test]
async fn g3_a_connection_that_breaks_before_the_answer_to_the_commit_arrives() {
    connections_break(Cut::AfterCommit).await;
}

/// What succeeded was committed, so nothing of it may be seen again: a lost answer is found out, not guessed.
#[tokio::test]
async fn g3_a_commit_whose_answer_is_lost_is_not_handled_again() {
    let (db, memory) = (fresh().await, Memory::new());
    let proxy = Proxy::before(&db.pool, Cut::AfterCommit, 1).await;
    let pool = PgPool::connect_with(proxy.options(&db.pool)).await.unwrap();
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

#[tokio::test]
async fn g7_after_a_takeover_the_handlers_transaction_commits_nothing() {
    for is_batch in [false, true] {
        let (db, memory, turnstile) = (stage_with(&["late"]).await, Memory::new(), Turnstile::shut());
        let at_it = turnstile.clone();
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let queue = if is_batch {
            queue.batch_transactional(whole(&memory, move |conn, msgs| {
                let turnstile = at_it.clone();
                Box::pin(async move {
                    write(conn, &msgs[0]).await.unwrap();
                    turnstile.pass().await;
                    HandlerResult::Success
                })
            }))
        } else {
            queue.transactional(each(&memory, move |conn, msg| {
                let turnstile = at_it.clone();
                Box::pin(async move {
                    write(conn, msg).await.unwrap();
                    turnstile.pass().await;
                    HandlerResult::Success
                })
            }))
        };
        let handle = queue.start().await.unwrap();
        memory.has(1).await;
        let take_over = "INSERT INTO posthaste_cursor (reader, partition_id, epoch, processed_seq, attempts)
                         SELECT reader, partition_id, epoch + n, 1, 0
                         FROM (SELECT * FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1) c, generate_series(1, 3) AS n";
        run(&db.pool, take_over).await;
        run(&db.pool, "DELETE FROM posthaste_cursor WHERE epoch < (SELECT max(epoch) FROM posthaste_cursor)")
            .await;
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

#[tokio::test]
async fn g3_nobody_takes_over_from_a_handler_that_is_slower_than_its_lease() {
    let (db, memory) = (fresh().await, Memory::new());
    let start = async || {
        let handler = each(&memory, |conn, msg| {
            Box::pin(async move {
                write(conn, msg).await.unwrap();
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
    within(secs(15), "all are settled", async || settled(&db.pool).await == 3).await;
    first.stop().await;
    second.stop().await;
    let seqs: Vec<_> = memory.all().iter().map(|seen| seen.message.seq).collect();
    assert_eq!(seqs, [1, 2, 3], "each was handled once");
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// Two workers on each partition, none of which knows of the other.
#[tokio::test]
async fn g3_outboxes_that_compete_for_the_same_partitions() {
    let ((db, outbox), memory) = (stage_and_producer().await, Memory::new());
    let mut handles = Vec::new();
    for is_batch in [false, true, false] {
        handles.push(working(db.pool.clone(), &memory, is_batch).await);
    }
    flow(&outbox, &db.pool, 100).await;
    eventually("all are settled", async || settled(&db.pool).await == 400).await;
    for handle in handles {
        handle.stop().await;
    }
    assert_exactly_once(&db.pool, 4, 100).await;
    assert_eq!(memory.all().len(), 400, "and none was handled in vain");
    db.remove().await;
}
