//! Transactional mode: who is given up, and when. Only a message that was tried and failed, never one beside it.

use posthaste::{HandlerResult, Partitions};

use super::{
    effects::{
        Dead, all_settled, assert_exactly_once, dead_letters, each, effects, reject, retry, run, send,
        stage_with, whole, write, writes,
    },
    stage::{Memory, builder, fresh, millis, quick_retries, secs, settled, within},
};

#[tokio::test]
async fn max_attempts_buries_the_guilty_message_and_the_others_are_tried_once() {
    for limit in 1..=4_u32 {
        let (db, memory) = (stage_with(&["a", "b", "bad", "c", "bad", "d"]).await, Memory::new());
        let handler = writes(&memory, |msg, _| match &*msg.payload {
            b"bad" => retry(&format!("try {}", msg.attempts)),
            _ => HandlerResult::Success,
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.transactional(handler).max_attempts(limit).start().await.unwrap();
        all_settled(&db.pool, 6).await;
        handle.stop().await;
        assert_eq!(effects(&db.pool).await, [1, 2, 4, 6]);
        let dead = |seq| Dead { seq, attempts: limit.cast_signed(), reason: format!("try {}", limit - 1) };
        assert_eq!(dead_letters(&db.pool).await, [dead(3), dead(5)]);
        let attempts = |good: bool| -> Vec<u32> {
            let seen = memory.all().into_iter().map(|seen| seen.message);
            seen.filter(|msg| (msg.payload != b"bad") == good).map(|msg| msg.attempts).collect()
        };
        assert_eq!(attempts(true), [0; 4]);
        assert_eq!(attempts(false), (0..limit).chain(0..limit).collect::<Vec<_>>());
        db.remove().await;
    }
}

#[tokio::test]
async fn max_attempts_of_a_batch_handler_buries_the_guilty_message_and_no_other() {
    for limit in 1..=3_u32 {
        for place in [0, 2, 4] {
            let mut payloads = ["x"; 5];
            payloads[place] = "bad";
            let (db, memory) = (stage_with(&payloads).await, Memory::new());
            let handler = writes(&memory, |msg, _| match &*msg.payload {
                b"bad" => retry("it is bad"),
                _ => HandlerResult::Success,
            });
            let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
            let handle = outbox.batch_transactional(handler).max_attempts(limit).start().await.unwrap();
            all_settled(&db.pool, 5).await;
            handle.stop().await;
            let bad = i64::try_from(place + 1).unwrap();
            let dead = dead_letters(&db.pool).await;
            let dead: Vec<_> = dead.iter().map(|dead| (dead.seq, &*dead.reason)).collect();
            assert_eq!(dead, [(bad, "it is bad")], "limit {limit}, place {place}");
            assert_eq!(effects(&db.pool).await, (1..=5).filter(|seq| *seq != bad).collect::<Vec<_>>());
            db.remove().await;
        }
    }
}

#[tokio::test]
async fn the_attempts_of_a_batch_handlers_call_are_those_of_its_first_message() {
    let (db, memory) = (stage_with(&["x"; 3]).await, Memory::new());
    let handler = writes(&memory, |msg, times| match (msg.seq, times) {
        (3, 1..=2) => retry("later"),
        _ => HandlerResult::Success,
    });
    let tuning = quick_retries().degradation_threshold(10);
    let outbox = builder(&db).processor_tuning(tuning).queue("q", Partitions::of(1));
    let handle = outbox.batch_transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    let seen: Vec<_> =
        memory.all().into_iter().map(|seen| (seen.message.seq, seen.message.attempts)).collect();
    assert_eq!(seen, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 0), (3, 0), (1, 2), (2, 0), (3, 0)]);
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

/// What a worker leaves that dies with its lease.
const CRASHED: &str = "INSERT INTO posthaste_cursor (reader, partition_id, epoch, processed_seq, attempts, owner, lease_until, lease_ms)
     SELECT reader, partition_id, epoch + 1, processed_seq, 3, gen_random_uuid(), now() - interval '1 s', 30000
     FROM posthaste_cursor ORDER BY epoch DESC LIMIT 1";

#[tokio::test]
async fn crashes_count_as_attempts_of_the_first_message_which_comes_alone() {
    for is_batch in [false, true] {
        let (db, memory) = (stage_with(&["x"; 5]).await, Memory::new());
        run(&db.pool, CRASHED).await;
        let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = std::sync::Arc::clone(&calls);
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let queue = if is_batch {
            queue.batch_transactional(whole(&memory, move |conn, msgs| {
                noted.lock().unwrap().push(msgs.len());
                Box::pin(async move {
                    for msg in msgs {
                        write(conn, msg).await.unwrap();
                    }
                    HandlerResult::Success
                })
            }))
        } else {
            queue.transactional(writes(&memory, |_, _| HandlerResult::Success))
        };
        let handle = queue.max_attempts(4).start().await.unwrap();
        all_settled(&db.pool, 5).await;
        handle.stop().await;
        let attempts: Vec<_> = memory.all().iter().map(|seen| seen.message.attempts).collect();
        assert_eq!(attempts, [3, 0, 0, 0, 0]);
        if is_batch {
            assert_eq!(*calls.lock().unwrap(), [1, 4]);
        }
        assert_exactly_once(&db.pool, 1, 5).await;
        db.remove().await;
    }
}

#[tokio::test]
async fn a_message_whose_tries_all_ended_in_crashes_is_buried_untried_and_the_others_go_on() {
    let (db, memory) = (stage_with(&["x"; 5]).await, Memory::new());
    run(&db.pool, CRASHED).await;
    let handler = writes(&memory, |_, _| HandlerResult::Success);
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(3).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [2, 3, 4, 5]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.len(), 1);
    assert!(dead[0].seq == 1 && dead[0].reason.contains("given up after 3 of 3"), "{dead:?}");
    db.remove().await;
}

