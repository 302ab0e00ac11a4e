//! G3 where the server ends a handler's transaction by itself, or the handler does so without knowing; and what a handler
//! leaves behind in its session.

use std::sync::{Arc, Mutex};

use posthaste::{EnqueueMessage, HandlerResult, OutboxMessage, Partitions};
use sqlx::{Connection, MySql, MySqlConnection, MySqlPool};

use super::{Family, on_both};
use crate::{
    dialect::Dialect,
    effects::{Dead, Turnstile, all_settled, dead_letters, each, effects, reject, retry, send, whole},
    fresh::Fresh,
    modes::Mode,
    stage::{
        Memory, assert_consistent, builder, count, eventually, fresh, quick_retries, remember_links, run,
        texts,
    },
};

on_both! {
    []:
        success_after_a_swallowed_deadlock_is_a_retry_and_nothing_of_it_is_kept,
        a_retry_after_a_deadlock_is_recorded_with_its_reason,
        a_reject_after_a_deadlock_is_a_dead_letter_once,
        a_batch_handler_that_swallows_a_deadlock_is_retried_whole,
        a_lock_wait_that_took_too_long_undoes_a_statement_and_no_more,
        two_handlers_that_lock_each_others_rows_both_get_there,
        ddl_in_a_handler_is_retried_and_said_loudly,
        a_handler_that_switches_autocommit_on_is_retried_and_what_it_writes_then_is_never_half,
        what_a_handler_leaves_in_its_session_is_gone_in_the_next_slice,
        settling_works_in_whatever_session_a_handler_leaves;
}

/// What a handler did at the message that a deadlock is made for, each time it came.
type Tries = Arc<Mutex<u32>>;

/// Where a handler and the test meet.
#[derive(Clone)]
struct Crossing {
    reached: Turnstile,
    go: Turnstile,
    tries: Tries,
}

impl Crossing {
    fn new() -> Self {
        Self { reached: Turnstile::shut(), go: Turnstile::shut(), tries: Tries::default() }
    }

    /// The number of this try, from 1.
    fn try_again(&self) -> u32 {
        let mut tries = self.tries.lock().unwrap();
        *tries += 1;
        *tries
    }

    /// Locks a row, waits until somebody else waits for it, and asks for one that they have: the deadlock is resolved at
    /// the expense of who wrote less.
    async fn collide(&self, conn: &mut MySqlConnection) -> sqlx::Error {
        MySql::run(conn, "UPDATE accounts SET n = n + 1 WHERE id = 1").await.unwrap();
        self.reached.let_pass(1);
        self.go.pass().await;
        let error = MySql::run(conn, "UPDATE accounts SET n = n + 1 WHERE id = 2").await.unwrap_err();
        assert!(error.to_string().contains("Deadlock"), "{error}");
        error
    }

    /// The other side of it.
    async fn meet(&self, pool: &MySqlPool) {
        let mut rival = MySqlConnection::connect_with(&pool.connect_options()).await.unwrap();
        let heavy = "BEGIN; INSERT INTO ledger SELECT n, 0, 0 FROM numbers; UPDATE accounts SET n = n + 1 WHERE id = 2";
        MySql::run(&mut rival, heavy).await.unwrap();
        self.reached.pass().await;
        let waiting = tokio::spawn(async move {
            MySql::run(&mut rival, "UPDATE accounts SET n = n + 1 WHERE id = 1")
                .await
                .expect("it wrote more");
            MySql::run(&mut rival, "ROLLBACK").await.unwrap();
            rival.close().await.unwrap();
        });
        // Whoever of the two waits first: the other one's wait closes the circle.
        self.go.let_pass(1);
        waiting.await.unwrap();
    }
}

/// A database with rows to lock, that remembers the links of cursors.
async fn stage<S: Family>() -> Fresh<S> {
    let db = fresh::<S>().await;
    remember_links(&db).await;
    run(
        &db.pool,
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, n BIGINT NOT NULL) ENGINE = InnoDB;
         INSERT INTO accounts VALUES (1, 0), (2, 0);
         CREATE TABLE numbers (n BIGINT PRIMARY KEY) ENGINE = InnoDB",
    )
    .await;
    run(&db.pool, &format!("INSERT INTO numbers SELECT n FROM {} AS s", MySql::series(500))).await;
    crate::stage::register(&db, Partitions::of(1)).await;
    db
}

