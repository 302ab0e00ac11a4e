//! Transactional mode: what a handler writes and what becomes of its messages is one thing.

use posthaste::{EnqueueMessage, HandlerResult, Outbox, Partitions, Target};

use crate::{
    cases::cases,
    dialect::Dialect,
    effects::{
        Dead, Turnstile, all_settled, assert_exactly_once, dead_letters, each, effects, reject, retry, send,
        stage_with, whole, writes,
    },
    fresh::Server,
    stage::{Memory, builder, count, eventually, fresh, quick_retries, register, run},
};

cases! {
    []:
        a_retry_at_any_place_of_a_batch_keeps_what_succeeded_before_it_and_comes_first_next_time,
        a_batch_handlers_retry_at_any_place_undoes_the_whole_call_and_nothing_else,
        a_reject_at_any_place_of_a_batch_buries_that_message_without_effect_and_the_others_go_on,
        several_rejects_in_one_batch_bury_each_with_its_reason,
        a_batch_handlers_reject_buries_the_whole_call_without_effect,
        a_sql_error_that_the_handler_swallows_keeps_no_outcome_from_being_recorded,
        a_sql_error_that_a_batch_handler_swallows_keeps_no_outcome_from_being_recorded,
        a_sql_error_that_the_handler_returns_is_a_retry_with_its_text,
        a_deadlock_between_two_partitions_is_a_retry_of_one_and_both_have_their_effect
            except(sqlite = "one writer at a time is its nature: there are no two to wait for each other"),
        a_panic_in_the_middle_of_a_batch_undoes_its_message_and_keeps_those_before_it,
        g2_what_a_handler_enqueues_on_its_connection_is_delivered_if_and_only_if_its_effects_are_kept,
        a_follow_up_is_not_seen_before_its_transaction_commits
            except(sqlite = "one writer at a time is its nature: nobody enqueues beside an open transaction");
}

/// A statement that fails, with this name in the error's text.
const FAILS: &str = "SELECT * FROM nowhere";

const FIVE: [&str; 5] = ["0", "1", "2", "3", "4"];

/// Five messages, of which the one at this place has another payload.
fn five_with(place: usize, payload: &'static str) -> [&'static str; 5] {
    let mut payloads = FIVE;
    payloads[place] = payload;
    payloads
}

fn seqs(memory: &Memory) -> Vec<i64> {
    memory.all().iter().map(|seen| seen.message.seq).collect()
}

async fn a_retry_at_any_place_of_a_batch_keeps_what_succeeded_before_it_and_comes_first_next_time<
    S: Server,
