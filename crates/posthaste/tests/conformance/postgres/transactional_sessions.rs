//! Transactional mode: what a handler may leave in its session, and the settings that it works under.

use std::sync::{Arc, Mutex};

use posthaste::{HandlerResult, Partitions};
use sqlx::PgConnection;

use super::{count, fresh};
use crate::{
    dialect::Dialect,
    effects::{all_settled, assert_exactly_once, each, send, stage_with, whole},
    fresh::servers::Postgres,
    stage::{Memory, builder, eventually, millis, quick_retries, run, secs},
};

/// Everything that a session can keep from one transaction to the next.
const LEAVE_BEHIND: &str = "SET search_path = nowhere; SET statement_timeout = '7s'; SET work_mem = '1234kB'; \
     SET LOCAL lock_timeout = '7s'; SET my.tenant = '7'; SET TIME ZONE 'Asia/Tokyo'; \
     SET default_transaction_read_only = on; SET default_transaction_isolation = 'serializable'; \
     CREATE TEMP TABLE leftover (n INT); SELECT pg_advisory_lock(4711); PREPARE leftover AS SELECT 1; \
     DECLARE leftover CURSOR WITH HOLD FOR SELECT 1; SET ROLE pg_read_all_data";

/// What a handler sees of its session: what was set, then what else was left there.
async fn look_around(conn: &mut PgConnection) -> (String, String) {
    let set = "SELECT concat_ws(' ', current_setting('search_path'), current_user, session_user,
         current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('work_mem'),
         nullif(current_setting('my.tenant', true), ''), current_setting('timezone'),
         current_setting('transaction_read_only'), current_setting('transaction_isolation'),
         current_setting('default_transaction_read_only'), current_setting('default_transaction_isolation'),
         to_regclass('pg_temp.leftover'))";
    let left = "SELECT concat_ws(' ', pg_backend_pid(),
         (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
         (SELECT count(*) FROM pg_prepared_statements WHERE from_sql),
         (SELECT count(*) FROM pg_cursors WHERE name = 'leftover'))";
    let set = sqlx::query_scalar(set).persistent(false).fetch_one(&mut *conn).await.unwrap();
    (set, sqlx::query_scalar(left).persistent(false).fetch_one(conn).await.unwrap())
}

#[tokio::test]
async fn what_a_handler_leaves_in_its_session_reaches_no_later_transaction_of_any_queue() {
    let (db, memory) = (fresh().await, Memory::new());
    let looks = Arc::new(Mutex::new(Vec::new()));
    let handler = || {
        let looks = Arc::clone(&looks);
        each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
            let looks = Arc::clone(&looks);
            Box::pin(async move {
                let look = look_around(conn).await;
                looks.lock().unwrap().push(look);
                if msg.payload == b"dirty" {
                    sqlx::raw_sql(LEAVE_BEHIND).execute(&mut *conn).await.unwrap();
                }
                HandlerResult::Success
            })
        })
    };
    // One processor, so that both queues take turns on one connection.
    let handle = builder(&db)
        .processors(1)
        .queue("q", Partitions::of(1))
        .transactional(handler())
        .queue("other", Partitions::of(1))
        .transactional(handler())
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let mut sent = 0;
    for (queue, payload) in [
        ("q", "clean"),
        ("q", "dirty"),
        ("q", "dirty"),
        ("other", "dirty"),
        ("q", "clean"),
        ("other", "clean"),
    ] {
        outbox.enqueue(&db.pool, queue, posthaste::EnqueueMessage::new(payload)).await.unwrap();
        sent += 1;
        all_settled(&db.pool, sent).await;
    }
    // Batch upon batch under one lease, where the connection is not given back in between.
    let mut payloads = ["clean"; 30];
    payloads.iter_mut().step_by(10).for_each(|payload| *payload = "dirty");
    send(&outbox, &db.pool, &payloads).await;
    all_settled(&db.pool, sent + 30).await;
    handle.stop().await;
    let looks = looks.lock().unwrap().clone();
    // The first of each transaction: all of the single ones, and every tenth of the others.
    let first = &looks[0];
    let begins: Vec<_> = looks[..6].iter().chain(looks[6..].iter().step_by(10)).collect();
    assert!(begins.iter().all(|look| *look == first), "{begins:#?}");
    db.remove().await;
}