/// The reasons of all tries that failed.
async fn reasons(pool: &MySqlPool) -> Vec<String> {
    texts(pool, "SELECT DISTINCT last_error FROM links WHERE last_error IS NOT NULL").await
}

/// Three messages in a batch; at one of them, the first time it comes, a deadlock, and what the handler makes of it.
async fn collide_at<S: Family>(
    at: &'static str,
    answer: fn(sqlx::Error) -> HandlerResult,
    later: fn() -> HandlerResult,
) -> (Fresh<S>, Memory) {
    let (db, memory, crossing) = (stage::<S>().await, Memory::new(), Crossing::new());
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    send(&outbox, &db.pool, &["first", "second", "third"]).await;
    let there = crossing.clone();
    let handler = each::<MySql, _>(&memory, move |conn, msg| {
        let crossing = there.clone();
        Box::pin(async move {
            MySql::write(conn, msg).await.unwrap();
            if msg.payload != at.as_bytes() {
                return HandlerResult::Success;
            }
            if crossing.try_again() > 1 {
                return later();
            }
            let error = crossing.collide(conn).await;
            // Not knowing what happened, it goes on: with this it would be alone in another transaction.
            MySql::write(conn, msg).await.unwrap();
            MySql::run(conn, "INSERT INTO accounts VALUES (3, 0)").await.unwrap();
            answer(error)
        })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.transactional(handler).start().await.unwrap();
    crossing.meet(&db.pool).await;
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(
        count(&db.pool, "SELECT count(*) FROM accounts WHERE id = 3").await,
        0,
        "written after the deadlock"
    );
    assert_eq!(count(&db.pool, "SELECT sum(n) FROM accounts").await, 0, "written before it");
    assert_consistent(&db.pool).await;
    Mode::Transactional.assert_effects(&db.pool).await;
    (db, memory)
}

async fn success_after_a_swallowed_deadlock_is_a_retry_and_nothing_of_it_is_kept<S: Family>() {
    for at in ["first", "second", "third"] {
        let (db, memory) = collide_at::<S>(at, |_| HandlerResult::Success, || HandlerResult::Success).await;
        assert_eq!(effects(&db.pool).await, [1, 2, 3], "{at}: each exactly once");
        assert_eq!(dead_letters(&db.pool).await, []);
        let reasons = reasons(&db.pool).await;
        assert!(reasons.len() == 1 && reasons[0].contains("deadlock"), "{at}: {reasons:?}");
        // What had been done before in the same transaction comes again.
        assert!(
            memory.payloads().iter().filter(|text| *text == "first").count() == 2,
            "{:?}",
            memory.payloads()
        );
        db.remove().await;
    }
}

async fn a_retry_after_a_deadlock_is_recorded_with_its_reason<S: Family>() {
    for at in ["first", "third"] {
        let (db, _) = collide_at::<S>(at, |error| retry(&error.to_string()), || HandlerResult::Success).await;
        assert_eq!(effects(&db.pool).await, [1, 2, 3], "{at}: each exactly once");
        assert_eq!(dead_letters(&db.pool).await, []);
        let reasons = reasons(&db.pool).await;
        assert!(reasons.len() == 1 && reasons[0].contains("Deadlock found"), "{at}: {reasons:?}");
        db.remove().await;
    }
}

async fn a_reject_after_a_deadlock_is_a_dead_letter_once<S: Family>() {
    for (at, seq) in [("first", 1), ("second", 2)] {
        let (db, _) = collide_at::<S>(at, |_| reject("no good"), || reject("no good")).await;
        let dead = dead_letters(&db.pool).await;
        let [Dead { seq: buried, reason, .. }] = &dead[..] else { panic!("{at}: {dead:?}") };
        assert!(*buried == seq && reason.starts_with("no good"), "{at}: {dead:?}");
        let others: Vec<_> = (1..=3).filter(|other| *other != seq).collect();
        assert_eq!(effects(&db.pool).await, others, "{at}: each exactly once");
        db.remove().await;
    }
}

async fn a_batch_handler_that_swallows_a_deadlock_is_retried_whole<S: Family>() {
    let (db, memory, crossing) = (stage::<S>().await, Memory::new(), Crossing::new());
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    send(&outbox, &db.pool, &["first", "second", "third"]).await;
    let there = crossing.clone();
    let handler = whole::<MySql, _>(&memory, move |conn, msgs| {
        let crossing = there.clone();
        Box::pin(async move {
            MySql::write(conn, &msgs[0]).await.unwrap();
            if crossing.try_again() == 1 {
                crossing.collide(conn).await;
            }
            MySql::write_effects(conn, &msgs[1..], true).await.ok();
            HandlerResult::Success
        })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.batch_transactional(handler).start().await.unwrap();
    crossing.meet(&db.pool).await;
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2, 3], "each exactly once");
    Mode::Batch.assert_effects(&db.pool).await;
    db.remove().await;
}

/// Only the statement is undone, so the transaction is whole, and the handler may go on.
async fn a_lock_wait_that_took_too_long_undoes_a_statement_and_no_more<S: Family>() {
    type Answer = fn(String) -> HandlerResult;
    let answers: [(Answer, &[i64], usize, usize); 3] = [
        (|_| HandlerResult::Success, &[1, 2, 3], 0, 0),
        (|error| retry(&error), &[1, 2, 3], 1, 0),
        (|error| reject(&error), &[1, 3], 0, 1),
    ];
    for (answer, seqs, retries, dead) in answers {
        let (db, memory, tries) = (stage::<S>().await, Memory::new(), Crossing::new());
        let mut rival = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
        MySql::run(&mut rival, "BEGIN; UPDATE accounts SET n = 7 WHERE id = 2").await.unwrap();
        let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
        send(&outbox, &db.pool, &["first", "second", "third"]).await;
        let handler = each::<MySql, _>(&memory, move |conn, msg| {
            let tries = tries.clone();
            Box::pin(async move {
                MySql::write(conn, msg).await.unwrap();
                if msg.payload != b"second" || tries.try_again() > 1 {
                    return HandlerResult::Success;
                }
                MySql::run(conn, "SET SESSION innodb_lock_wait_timeout = 1").await.unwrap();
                let error = MySql::run(conn, "UPDATE accounts SET n = n + 1 WHERE id = 2").await.unwrap_err();
                assert!(error.to_string().contains("1205"), "{error}");
                answer(error.to_string())
            })
        });
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = queue.transactional(handler).start().await.unwrap();
        all_settled(&db.pool, 3).await;
        handle.stop().await;
        MySql::run(&mut rival, "ROLLBACK").await.unwrap();
        rival.close().await.unwrap();
        assert_eq!(effects(&db.pool).await, seqs);
        let reasons = reasons(&db.pool).await;
        assert!(reasons.len() == retries && reasons.iter().all(|why| why.contains("1205")), "{reasons:?}");
        assert_eq!(dead_letters(&db.pool).await.len(), dead);
        assert_eq!(memory.payloads()[0], "first");
        assert_eq!(
            memory.payloads().iter().filter(|text| *text == "first").count(),
            1,
            "what was done stays done"
        );
        Mode::Transactional.assert_effects(&db.pool).await;
        db.remove().await;
    }
}

async fn two_handlers_that_lock_each_others_rows_both_get_there<S: Family>() {
    let (db, memory) = (stage::<S>().await, Memory::new());
    let handler = |memory: &Memory| {
        each::<MySql, _>(memory, |conn, msg| {
            Box::pin(async move {
                let rows = if &*msg.queue == "q" { [1, 2] } else { [2, 1] };
                for row in rows {
                    let sql = format!("UPDATE accounts SET n = n + 1 WHERE id = {row}");
                    if let Err(error) = MySql::run(conn, &sql).await {
                        return retry(&error.to_string());
                    }
                }
                MySql::write(conn, msg).await.into()
            })
        })
    };
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .transactional(handler(&memory))
        .queue("r", Partitions::of(1))
        .transactional(handler(&memory))
        .start()
        .await
        .unwrap();
    for _ in 0..50 {
        for queue in ["q", "r"] {
            handle.outbox().enqueue(&db.pool, queue, EnqueueMessage::new("x")).await.unwrap();
        }
    }
    eventually("all is settled", async || crate::stage::settled(&db.pool).await == 100).await;
    handle.stop().await;
    assert_eq!(count(&db.pool, "SELECT sum(n) FROM accounts").await, 200, "each once");
    Mode::Transactional.assert_effects(&db.pool).await;
    db.remove().await;
}

/// It commits what was written before, which nothing can undo: so it is said, and the message comes again.
async fn ddl_in_a_handler_is_retried_and_said_loudly<S: Family>() {
    let ddl = [
        "CREATE TABLE side (n INT)",
        "ALTER TABLE accounts ADD COLUMN m INT",
        "TRUNCATE TABLE numbers",
        "LOCK TABLES accounts WRITE",
    ];
    for statement in ddl {
        let (db, memory, tries) = (stage::<S>().await, Memory::new(), Crossing::new());
        let handler = each::<MySql, _>(&memory, move |conn, msg| {
            let tries = tries.clone();
            Box::pin(async move {
                if tries.try_again() == 1 {
                    MySql::run(conn, statement).await.unwrap();
                    // After it, in another transaction, which is undone.
                    MySql::write(conn, msg).await.ok();
                    return HandlerResult::Success;
                }
                MySql::write(conn, msg).await.into()
            })
        });
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = queue.transactional(handler).start().await.unwrap();
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        all_settled(&db.pool, 1).await;
        handle.stop().await;
        let reasons = reasons(&db.pool).await;
        assert!(
            reasons.len() == 1 && reasons[0].contains("ended the transaction"),
            "{statement}: {reasons:?}"
        );
        assert_eq!(effects(&db.pool).await, [1], "{statement}");
        Mode::Transactional.assert_effects(&db.pool).await;
        db.remove().await;
    }
}

/// To switch it on commits, as DDL does; what follows commits by itself. Neither is part of the settlement, which says so.
async fn a_handler_that_switches_autocommit_on_is_retried_and_what_it_writes_then_is_never_half<S: Family>() {
    let (db, memory, tries) = (stage::<S>().await, Memory::new(), Crossing::new());
    let handler = each::<MySql, _>(&memory, move |conn, msg| {
        let tries = tries.clone();
        Box::pin(async move {
            if tries.try_again() == 1 {
                MySql::run(conn, "SET autocommit = 1").await.unwrap();
                return HandlerResult::Success;
            }
            MySql::write(conn, msg).await.into()
        })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.transactional(handler).start().await.unwrap();
    for _ in 0..5 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    }
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    let reasons = reasons(&db.pool).await;
    assert!(reasons.len() == 1 && reasons[0].contains("ended the transaction"), "{reasons:?}");
    assert_eq!(effects(&db.pool).await, [1, 2, 3, 4, 5]);
    Mode::Transactional.assert_effects(&db.pool).await;
    db.remove().await;
}

/// What a session has that a fresh one has not.
async fn traces(conn: &mut MySqlConnection) -> Vec<String> {
    let sql = "SELECT concat_ws(' ', coalesce(@left, 'unset'), database() = 'information_schema', @@session.sql_mode,
                               @@session.time_zone, @@session.sql_select_limit = 3, @@session.character_set_results,
                               is_used_lock('left') = connection_id(), @@session.innodb_lock_wait_timeout)";
    let mut found: Vec<_> = MySql::texts(conn, sql).await.unwrap().into_iter().flatten().collect();
    if MySql::run(conn, "SELECT * FROM temporary_things").await.is_ok() {
        found.push("a temporary table".to_owned());
    }
    found
}

async fn what_a_handler_leaves_in_its_session_is_gone_in_the_next_slice<S: Family>() {
    let (db, memory) = (stage::<S>().await, Memory::new());
    let found = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&found);
    let handler = each::<MySql, _>(&memory, move |conn, msg| {
        let noted = Arc::clone(&noted);
        Box::pin(async move {
            let before = traces(conn).await;
            noted.lock().unwrap().push(before);
            MySql::write(conn, msg).await.unwrap();
            // Without any of these it would be a bare savepoint that is tested.
            let leave = "SET @left = 'here'; CREATE TEMPORARY TABLE temporary_things (n INT);
                         SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES', time_zone = '+05:30', sql_select_limit = 3,
                             innodb_lock_wait_timeout = 7;
                         SET NAMES latin1; DO get_lock('left', 0); USE information_schema";
            MySql::run(conn, leave).await.unwrap();
            HandlerResult::Success
        })
    });
    let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = queue.transactional(handler).start().await.unwrap();
    for n in 1..=3 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
        all_settled(&db.pool, n).await;
        // The lock goes with the session.
        eventually("the session ends", async || count(&db.pool, "SELECT is_free_lock('left')").await == 1)
            .await;
    }
    handle.stop().await;
    let found = found.lock().unwrap().clone();
    assert_eq!(found.len(), 3);
    assert!(found[0][0].starts_with("unset 0 "), "{found:?}");
    assert!(found.iter().all(|traces| *traces == found[0]), "{found:?}");
    assert_eq!(effects(&db.pool).await, [1, 2, 3]);
    db.remove().await;
}

