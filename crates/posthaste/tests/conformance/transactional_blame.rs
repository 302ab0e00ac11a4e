//! Transactional mode: who is given up, and when. Only a message that was tried and failed, never one beside it.

use posthaste::{HandlerResult, Partitions};

use crate::{
    cases::cases,
    dialect::Dialect,
    effects::{
        Dead, Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, reject, retry, send,
        stage_with, whole, writes,
    },
    fresh::Server,
    stage::{
        Memory, SOON, builder, eventually, fresh, leave_lease, millis, quick_retries, secs, settled, within,
    },
};

cases! {
    []:
        max_attempts_buries_the_guilty_message_and_the_others_are_tried_once,
        max_attempts_of_a_batch_handler_buries_the_guilty_message_and_no_other,
        the_attempts_of_a_batch_handlers_call_are_those_of_its_first_message,
        crashes_count_as_attempts_of_the_first_message_which_comes_alone,
        a_message_whose_tries_all_ended_in_crashes_is_buried_untried_and_the_others_go_on,
        a_handler_that_takes_longer_than_its_timeout_is_dropped_in_the_middle_of_its_statement,
        g10_a_message_that_hangs_in_the_middle_of_a_batch_is_buried_and_its_neighbours_are_not_hurt,
        g10_a_batch_that_hangs_for_one_message_buries_that_one,
        g10_a_statement_that_its_handler_gave_up_on_does_not_hold_the_partition,
        g14_a_stop_drops_a_handler_after_the_grace_period_without_effect_and_it_was_no_try,
        a_stop_between_two_messages_of_a_batch_keeps_what_is_done;
}

