//! What is rejected is kept, whole.

use posthaste::{EnqueueMessage, HandlerResult, Partitions};

use crate::{
    cases::cases,
    dialect::{DeadLetter, Dialect},
    fresh::Server,
    modes::{InMode, Mode},
    stage::{Memory, Step, builder, count, eventually, fresh, quick_retries, run, settled},
};

cases! {
    [leased, transactional, batch]:
        a_dead_letter_is_the_whole_message,
        g10_no_reason_can_block_a_partition,
        g10_two_to_the_31_attempts_do_not_overflow;
    // The tries of a batch count for its first message.
    [leased, transactional]:
        max_attempts_buries_the_message_that_was_tried_and_no_other;
}

async fn a_dead_letter_is_the_whole_message<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, _| Step::Reject("broken".to_owned()));
    let handle = builder(&db).queue("q", Partitions::of(4)).handled(mode, handler).start().await.unwrap();
    let message =
        EnqueueMessage::new(vec![0, 255, 7]).key("customer-7").payload_type("order").header("a", "b");
    let id = handle.outbox().enqueue(&db.pool, "q", message).await.unwrap();
    eventually("it is buried", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_dead_letter").await == 1
    })
    .await;
    handle.stop().await;
    let dead = S::Db::dead_letters(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
    let seen = memory.all()[0].message.clone();
    let created = seen.created_at.duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    let rejected_at = dead[0].rejected_at;
    let whole = DeadLetter {
        id: id.0,
        partition_id: seen.partition_id,
        seq: 1,
        queue: "q".to_owned(),
        partition: Partitions::of(4).for_key("customer-7").cast_signed(),
        payload_type: "order".to_owned(),
        key: Some("customer-7".to_owned()),
        headers: Some(r#"[["a","b"]]"#.to_owned()),
        payload: vec![0, 255, 7],
        created_at: i64::try_from(created).unwrap(),
        attempts: 1,
        reason: "broken".to_owned(),
        status: "pending".to_owned(),
        rejected_at,
    };
    assert_eq!(dead, [whole]);
    assert!(rejected_at > dead[0].created_at);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g10_no_reason_can_block_a_partition<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let hostile = ["a\0b\0", "'; DROP TABLE x; --", "\u{FFFD}\u{1F98A}", ""];
    let handler = memory.scripted(move |_, message| match message.payload[0] {
        n @ 0..=3 => Step::Reject(hostile[usize::from(n)].to_owned()),
        4 => Step::Reject("ä".repeat(1 << 20)),
        5 => Step::Return(HandlerResult::Retry { reason: "\0".repeat(1 << 20) }),
        6 => Step::Panic("\0x".repeat(5000)),
        _ => Step::Ack,
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries().batch_size(1))
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .max_attempts(3)
        .start()
        .await
        .unwrap();
    for n in 0..8_u8 {
        handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new(vec![n])).await.unwrap();
    }
    eventually("all are settled", async || settled(&db.pool).await == 8).await;
    handle.stop().await;
    let dead = S::Db::dead_letters(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
    let reasons: Vec<_> = dead.iter().map(|dead| dead.reason.as_str()).collect();
    assert_eq!(reasons[..4], ["ab", "'; DROP TABLE x; --", "\u{FFFD}\u{1F98A}", ""]);
    assert_eq!((reasons[4].len(), reasons[4].chars().all(|c| c == 'ä')), (4096, true));
    assert_eq!(dead[5].payload, [5]);
    assert!(reasons[6].starts_with("panic: xxx") && reasons[6].len() == 4096);
    assert_eq!(
        memory.payloads().last().map(String::as_bytes),
        Some(&[7][..]),
        "what is behind them is delivered"
    );
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn max_attempts_buries_the_message_that_was_tried_and_no_other<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handler = memory.scripted(|_, message| match message.payload.as_slice() {
        b"bad" => Step::Return(HandlerResult::Retry { reason: format!("try {}", message.attempts) }),
        _ => Step::Ack,
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .max_attempts(4)
        .start()
        .await
        .unwrap();
    let messages = ["a", "b", "bad", "c", "bad", "d"].map(EnqueueMessage::new);
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 6).await;
    handle.stop().await;
    let good: Vec<_> = memory.payloads().into_iter().filter(|payload| payload != "bad").collect();
    assert_eq!(good, ["a", "b", "c", "d"]);
    let attempts: Vec<_> = memory
        .all()
        .iter()
        .filter(|seen| seen.message.payload == b"bad")
        .map(|seen| seen.message.attempts)
        .collect();
    assert_eq!(attempts, [0, 1, 2, 3, 0, 1, 2, 3]);
    let dead = "SELECT count(*) FROM posthaste_dead_letter WHERE attempts = 4 AND reason = 'try 3'";
    assert_eq!(count(&db.pool, dead).await, 2);
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g10_two_to_the_31_attempts_do_not_overflow<S: Server>(mode: Mode) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle =
        builder(&db).queue("q", Partitions::of(1)).handled(mode, memory.handler()).start().await.unwrap();
    handle.stop().await;
    run(&db.pool, "UPDATE posthaste_cursor SET attempts = 2147483647").await;
    let handler = memory.scripted(|call, _| {
        if call <= 3 { Step::Return(HandlerResult::Retry { reason: "again".to_owned() }) } else { Step::Ack }
    });
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .handled(mode, handler)
        .start()
        .await
        .unwrap();
    handle.outbox().enqueue(&db.pool, "q", EnqueueMessage::new("x")).await.unwrap();
    memory.has(4).await;
    assert!(memory.all().iter().all(|seen| seen.message.attempts == 2_147_483_646));
    handle.stop().await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}