const KEY: &str = "clé \u{1f511} ключ";

/// A batch is settled, the next one read and dead letters are written in the handler's session.
async fn settling_works_in_whatever_session_a_handler_leaves<S: Family>() {
    let sessions = [
        "SET NAMES latin1",
        "SET NAMES utf8mb3",
        "SET character_set_results = NULL, character_set_connection = cp1251",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,PAD_CHAR_TO_FULL_LENGTH'",
        "SET SESSION sql_mode = '', sql_safe_updates = 1, sql_select_limit = 1",
        "SET SESSION time_zone = '+05:30', lock_wait_timeout = 1, innodb_lock_wait_timeout = 1",
        "USE information_schema",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET SESSION TRANSACTION READ ONLY",
    ];
    let (db, memory) = (stage::<S>().await, Memory::new());
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    let sql = Arc::new(Mutex::new(""));
    let left = Arc::clone(&sql);
    let handler = each::<MySql, _>(&memory, move |conn, msg| {
        let left = *left.lock().unwrap();
        Box::pin(async move {
            let effect = format!(
                "INSERT INTO {}.effects VALUES ({}, {}, {})",
                String::from_utf8_lossy(&msg.payload),
                msg.id,
                msg.partition_id,
                msg.seq
            );
            MySql::run(conn, &effect).await.unwrap();
            MySql::run(conn, left).await.unwrap();
            if msg.seq % 5 == 0 { reject(&format!("no: {KEY}")) } else { HandlerResult::Success }
        })
    });
    let tuning = quick_retries().batch_size(3);
    let queue = builder(&db).processor_tuning(tuning).queue("q", Partitions::of(1));
    let handle = queue.transactional(handler).start().await.unwrap();
    let database = texts(&db.pool, "SELECT database()").await.remove(0);
    let mut total = 0;
    for session in sessions {
        *sql.lock().unwrap() = session;
        // A backlog, so that one batch reads the next.
        let message = EnqueueMessage::new(database.clone()).key(KEY).header("h", KEY).payload_type("t");
        outbox.enqueue_batch(&db.pool, "q", &vec![message; 20]).await.unwrap();
        total += 20;
        all_settled(&db.pool, total).await;
        assert_eq!(reasons(&db.pool).await, Vec::<String>::new(), "{session}");
        for seen in memory.all() {
            let OutboxMessage { key, headers, payload_type, .. } = &seen.message;
            assert_eq!(key.as_deref(), Some(KEY), "{session}");
            assert_eq!(headers[..], [("h".to_owned(), KEY.to_owned())], "{session}");
            assert_eq!(payload_type, "t");
        }
        let dead = dead_letters(&db.pool).await;
        assert!(dead.iter().all(|dead| dead.reason == format!("no: {KEY}")), "{session}: {dead:?}");
        assert_eq!(i64::try_from(dead.len()).unwrap(), total / 5, "{session}");
    }
    handle.stop().await;
    assert_consistent(&db.pool).await;
    Mode::Transactional.assert_effects(&db.pool).await;
    db.remove().await;
}