>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = writes(&memory, |msg, times| {
        if msg.payload == b"bad" && times < 3 { retry("later") } else { HandlerResult::Success }
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .transactional(handler)
        .start()
        .await
        .unwrap();
    let mut expected = Vec::new();
    for place in 0..5 {
        send(&handle.outbox(), &db.pool, &five_with(place, "bad")).await;
        let first = i64::try_from(place).unwrap();
        all_settled(&db.pool, (first + 1) * 5).await;
        // Up to it, it alone is seen again and again, then those behind it.
        let seqs = (0..=first).chain([first; 2]).chain(first + 1..5);
        expected.extend(seqs.map(|n| first * 5 + n + 1));
    }
    handle.stop().await;
    assert_eq!(seqs(&memory), expected);
    assert_exactly_once(&db.pool, 1, 25).await;
    db.remove().await;
}

async fn a_batch_handlers_retry_at_any_place_undoes_the_whole_call_and_nothing_else<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = writes(&memory, |msg, times| {
        if msg.payload == b"bad" && times == 1 { retry("later") } else { HandlerResult::Success }
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .batch_transactional(handler)
        .start()
        .await
        .unwrap();
    let mut expected = Vec::new();
    for place in 0..5 {
        send(&handle.outbox(), &db.pool, &five_with(place, "bad")).await;
        let first = i64::try_from(place).unwrap();
        all_settled(&db.pool, (first + 1) * 5).await;
        expected.extend((0..=first).chain(0..5).map(|n| first * 5 + n + 1));
    }
    handle.stop().await;
    assert_eq!(seqs(&memory), expected);
    assert_exactly_once(&db.pool, 1, 25).await;
    db.remove().await;
}

async fn a_reject_at_any_place_of_a_batch_buries_that_message_without_effect_and_the_others_go_on<
    S: Server,
>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler =
        writes(
            &memory,
            |msg, _| if msg.payload == b"bad" { reject("it is bad") } else { HandlerResult::Success },
        );
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .transactional(handler)
        .start()
        .await
        .unwrap();
    let (mut dead, mut good) = (Vec::new(), Vec::new());
    for place in 0..5 {
        send(&handle.outbox(), &db.pool, &five_with(place, "bad")).await;
        let first = i64::try_from(place).unwrap();
        all_settled(&db.pool, (first + 1) * 5).await;
        good.extend((0..5).filter(|n| *n != first).map(|n| first * 5 + n + 1));
        dead.push(Dead { seq: first * 6 + 1, attempts: 1, reason: "it is bad".to_owned() });
    }
    handle.stop().await;
    assert_eq!(seqs(&memory), (1..=25).collect::<Vec<_>>(), "each is tried once, in order");
    assert_eq!(effects(&db.pool).await, good);
    assert_eq!(dead_letters(&db.pool).await, dead);
    db.remove().await;
}

async fn several_rejects_in_one_batch_bury_each_with_its_reason<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["x", "a", "b", "x", "c"]).await, Memory::new());
    let handler = writes(&memory, |msg, _| match &*msg.payload {
        b"x" => HandlerResult::Success,
        other => reject(&String::from_utf8_lossy(other)),
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 5).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 4]);
    let dead: Vec<_> = dead_letters(&db.pool).await.into_iter().map(|dead| (dead.seq, dead.reason)).collect();
    assert_eq!(dead, [(2, "a".to_owned()), (3, "b".to_owned()), (5, "c".to_owned())]);
    db.remove().await;
}