/// It ends with the transaction behind the one that began it: that is how the server does it.
#[tokio::test]
async fn what_a_handler_listens_to_is_not_listened_to_for_long() {
    let (db, memory) = (fresh().await, Memory::new());
    let looks = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&looks);
    let handler = each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
        let looks = Arc::clone(&noted);
        Box::pin(async move {
            let sql = "SELECT count(*) FROM pg_listening_channels()";
            let channels: i64 = sqlx::query_scalar(sql).fetch_one(&mut *conn).await.unwrap();
            looks.lock().unwrap().push(channels);
            if msg.payload == b"dirty" {
                sqlx::raw_sql("LISTEN leftover").execute(&mut *conn).await.unwrap();
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processors(1).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    for (n, payload) in (1..).zip(["dirty", "clean", "dirty", "clean"]) {
        send(&handle.outbox(), &db.pool, &[payload]).await;
        all_settled(&db.pool, n).await;
        // The connection is given back once there is nothing left.
        let listens = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                       AND application_name LIKE '%posthaste' AND query LIKE '%DISCARD SEQUENCES%'";
        eventually("it is given back", async || count(&db.pool, listens).await == 1).await;
    }
    handle.stop().await;
    assert_eq!(*looks.lock().unwrap(), [0; 4]);
    db.remove().await;
}

#[tokio::test]
async fn what_a_handler_sets_reaches_no_later_message_of_its_batch() {
    let (db, memory) =
        (stage_with::<Postgres>(&["clean", "dirty", "clean", "dirty", "clean"]).await, Memory::new());
    let looks = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&looks);
    let handler = each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
        let looks = Arc::clone(&noted);
        Box::pin(async move {
            let look = look_around(conn).await.0;
            looks.lock().unwrap().push(look);
            sqlx::Postgres::write(conn, msg).await.unwrap();
            if msg.payload == b"dirty" {
                let sql = "SET search_path = nowhere; SET work_mem = '1234kB'; SET LOCAL my.tenant = '7'; \
                     CREATE TEMP TABLE leftover (n INT); SET TRANSACTION READ ONLY; SET LOCAL ROLE pg_read_all_data; \
                     SET LOCAL lock_timeout = 1; SET LOCAL statement_timeout = '500ms'";
                sqlx::raw_sql(sql).execute(&mut *conn).await.unwrap();
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(1).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    let looks = looks.lock().unwrap().clone();
    assert!(looks.iter().all(|look| *look == looks[0]), "{looks:#?}");
    assert_exactly_once(&db.pool, 1, 5).await;
    db.remove().await;
}

/// The settlement takes a while, waits for a lock, and needs the rights of whoever connected.
#[tokio::test]
async fn g10_no_setting_of_a_handler_hinders_the_settlement() {
    let settings = [
        "SET TRANSACTION READ ONLY",
        "SET LOCAL statement_timeout = '500ms'",
        "SET statement_timeout = '500ms'",
        "SET LOCAL lock_timeout = 1",
        "SET LOCAL ROLE pg_read_all_data",
        "SET SESSION AUTHORIZATION pg_read_all_data",
        "SET LOCAL search_path = nowhere",
        "SET LOCAL session_replication_role = replica",
        "SET LOCAL row_security = off",
    ];
    for (sql, is_batch) in settings.into_iter().zip([false, true].into_iter().cycle()) {
        let (db, memory) = (stage_with::<Postgres>(&["x", "x"]).await, Memory::new());
        run(
            &db.pool,
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                     PERFORM pg_advisory_lock_shared(4711);
                     PERFORM pg_sleep(0.02);
                     PERFORM pg_advisory_unlock_shared(4711);
                     RETURN NEW;
                 END $$;
                 CREATE TRIGGER slow BEFORE INSERT ON posthaste_cursor
                 FOR EACH ROW WHEN (NEW.processed_seq > 0) EXECUTE FUNCTION slow();
                 ALTER TABLE posthaste_cursor ENABLE ALWAYS TRIGGER slow",
        )
        .await;
        let mut held = db.pool.acquire().await.unwrap();
        sqlx::raw_sql("SELECT pg_advisory_lock(4711)").execute(&mut *held).await.unwrap();
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let queue = if is_batch {
            queue.batch_transactional(whole::<sqlx::Postgres, _>(&memory, move |conn, msgs| {
                Box::pin(async move {
                    for msg in msgs {
                        sqlx::Postgres::write(conn, msg).await.unwrap();
                    }
                    sqlx::raw_sql(sql).execute(&mut *conn).await.unwrap();
                    HandlerResult::Success
                })
            }))
        } else {
            queue.transactional(each::<sqlx::Postgres, _>(&memory, move |conn, msg| {
                Box::pin(async move {
                    sqlx::Postgres::write(conn, msg).await.unwrap();
                    sqlx::raw_sql(sql).execute(&mut *conn).await.unwrap();
                    HandlerResult::Success
                })
            }))
        };
        let handle = queue.start().await.unwrap();
        let waits =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
                         AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        memory.has(2).await;
        eventually("the settlement waits", async || count(&db.pool, waits).await > 0).await;
        // Longer than the handler would have allowed it.
        tokio::time::sleep(millis(if sql.contains("statement_timeout") { 700 } else { 20 })).await;
        sqlx::raw_sql("SELECT pg_advisory_unlock(4711)").execute(&mut *held).await.unwrap();
        all_settled(&db.pool, 2).await;
        handle.stop().await;
        assert_eq!(memory.all().len(), 2, "{sql}: each succeeded at once");
        assert_exactly_once(&db.pool, 1, 2).await;
        drop(held);
        db.remove().await;
    }
}

#[tokio::test]
async fn a_handlers_statements_are_planned_as_its_role_is_used_to() {
    let (db, memory) = (stage_with::<Postgres>(&["x"; 3]).await, Memory::new());
    run(
        &db.pool,
        "DO $$ BEGIN
             EXECUTE format('ALTER DATABASE %I SET lock_timeout = ''7s''', current_database());
             EXECUTE format('ALTER DATABASE %I SET enable_nestloop = off', current_database());
         END $$",
    )
    .await;
    let looks = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&looks);
    let handler = each::<sqlx::Postgres, _>(&memory, move |conn, _| {
        let looks = Arc::clone(&noted);
        Box::pin(async move {
            let sql = "SELECT string_agg(name || ' ' || setting, ', ' ORDER BY name) FROM pg_settings WHERE name IN
                       ('enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin', 'enable_nestloop',
                        'jit', 'plan_cache_mode', 'lock_timeout', 'synchronous_commit')";
            let look: String = sqlx::query_scalar(sql).fetch_one(conn).await.unwrap();
            looks.lock().unwrap().push(look);
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    send(&handle.outbox(), &db.pool, &["x"]).await;
    all_settled(&db.pool, 4).await;
    handle.stop().await;
    let usual = "enable_bitmapscan on, enable_hashjoin on, enable_mergejoin on, enable_nestloop off, enable_seqscan on, \
                 jit on, lock_timeout 7000, plan_cache_mode auto, synchronous_commit on";
    assert_eq!(*looks.lock().unwrap(), [usual; 4]);
    db.remove().await;
}

/// However the process freezes, between statements, in one, or while it should read an answer: the server gives up.
#[tokio::test]
async fn the_server_waits_for_a_handler_no_longer_than_its_lease_or_its_timeout_and_a_second() {
    for (lease, timeout, expected) in [(secs(7), secs(3), "8000"), (secs(7), secs(30), "31000")] {
        let (db, memory) = (stage_with::<Postgres>(&["x"; 2]).await, Memory::new());
        let looks = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&looks);
        let handler = each::<sqlx::Postgres, _>(&memory, move |conn, _| {
            let looks = Arc::clone(&noted);
            Box::pin(async move {
                let sql = "SELECT array_agg(DISTINCT setting) FROM pg_settings WHERE name IN
                           ('statement_timeout', 'idle_in_transaction_session_timeout', 'tcp_user_timeout')";
                let look: Vec<String> = sqlx::query_scalar(sql).fetch_one(conn).await.unwrap();
                looks.lock().unwrap().extend(look);
                HandlerResult::Success
            })
        });
        let queue = builder(&db).queue("q", Partitions::of(1)).transactional(handler);
        let lease = posthaste::LeaseConfig::of(lease);
        let handle = queue.lease(lease).handler_timeout(timeout).start().await.unwrap();
        all_settled(&db.pool, 2).await;
        handle.stop().await;
        assert_eq!(*looks.lock().unwrap(), [expected; 2], "all three, for each message");
        db.remove().await;
    }
}