#[tokio::test]
async fn a_handler_that_takes_longer_than_its_timeout_is_dropped_in_the_middle_of_its_statement() {
    for is_per_queue in [false, true] {
        let (db, memory) = (stage_with(&["x", "y"]).await, Memory::new());
        let handler = each(&memory, |conn, msg| {
            Box::pin(async move {
                write(conn, msg).await.unwrap();
                if msg.payload == b"x" && msg.attempts == 0 {
                    sqlx::query("SELECT pg_sleep(60)").execute(&mut *conn).await.ok();
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries());
        let handle = if is_per_queue {
            let outbox = outbox.handler_timeout(secs(60)).queue("q", Partitions::of(1));
            outbox.transactional(handler).handler_timeout(millis(400)).start().await
        } else {
            let outbox = outbox.handler_timeout(millis(400)).queue("q", Partitions::of(1));
            outbox.transactional(handler).start().await
        }
        .unwrap();
        memory.has(1).await;
        within(secs(4), "the partition goes on", async || settled(&db.pool).await == 2).await;
        let seen = memory.all();
        assert_eq!(seen.iter().map(|seen| seen.message.seq).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(seen[1].message.attempts, 1);
        let waited = seen[1].at - seen[0].at;
        assert!(waited >= millis(400) && waited < secs(2), "{waited:?}");
        assert_exactly_once(&db.pool, 1, 2).await;
        let asleep = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                      AND query LIKE 'SELECT pg_sleep%' AND state <> 'idle'";
        assert_eq!(super::stage::count(&db.pool, asleep).await, 0, "its session is gone");
        handle.stop().await;
        db.remove().await;
    }
}

#[tokio::test]
async fn g10_a_message_that_hangs_in_the_middle_of_a_batch_is_buried_and_its_neighbours_are_not_hurt() {
    let (db, memory) = (stage_with(&["a", "b", "hang", "c"]).await, Memory::new());
    let handler = each(&memory, |conn, msg| {
        Box::pin(async move {
            write(conn, msg).await.unwrap();
            if msg.payload == b"hang" {
                std::future::pending::<()>().await;
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle =
        outbox.transactional(handler).handler_timeout(millis(300)).max_attempts(2).start().await.unwrap();
    within(secs(5), "all are settled", async || settled(&db.pool).await == 4).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2, 4]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!((dead.len(), dead[0].seq, dead[0].attempts), (1, 3, 2));
    assert!(dead[0].reason.contains("took longer than its timeout of 300ms"), "{}", dead[0].reason);
    assert!(memory.all().iter().all(|seen| seen.message.payload == b"hang" || seen.message.attempts == 0));
    db.remove().await;
}

#[tokio::test]
async fn g10_a_batch_that_hangs_for_one_message_buries_that_one() {
    let (db, memory) = (stage_with(&["a", "hang", "c"]).await, Memory::new());
    let handler = whole(&memory, |conn, msgs| {
        Box::pin(async move {
            for msg in msgs {
                write(conn, msg).await.unwrap();
                if msg.payload == b"hang" {
                    std::future::pending::<()>().await;
                }
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let outbox = outbox.batch_transactional(handler).handler_timeout(millis(200)).max_attempts(2);
    let handle = outbox.start().await.unwrap();
    within(secs(6), "all are settled", async || settled(&db.pool).await == 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 3]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [2]);
    db.remove().await;
}

/// A statement that nobody waits for any more still runs, and holds the partition's lock.
#[tokio::test]
async fn g10_a_statement_that_its_handler_gave_up_on_does_not_hold_the_partition() {
    for outcome in [HandlerResult::Success, retry("too slow"), reject("too slow")] {
        let (db, memory) = (stage_with(&["slow", "x"]).await, Memory::new());
        let handler = each(&memory, move |conn, msg| {
            let outcome = outcome.clone();
            Box::pin(async move {
                write(conn, msg).await.unwrap();
                if msg.payload == b"slow" && msg.attempts == 0 {
                    let sleep = sqlx::query("SELECT pg_sleep(60)").execute(&mut *conn);
                    tokio::time::timeout(millis(100), sleep).await.unwrap_err();
                    return outcome;
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.transactional(handler).handler_timeout(millis(500)).start().await.unwrap();
        memory.has(1).await;
        within(secs(5), "the partition goes on", async || settled(&db.pool).await == 2).await;
        handle.stop().await;
        assert_exactly_once(&db.pool, 1, 2).await;
        db.remove().await;
    }
}

#[tokio::test]
async fn g14_a_stop_drops_a_handler_after_the_grace_period_without_effect_and_it_was_no_try() {
    let (db, memory) = (stage_with(&["x", "hang", "y"]).await, Memory::new());
    let handler = each(&memory, |conn, msg| {
        Box::pin(async move {
            write(conn, msg).await.unwrap();
            if msg.payload == b"hang" {
                sqlx::query("SELECT pg_sleep(60)").execute(&mut *conn).await.ok();
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).grace(millis(300)).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(1).start().await.unwrap();
    memory.has(2).await;
    let asked = tokio::time::Instant::now();
    handle.stop().await;
    assert!(asked.elapsed() < millis(1300), "{:?}", asked.elapsed());
    assert!(effects(&db.pool).await.is_empty());
    let second = Memory::new();
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(writes(&second, |_, _| HandlerResult::Success)).start().await.unwrap();
    second.has_within(3, secs(1)).await;
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert!(second.all().iter().all(|seen| seen.message.attempts == 0));
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

#[tokio::test]
async fn a_stop_between_two_messages_of_a_batch_keeps_what_is_done() {
    let (db, memory) = (fresh().await, Memory::new());
    let turnstile = super::effects::Turnstile::shut();
    let at_it = turnstile.clone();
    let handler = each(&memory, move |conn, msg| {
        let turnstile = at_it.clone();
        Box::pin(async move {
            turnstile.pass().await;
            write(conn, msg).await.into()
        })
    });
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    send(&handle.outbox(), &db.pool, &["x"; 5]).await;
    turnstile.let_pass(2);
    memory.has(3).await;
    let stopping = tokio::spawn(handle.stop());
    // The third one is under way when the process is told to stop, and may end; no other is begun.
    tokio::task::yield_now().await;
    turnstile.let_pass(1);
    stopping.await.unwrap();
    assert_eq!(effects(&db.pool).await, [1, 2, 3]);
    assert_eq!(memory.all().len(), 3);
    let second = Memory::new();
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(writes(&second, |_, _| HandlerResult::Success)).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_exactly_once(&db.pool, 1, 5).await;
    db.remove().await;
}