async fn a_batch_handlers_reject_buries_the_whole_call_without_effect<S: Server>() {
    for place in 0..5 {
        let (db, memory) = (stage_with::<S>(&five_with(place, "bad")).await, Memory::new());
        let handler = writes(&memory, |msg, _| match &*msg.payload {
            b"bad" => reject("one of these"),
            _ => HandlerResult::Success,
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.batch_transactional(handler).start().await.unwrap();
        all_settled(&db.pool, 5).await;
        send(&handle.outbox(), &db.pool, &["behind"]).await;
        all_settled(&db.pool, 6).await;
        handle.stop().await;
        assert_eq!(effects(&db.pool).await, [6]);
        let dead = |seq| Dead { seq, attempts: 1, reason: "one of these".to_owned() };
        assert_eq!(dead_letters(&db.pool).await, (1..=5).map(dead).collect::<Vec<_>>());
        db.remove().await;
    }
}

async fn a_sql_error_that_the_handler_swallows_keeps_no_outcome_from_being_recorded<S: Server>() {
    for (outcome, reason) in [
        (HandlerResult::Success, "the handler returned Success, but what it wrote cannot be kept"),
        (retry("my own reason"), "my own reason"),
        (reject("my own reason"), "my own reason"),
    ] {
        // Where the statement alone is undone, there is nothing to keep Success from being what it says.
        let is_kept = outcome == HandlerResult::Success && !S::Db::AN_ERROR_ABORTS;
        let (db, memory) = (stage_with::<S>(&["a", "bad", "b"]).await, Memory::new());
        let handler = each::<S::Db, _>(&memory, move |conn, msg| {
            let outcome = outcome.clone();
            Box::pin(async move {
                S::Db::write(conn, msg).await.unwrap();
                if msg.payload == b"bad" {
                    S::Db::run(&mut *conn, FAILS).await.unwrap_err();
                    return outcome;
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.transactional(handler).max_attempts(2).start().await.unwrap();
        all_settled(&db.pool, 3).await;
        handle.stop().await;
        let dead = dead_letters(&db.pool).await;
        if is_kept {
            assert_eq!((effects(&db.pool).await, dead), (vec![1, 2, 3], vec![]));
        } else {
            assert_eq!(effects(&db.pool).await, [1, 3]);
            assert_eq!(dead.iter().map(|dead| dead.seq).collect::<Vec<_>>(), [2]);
            assert!(dead[0].reason.contains(reason), "{}", dead[0].reason);
        }
        db.remove().await;
    }
}

async fn a_sql_error_that_a_batch_handler_swallows_keeps_no_outcome_from_being_recorded<S: Server>() {
    for (outcome, reason) in [
        (HandlerResult::Success, "the handler returned Success, but what it wrote cannot be kept"),
        (retry("my own reason"), "my own reason"),
        (reject("my own reason"), "my own reason"),
    ] {
        // Where the statement alone is undone, there is nothing to keep Success from being what it says.
        let is_kept = outcome == HandlerResult::Success && !S::Db::AN_ERROR_ABORTS;
        let (db, memory) = (stage_with::<S>(&["bad"]).await, Memory::new());
        let handler = whole::<S::Db, _>(&memory, move |conn, msgs| {
            let outcome = outcome.clone();
            Box::pin(async move {
                S::Db::write(conn, &msgs[0]).await.unwrap();
                if msgs[0].payload == b"bad" {
                    S::Db::run(&mut *conn, FAILS).await.unwrap_err();
                    return outcome;
                }
                HandlerResult::Success
            })
        });
        let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        let handle = outbox.batch_transactional(handler).max_attempts(2).start().await.unwrap();
        all_settled(&db.pool, 1).await;
        send(&handle.outbox(), &db.pool, &["good"]).await;
        all_settled(&db.pool, 2).await;
        handle.stop().await;
        let dead = dead_letters(&db.pool).await;
        if is_kept {
            assert_eq!((effects(&db.pool).await, dead), (vec![1, 2], vec![]));
        } else {
            assert_eq!(effects(&db.pool).await, [2]);
            assert_eq!(dead.len(), 1);
            assert!(dead[0].reason.contains(reason), "{}", dead[0].reason);
        }
        db.remove().await;
    }
}

async fn a_sql_error_that_the_handler_returns_is_a_retry_with_its_text<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["a", "bad", "b"]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            let inner = async {
                S::Db::write(conn, msg).await?;
                if msg.payload == b"bad" {
                    S::Db::run(&mut *conn, FAILS).await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).max_attempts(3).start().await.unwrap();
    all_settled(&db.pool, 3).await;
    handle.stop().await;
    assert_eq!(effects(&db.pool).await, [1, 3]);
    assert_eq!(seqs(&memory), [1, 2, 2, 2, 3]);
    let dead = dead_letters(&db.pool).await;
    assert_eq!((dead[0].seq, dead[0].attempts), (2, 3));
    assert!(dead[0].reason.contains("nowhere"), "{}", dead[0].reason);
    db.remove().await;
}

/// Two partitions take two locks in opposite order, each while the other has its first.
async fn a_deadlock_between_two_partitions_is_a_retry_of_one_and_both_have_their_effect<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    run(&db.pool, "CREATE TABLE locks (id INT PRIMARY KEY, n INT NOT NULL)").await;
    run(&db.pool, "INSERT INTO locks VALUES (1, 0), (2, 0)").await;
    let meet = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        let meet = std::sync::Arc::clone(&meet);
        Box::pin(async move {
            let (first, second) = if msg.partition == 0 { (1, 2) } else { (2, 1) };
            let inner = async {
                S::Db::write(conn, msg).await?;
                let lock = |row: i32| format!("UPDATE locks SET n = n + 1 WHERE id = {row}");
                S::Db::run(&mut *conn, &lock(first)).await?;
                if msg.attempts == 0 {
                    meet.wait().await;
                }
                S::Db::run(&mut *conn, &lock(second)).await?;
                Ok::<_, sqlx::Error>(())
            };
            inner.await.into()
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(2));
    let handle = outbox.transactional(handler).start().await.unwrap();
    let messages: Vec<_> = (0..2).map(|n| EnqueueMessage::new("x").partition(n)).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    all_settled(&db.pool, 2).await;
    handle.stop().await;
    assert_eq!(memory.all().len(), 3, "one of them was tried again");
    assert_exactly_once(&db.pool, 2, 1).await;
    db.remove().await;
}

async fn a_panic_in_the_middle_of_a_batch_undoes_its_message_and_keeps_those_before_it<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["a", "panic", "stream", "b"]).await, Memory::new());
    let handler = each::<S::Db, _>(&memory, |conn, msg| {
        Box::pin(async move {
            S::Db::write(conn, msg).await.unwrap();
            match (&*msg.payload, msg.attempts) {
                (b"panic", 0) => panic!("in the middle"),
                (b"stream", 0) => {
                    S::Db::panic_in_a_stream(conn).await;
                    unreachable!("it panics");
                }
                _ => HandlerResult::Success,
            }
        })
    });
    let outbox = builder(&db).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    all_settled(&db.pool, 4).await;
    handle.stop().await;
    assert_eq!(seqs(&memory), [1, 2, 2, 3, 3, 4]);
    assert_exactly_once(&db.pool, 1, 4).await;
    db.remove().await;
}

/// The follow-ups of messages that are retried or rejected after they enqueued are phantoms.
async fn g2_what_a_handler_enqueues_on_its_connection_is_delivered_if_and_only_if_its_effects_are_kept<
    S: Server,
>() {
    let (db, memory, follow_ups) = (fresh::<S>().await, Memory::new(), Memory::new());
    register(&db, Partitions::of(1)).await;
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        let producer = producer.clone();
        Box::pin(async move {
            S::Db::write(conn, msg).await.unwrap();
            if msg.payload.starts_with(b"own ") {
                return HandlerResult::Success;
            }
            let text = String::from_utf8_lossy(&msg.payload);
            for (queue, whose) in [("q", "own"), ("other", "other")] {
                let follow_up = EnqueueMessage::new(format!("{whose} {text} {}", msg.attempts));
                producer.enqueue(Target::Connection(&mut *conn), queue, follow_up).await.unwrap();
            }
            match (&*msg.payload, msg.attempts) {
                (b"retry", 0) => retry("later"),
                (b"reject", _) => reject("never"),
                (b"panic", 0) => panic!("now"),
                _ => HandlerResult::Success,
            }
        })
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .transactional(handler)
        .queue("other", Partitions::of(1))
        .transactional(writes(&follow_ups, |_, _| HandlerResult::Success))
        .start()
        .await
        .unwrap();
    send(&handle.outbox(), &db.pool, &["ok", "retry", "reject", "panic", "last"]).await;
    all_settled(&db.pool, 5 + 4 + 4).await;
    handle.stop().await;
    let kept = ["ok 0", "retry 1", "panic 1", "last 0"];
    assert_eq!(follow_ups.payloads(), kept.map(|text| format!("other {text}")));
    let own: Vec<_> = memory.payloads().into_iter().filter(|payload| payload.starts_with("own")).collect();
    assert_eq!(own, kept.map(|text| format!("own {text}")));
    db.remove().await;
}

/// The same beside the handler's connection would be committed at once: that it is not is the point of it.
async fn a_follow_up_is_not_seen_before_its_transaction_commits<S: Server>() {
    let (db, memory) = (stage_with::<S>(&["first", "second"]).await, Memory::new());
    let producer = Outbox::connect(db.pool.clone()).await.unwrap();
    let turnstile = Turnstile::shut();
    let at_it = turnstile.clone();
    let handler = each::<S::Db, _>(&memory, move |conn, msg| {
        let (producer, turnstile) = (producer.clone(), at_it.clone());
        Box::pin(async move {
            if msg.payload == b"first" {
                producer
                    .enqueue(Target::Connection(&mut *conn), "q", EnqueueMessage::new("follow-up"))
                    .await
                    .unwrap();
            } else if msg.payload == b"second" {
                turnstile.pass().await;
            }
            S::Db::write(conn, msg).await.into()
        })
    });
    let outbox = builder(&db).queue("q", Partitions::of(1));
    let handle = outbox.transactional(handler).start().await.unwrap();
    memory.has(2).await;
    // Ticks come and go meanwhile.
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("noise")).await.unwrap();
    let head = "SELECT coalesce(max(last_seq), 0) FROM posthaste_outgoing";
    eventually("it ticks", async || count(&db.pool, head).await == 3).await;
    assert!(effects(&db.pool).await.is_empty());
    turnstile.let_pass(1);
    all_settled(&db.pool, 4).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["first", "second", "noise", "follow-up"]);
    assert_exactly_once(&db.pool, 1, 4).await;
    db.remove().await;
}