async fn max_attempts_buries_the_guilty_message_and_the_others_are_tried_once<S: Server>() {
    for limit in 1..=4_u32 {
        let (db, memory) = (stage_with::<S>(&["a", "b", "bad", "c", "bad", "d"]).await, Memory::new());
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

async fn max_attempts_of_a_batch_handler_buries_the_guilty_message_and_no_other<S: Server>() {
    for limit in 1..=3_u32 {
        for place in [0, 2, 4] {
            let mut payloads = ["x"; 5];
            payloads[place] = "bad";
            let (db, memory) = (stage_with::<S>(&payloads).await, Memory::new());
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

async fn the_attempts_of_a_batch_handlers_call_are_those_of_its_first_message<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x"; 3]).await, Memory::new());
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

async fn crashes_count_as_attempts_of_the_first_message_which_comes_alone<S: Server>() {
    for is_batch in [false, true] {
        let (db, memory) = (stage_with::<S>(&["x"; 5]).await, Memory::new());
        leave_lease(&db.pool, 3, -1000).await;
        let calls = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = std::sync::Arc::clone(&calls);
        let queue = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let queue = if is_batch {
            queue.batch_transactional(whole::<S::Db, _>(&memory, move |conn, msgs| {
                noted.lock().unwrap().push(msgs.len());
                Box::pin(async move {
                    for msg in msgs {
                        S::Db::write(conn, msg).await.unwrap();
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

async fn a_message_whose_tries_all_ended_in_crashes_is_buried_untried_and_the_others_go_on<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x"; 5]).await, Memory::new());
    leave_lease(&db.pool, 3, -1000).await;
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

async fn a_handler_that_takes_longer_than_its_timeout_is_dropped_in_the_middle_of_its_statement<S: Server>() {
    for is_per_queue in [false, true] {
        let (db, memory) = (stage_with::<S>(&["x", "y"]).await, Memory::new());
        let handler = each::<S::Db, _>(&memory, |conn, msg| {
            Box::pin(async move {
                S::Db::write(conn, msg).await.unwrap();
                if msg.payload == b"x" && msg.attempts == 0 {
                    S::Db::run(&mut *conn, S::Db::TAKES_A_MINUTE).await.ok();
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries());
        let handle = if is_per_queue {
            let outbox = outbox.handler_timeout(secs(60)).queue("q", Partitions::of(1));
            outbox.transactional(handler).handler_timeout(secs(3)).start().await
        } else {
            let outbox = outbox.handler_timeout(secs(3)).queue("q", Partitions::of(1));
            outbox.transactional(handler).start().await
        }
        .unwrap();
        memory.has(1).await;
        within(SOON, "the partition goes on", async || settled(&db.pool).await == 2).await;
        let seen = memory.all();
        assert_eq!(seen.iter().map(|seen| seen.message.seq).collect::<Vec<_>>(), [1, 1, 2]);
        assert_eq!(seen[1].message.attempts, 1);
        let waited = seen[1].at - seen[0].at;
        assert!(waited >= secs(3), "{waited:?}");
        assert_exactly_once(&db.pool, 1, 2).await;
        eventually("its session is gone", async || S::Db::running_for_a_minute(&db.pool).await.unwrap() == 0)
            .await;
        handle.stop().await;
        db.remove().await;
    }
}

async fn g10_a_message_that_hangs_in_the_middle_of_a_batch_is_buried_and_its_neighbours_are_not_hurt<
    S: Server,
>() {
    let (db, memory) = (stage_with::<S>(&["a", "b", "hang", "c"]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            S::Db::write(conn, msg).await.unwrap();
            if msg.payload == b"hang" {
                std::future::pending::<()>().await;
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle =
        outbox.transactional(handler).handler_timeout(secs(3)).max_attempts(2).start().await.unwrap();
    within(SOON, "all are settled", async || settled(&db.pool).await == 4).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 2, 4]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!((dead.len(), dead[0].seq, dead[0].attempts), (1, 3, 2));
    assert!(dead[0].reason.contains("took longer than its timeout of 3s"), "{}", dead[0].reason);
    assert!(memory.all().iter().all(|seen| seen.message.payload == b"hang" || seen.message.attempts == 0));
    db.remove().await;
}

async fn g10_a_batch_that_hangs_for_one_message_buries_that_one<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["a", "hang", "c"]).await, Memory::new());
    let handler = whole::<S::Db, _>(&memory, |conn, msgs| {
        Box::pin(async move {
            for msg in msgs {
                S::Db::write(conn, msg).await.unwrap();
                if msg.payload == b"hang" {
                    std::future::pending::<()>().await;
                }
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let outbox = outbox.batch_transactional(handler).handler_timeout(millis(700)).max_attempts(2);
    let handle = outbox.start().await.unwrap();
    within(SOON, "all are settled", async || settled(&db.pool).await == 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 3]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [2]);
    db.remove().await;
}

/// A statement that nobody waits for any more still runs, and holds the partition's lock.
async fn g10_a_statement_that_its_handler_gave_up_on_does_not_hold_the_partition<S: Server>() {
    for outcome in [HandlerResult::Success, retry("too slow"), reject("too slow")] {
        let (db, memory) = (stage_with::<S>(&["slow", "x"]).await, Memory::new());
        let handler = each::<S::Db, _>(&memory, move |conn, msg| {
            let outcome = outcome.clone();
            Box::pin(async move {
                S::Db::write(conn, msg).await.unwrap();
                if msg.payload == b"slow" && msg.attempts == 0 {
                    let sleep = S::Db::run(&mut *conn, S::Db::TAKES_A_MINUTE);
                    tokio::time::timeout(millis(100), sleep).await.unwrap_err();
                    return outcome;
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.transactional(handler).handler_timeout(millis(500)).start().await.unwrap();
        memory.has(1).await;
        within(SOON, "the partition goes on", async || settled(&db.pool).await == 2).await;
        handle.stop().await;
        assert_exactly_once(&db.pool, 1, 2).await;
        db.remove().await;
    }
}

async fn g14_a_stop_drops_a_handler_after_the_grace_period_without_effect_and_it_was_no_try<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x", "hang", "y"]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            S::Db::write(conn, msg).await.unwrap();
            if msg.payload == b"hang" {
                S::Db::run(&mut *conn, S::Db::TAKES_A_MINUTE).await.ok();
            }
            HandlerResult::Success
        })
    });
    let outbox = builder(&db).grace(millis(300)).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(1).start().await.unwrap();
    memory.has(2).await;
    // Not when its statement ends.
    tokio::time::timeout(SOON, handle.stop()).await.expect("stop drops the handler");
    assert!(effects(&db.pool).await.is_empty());
    let second = Memory::new();
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(writes(&second, |_, _| HandlerResult::Success)).start().await.unwrap();
    second.has_within(3, SOON).await;
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert!(second.all().iter().all(|seen| seen.message.attempts == 0));
    assert_exactly_once(&db.pool, 1, 3).await;
    db.remove().await;
}

async fn a_stop_between_two_messages_of_a_batch_keeps_what_is_done<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let turnstile = Turnstile::shut();
    let at_it = turnstile.clone();
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        let turnstile = at_it.clone();
        Box::pin(async move {
            turnstile.pass().await;
            S::Db::write(conn, msg).await.into()
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
