//! What operators do with dead letters: nobody gets one that another has, and nothing is half done.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, SystemTime},
};

use posthaste::{
    DeadLetterClaim, DeadLetterFilter, DeadLetterMessage, DeadLetterScope, DeadLetterStatus, EnqueueMessage,
    Outbox, OutboxError, OutboxHandle, OutboxMessageId, Partitions,
};

use crate::{
    cases::cases,
    dialect::{Dialect, Tested},
    fresh::{Fresh, Server},
    stage::{Memory, SOON, Step, begin, builder, count, eventually, fresh, millis, run, secs},
};

cases! {
    []:
        a_claim_ends_as_whoever_holds_it_says,
        a_claim_that_ran_out_is_somebody_elses_and_the_old_token_changes_nothing,
        one_stale_claim_among_others_changes_nothing,
        operators_at_once_never_get_the_same (flavor = "multi_thread", worker_threads = 2),
        a_claim_behind_many_that_others_have_is_found_soon except(sqlite = "one writer at a time: others wait"),
        a_plain_transaction_of_the_callers_waits_for_other_writers (flavor = "multi_thread", worker_threads = 2),
        what_is_named_is_not_cut_to_a_page,
        a_page_that_changes_while_it_is_read_is_never_empty_before_the_end (flavor = "multi_thread", worker_threads = 2),
        a_claim_in_an_open_transaction_is_left_out_by_others except(sqlite = "one writer at a time: others wait"),
        what_is_done_in_the_callers_transaction_ends_with_it,
        a_transaction_that_was_begun_by_hand_is_the_callers_too,
        redelivered_messages_are_new_ones_at_the_end_of_their_queue,
        redelivering_at_once_sends_each_back_once (flavor = "multi_thread", worker_threads = 2),
        every_criterion_selects,
        what_changes_later_is_not_what_was_counted,
        pages_cover_everything_once_and_none_is_large,
        discarding_and_cleaning_up_keep_to_their_states,
        what_makes_no_sense_is_refused_and_changes_nothing,
        a_million_dead_letters_take_no_memory (flavor = "multi_thread", worker_threads = 2);
}

const MINUTE: Duration = secs(60);

/// Messages that are rejected for the reasons that are their payloads; and the outbox, which goes on.
async fn buried<S: Server>(
    db: &Fresh<S>,
    messages: &[EnqueueMessage<'_>],
) -> (OutboxHandle<S::Db>, Outbox<S::Db>, Vec<OutboxMessageId>) {
    let handler = Memory::new().scripted(|_, message| {
        Step::Reject(String::from_utf8_lossy(&message.payload[..message.payload.len().min(100)]).into_owned())
    });
    let handle = builder(db).queue("q", Partitions::of(4)).leased(handler).start().await.unwrap();
    let outbox = handle.outbox();
    let ids = outbox.enqueue_batch(&db.pool, "q", messages).await.unwrap();
    let all = u64::try_from(ids.len()).unwrap();
    eventually("they are buried", async || {
        outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap() == all
    })
    .await;
    (handle, outbox, ids)
}

fn numbered(n: usize) -> Vec<EnqueueMessage<'static>> {
    (0..n).map(|n| EnqueueMessage::new(format!("reason {n}")).key(format!("key {n}"))).collect()
}

fn everything() -> DeadLetterScope {
    DeadLetterScope::default()
}

async fn listed<DB: Tested>(outbox: &Outbox<DB>, pool: &sqlx::Pool<DB>) -> Vec<DeadLetterMessage> {
    outbox.dead_letter_list(pool, &DeadLetterFilter::default().limit(10_000)).await.unwrap()
}

fn statuses(letters: &[DeadLetterMessage]) -> Vec<DeadLetterStatus> {
    letters.iter().map(|letter| letter.status).collect()
}

async fn a_claim_ends_as_whoever_holds_it_says<S: Server>() {
    use DeadLetterStatus::{Pending, Reprocessing, Resolved};
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(3)).await;
    let before = listed(&outbox, &db.pool).await;
    assert_eq!(before.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids);
    assert_eq!(
        before.iter().map(|letter| &*letter.reason).collect::<Vec<_>>(),
        ["reason 0", "reason 1", "reason 2"]
    );
    assert!(before.iter().all(|letter| letter.attempts == 1 && letter.claimed_until.is_none()));

    let claimed = outbox.dead_letter_replay(&db.pool, &everything().limit(2), MINUTE).await.unwrap();
    assert_eq!(claimed.iter().map(|claimed| claimed.message.id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(claimed[0].message.payload, b"reason 0");
    assert_eq!(claimed[0].message.status, Reprocessing);
    let until = claimed[0].message.claimed_until.unwrap();
    let claimed_for = until.duration_since(claimed[0].message.changed_at).unwrap();
    assert!(claimed_for <= MINUTE + secs(1) && claimed_for > secs(50), "{claimed_for:?}");
    assert_eq!(statuses(&listed(&outbox, &db.pool).await), [Reprocessing, Reprocessing, Pending]);
    let last = outbox.dead_letter_replay(&db.pool, &everything(), MINUTE).await.unwrap();
    assert_eq!(last.len(), 1, "the others are taken");

    outbox.dead_letter_resolve(&db.pool, &claimed[..1]).await.unwrap();
    // A claim is its id and its token, wherever they have been in between.
    let again = DeadLetterClaim { id: ids[1], token: claimed[1].claim.token.to_string().parse().unwrap() };
    outbox.dead_letter_reject(&db.pool, &[again], &format!("no\0t now{}", "ä".repeat(5000))).await.unwrap();
    let after = listed(&outbox, &db.pool).await;
    assert_eq!(statuses(&after), [Resolved, Pending, Reprocessing]);
    assert_eq!(after.iter().map(|letter| letter.attempts).collect::<Vec<_>>(), [1, 2, 1]);
    assert!(after[1].reason.starts_with("not nowä") && after[1].reason.len() <= 4096, "{}", after[1].reason);
    assert!(after[0].changed_at > before[0].changed_at && after[0].claimed_until.is_none());
    // What a dead letter is stays what it is.
    for (before, after) in before.iter().zip(&after) {
        let unchanged = |letter: &DeadLetterMessage| {
            let letter = letter.clone();
            (
                letter.id,
                letter.queue,
                letter.partition,
                letter.seq,
                letter.key,
                letter.payload,
                letter.rejected_at,
            )
        };
        assert_eq!(unchanged(before), unchanged(after));
    }
    // A claim ends once.
    for ended in [&claimed[0], &claimed[1]] {
        let error = outbox.dead_letter_resolve(&db.pool, std::slice::from_ref(ended)).await.unwrap_err();
        assert!(matches!(&error, OutboxError::StaleClaims { ids } if ids == &[ended.message.id]), "{error}");
    }
    assert_eq!(listed(&outbox, &db.pool).await, after);
    handle.stop().await;
    db.remove().await;
}

async fn a_claim_that_ran_out_is_somebody_elses_and_the_old_token_changes_nothing<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &numbered(1)).await;
    let short = outbox.dead_letter_replay(&db.pool, &everything(), millis(1)).await.unwrap();
    let pending = DeadLetterFilter::default().status(DeadLetterStatus::Pending);
    eventually("it is pending again", async || {
        outbox.dead_letter_count(&db.pool, &pending).await.unwrap() == 1
    })
    .await;
    assert_eq!(statuses(&listed(&outbox, &db.pool).await), [DeadLetterStatus::Pending]);
    // Nobody has it: whoever had it may still say how it ended.
    let mut tx = begin(&db.pool).await;
    outbox.dead_letter_resolve(&mut tx, &short).await.unwrap();
    tx.rollback().await.unwrap();
    let theirs = outbox.dead_letter_replay(&db.pool, &everything(), MINUTE).await.unwrap();
    assert_eq!((theirs.len(), theirs[0].message.attempts), (1, 2), "the claim that ran out was a try");
    let before = listed(&outbox, &db.pool).await;
    for _ in 0..2 {
        let error = outbox.dead_letter_resolve(&db.pool, &short).await.unwrap_err();
        assert!(error.to_string().contains("stale"), "{error}");
        let error = outbox.dead_letter_reject(&db.pool, &short, "late").await.unwrap_err();
        assert!(matches!(error, OutboxError::StaleClaims { .. }), "{error}");
    }
    assert_eq!(listed(&outbox, &db.pool).await, before);
    outbox.dead_letter_resolve(&db.pool, &theirs).await.unwrap();
    handle.stop().await;
    db.remove().await;
}

async fn one_stale_claim_among_others_changes_nothing<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(3)).await;
    let claimed = outbox.dead_letter_replay(&db.pool, &everything(), MINUTE).await.unwrap();
    outbox.dead_letter_resolve(&db.pool, &claimed[1..2]).await.unwrap();
    let before = listed(&outbox, &db.pool).await;
    let unknown = DeadLetterClaim { id: OutboxMessageId(i64::MAX), token: claimed[0].claim.token };
    let claims: Vec<_> = claimed.iter().map(|claimed| claimed.claim).chain([unknown]).collect();
    let error = outbox.dead_letter_resolve(&db.pool, &claims).await.unwrap_err();
    assert!(
        matches!(&error, OutboxError::StaleClaims { ids: stale } if stale == &[ids[1], unknown.id]),
        "{error}"
    );
    // So in a transaction, which can go on.
    let mut tx = begin(&db.pool).await;
    assert!(outbox.dead_letter_reject(&mut tx, &claims, "no").await.is_err());
    outbox.dead_letter_resolve(&mut tx, &claims[..1]).await.unwrap();
    tx.commit().await.unwrap();
    let after = listed(&outbox, &db.pool).await;
    assert_eq!(after[0].status, DeadLetterStatus::Resolved);
    assert_eq!(after[1..], before[1..]);
    outbox.dead_letter_resolve(&db.pool, &[] as &[DeadLetterClaim]).await.unwrap();
    handle.stop().await;
    db.remove().await;
}

/// Operators who do as much as they can, until nothing is left.
async fn operators_at_once_never_get_the_same<S: Server>() {
    const LETTERS: usize = 400;
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(LETTERS)).await;
    let operators = (0..8).map(|operator: u32| {
        let (outbox, pool) = (outbox.clone(), db.pool.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let scope = everything().limit(1 + operator * 3);
                let claimed = outbox.dead_letter_replay(&pool, &scope, MINUTE).await.unwrap();
                if claimed.is_empty()
                    && outbox
                        .dead_letter_count(
                            &pool,
                            &DeadLetterFilter::default().status(DeadLetterStatus::Pending),
                        )
                        .await
                        .unwrap()
                        == 0
                {
                    return mine;
                }
                mine.extend(claimed.iter().map(|claimed| claimed.message.id));
                outbox.dead_letter_resolve(&pool, &claimed).await.unwrap();
            }
        })
    });
    let mut all = Vec::new();
    for operator in operators.collect::<Vec<_>>() {
        all.extend(operator.await.unwrap());
    }
    assert_eq!(all.len(), LETTERS);
    assert_eq!(all.iter().collect::<HashSet<_>>(), ids.iter().collect::<HashSet<_>>());
    handle.stop().await;
    db.remove().await;
}

async fn a_claim_in_an_open_transaction_is_left_out_by_others<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(6)).await;
    let mut tx = begin(&db.pool).await;
    let mine = outbox.dead_letter_replay(&mut tx, &everything().limit(3), MINUTE).await.unwrap();
    assert_eq!(mine.len(), 3);
    let two = everything().limit(2);
    let theirs = outbox.dead_letter_replay(&db.pool, &two, MINUTE);
    let theirs = tokio::time::timeout(SOON, theirs).await.expect("nobody waits").unwrap();
    assert_eq!(theirs.iter().map(|claimed| claimed.message.id).collect::<Vec<_>>(), ids[3..5]);
    // Named, it is not there for them.
    let error = outbox.dead_letter_discard(&db.pool, &everything().ids([ids[0], ids[5]])).await.unwrap_err();
    assert!(
        matches!(&error, OutboxError::DeadLettersNotFound { ids: missing, .. } if missing == &ids[..1]),
        "{error}"
    );
    // Nor are those waiting who bury messages meanwhile.
    outbox.enqueue(&db.pool, "q", EnqueueMessage::new("another")).await.unwrap();
    eventually("it is buried", async || {
        count(&db.pool, "SELECT count(*) FROM posthaste_dead_letter").await == 7
    })
    .await;
    tx.rollback().await.unwrap();
    assert_eq!(outbox.dead_letter_replay(&db.pool, &everything(), MINUTE).await.unwrap().len(), 5);
    handle.stop().await;
    db.remove().await;
}

async fn a_claim_behind_many_that_others_have_is_found_soon<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &[EnqueueMessage::new("x")]).await;
    multiply(&db.pool, 1000, 3000).await;
    let mut tx = begin(&db.pool).await;
    assert_eq!(
        outbox.dead_letter_replay(&mut tx, &everything().limit(3000), MINUTE).await.unwrap().len(),
        3000
    );
    let one = everything().limit(1);
    let theirs = outbox.dead_letter_replay(&db.pool, &one, MINUTE);
    let theirs = tokio::time::timeout(SOON, theirs).await.expect("it is found soon").unwrap();
    assert_eq!(theirs.len(), 1);
    tx.rollback().await.unwrap();
    handle.stop().await;
    db.remove().await;
}

/// One that sqlx begins as it does by default: on SQLite it does not write until it has to, when it may be too late to wait.
async fn a_plain_transaction_of_the_callers_waits_for_other_writers<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(60)).await;
    let operators = (0..4).map(|_| {
        let (outbox, pool) = (outbox.clone(), db.pool.clone());
        tokio::spawn(async move {
            for _ in 0..15 {
                let mut tx = pool.begin().await.unwrap();
                let claims =
                    outbox.dead_letter_replay(&mut tx, &everything().limit(1), MINUTE).await.unwrap();
                outbox.dead_letter_resolve(&mut tx, &claims).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
    });
    for operator in operators.collect::<Vec<_>>() {
        operator.await.unwrap();
    }
    // Some may have found nothing that nobody else had.
    outbox.dead_letter_discard(&db.pool, &everything()).await.unwrap();
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &everything()).await.unwrap(), 60);
    assert_eq!(ids.len(), 60);
    handle.stop().await;
    db.remove().await;
}

async fn what_is_named_is_not_cut_to_a_page<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &[EnqueueMessage::new(vec![b'x'; 1 << 20])]).await;
    handle.stop().await;
    multiply(&db.pool, 1000, 19).await;
    let all = || everything().ids((0..20).map(|n| OutboxMessageId(1 + 1000 * n)));
    let error = outbox.dead_letter_replay(&db.pool, &all(), MINUTE).await.unwrap_err();
    assert!(matches!(&error, OutboxError::InvalidArgument(text) if text.contains("the first 15")), "{error}");
    let claimed = DeadLetterFilter::default().status(DeadLetterStatus::Reprocessing);
    assert_eq!(outbox.dead_letter_count(&db.pool, &claimed).await.unwrap(), 0);
    assert_eq!(outbox.dead_letter_redeliver(&db.pool, &all()).await.unwrap().len(), 20);
    assert_eq!(count(&db.pool, "SELECT count(redelivered_as) FROM posthaste_dead_letter").await, 20);
    db.remove().await;
}

/// Somebody discards and cleans up at the head of what is listed.
async fn a_page_that_changes_while_it_is_read_is_never_empty_before_the_end<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &[EnqueueMessage::new("x")]).await;
    handle.stop().await;
    multiply(&db.pool, 1000, 1200).await;
    let cleaner = {
        let (outbox, pool) = (outbox.clone(), db.pool.clone());
        tokio::spawn(async move {
            for _ in 0..200 {
                outbox.dead_letter_discard(&pool, &everything().limit(5)).await.unwrap();
                outbox.dead_letter_cleanup(&pool, &everything().limit(5)).await.unwrap();
            }
        })
    };
    let filter = DeadLetterFilter::default().status(DeadLetterStatus::Pending).limit(3);
    while !cleaner.is_finished() {
        let page = outbox.dead_letter_list(&db.pool, &filter).await.unwrap();
        assert!(!page.is_empty(), "there are always more");
        assert!(
            page.iter().all(|letter| letter.status == DeadLetterStatus::Pending),
            "of what was asked for"
        );
    }
    cleaner.await.unwrap();
    assert_eq!(outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap(), 201);
    db.remove().await;
}

async fn what_is_done_in_the_callers_transaction_ends_with_it<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(4)).await;
    let before = listed(&outbox, &db.pool).await;
    let mut tx = begin(&db.pool).await;
    let claimed = outbox.dead_letter_replay(&mut tx, &everything().ids([ids[0]]), MINUTE).await.unwrap();
    outbox.dead_letter_resolve(&mut tx, &claimed).await.unwrap();
    assert_eq!(outbox.dead_letter_discard(&mut tx, &everything().ids([ids[1]])).await.unwrap(), 1);
    assert_eq!(outbox.dead_letter_cleanup(&mut tx, &everything()).await.unwrap(), 2);
    assert_eq!(outbox.dead_letter_redeliver(&mut tx, &everything().ids([ids[2]])).await.unwrap().len(), 1);
    let seen = outbox.dead_letter_list(&mut tx, &DeadLetterFilter::default()).await.unwrap();
    assert_eq!(statuses(&seen), [DeadLetterStatus::Resolved, DeadLetterStatus::Pending]);
    assert_eq!(outbox.dead_letter_count(&mut tx, &DeadLetterFilter::default()).await.unwrap(), 2);
    tx.rollback().await.unwrap();
    assert_eq!(listed(&outbox, &db.pool).await, before);

    // On a connection that is in no transaction, each has one of its own.
    let mut conn = db.pool.acquire().await.unwrap();
    let claimed = outbox.dead_letter_replay(&mut conn, &everything().limit(1), MINUTE).await.unwrap();
    outbox.dead_letter_resolve(&mut conn, &claimed).await.unwrap();
    outbox.dead_letter_discard(&mut conn, &everything().limit(1)).await.unwrap();
    drop(conn);
    let after = statuses(&listed(&outbox, &db.pool).await);
    assert_eq!(
        after[..3],
        [DeadLetterStatus::Resolved, DeadLetterStatus::Discarded, DeadLetterStatus::Pending]
    );
    handle.stop().await;
    db.remove().await;
}

/// Which sqlx does not know of: to end it would be to commit what the caller has not.
async fn a_transaction_that_was_begun_by_hand_is_the_callers_too<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &numbered(3)).await;
    let before = listed(&outbox, &db.pool).await;
    let mut conn = db.pool.acquire().await.unwrap();
    S::Db::run(&mut conn, "BEGIN").await.unwrap();
    outbox.dead_letter_discard(&mut conn, &everything().limit(1)).await.unwrap();
    let claimed = outbox.dead_letter_replay(&mut conn, &everything().limit(1), MINUTE).await.unwrap();
    outbox.dead_letter_reject(&mut conn, &claimed, "no").await.unwrap();
    outbox.dead_letter_redeliver(&mut conn, &everything()).await.unwrap();
    S::Db::run(&mut conn, "ROLLBACK").await.unwrap();
    drop(conn);
    assert_eq!(listed(&outbox, &db.pool).await, before);
    handle.stop().await;
    db.remove().await;
}

async fn redelivered_messages_are_new_ones_at_the_end_of_their_queue<S: Server>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let messages: Vec<_> = (0..20)
        .map(|n| {
            let message =
                EnqueueMessage::new(vec![0, 255, n]).payload_type("order.created").header("ä", "ö\"\\");
            if n % 2 == 0 {
                message.key(format!("kunde-{}-Zürich", n % 3))
            } else {
                message.partition(u32::from(n) % 4)
            }
        })
        .collect();
    let (handle, outbox, ids) = buried(&db, &messages).await;
    handle.stop().await;
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let outbox_now = handle.outbox();
    outbox_now.enqueue(&db.pool, "q", EnqueueMessage::new("before").partition(0)).await.unwrap();
    memory.has(1).await;

    let mut tx = begin(&db.pool).await;
    outbox_now.dead_letter_redeliver(&mut tx, &everything()).await.unwrap();
    tx.rollback().await.unwrap();
    let sent = outbox_now.dead_letter_redeliver(&db.pool, &everything()).await.unwrap();
    assert_eq!(sent.iter().map(|(old, _)| *old).collect::<Vec<_>>(), ids);
    assert!(sent.iter().map(|(_, new)| new).is_sorted() && sent[0].1 > ids[19]);
    memory.has(21).await;
    let seen = memory.all();
    for ((place, message), (_, new)) in messages.iter().enumerate().zip(&sent) {
        let found: Vec<_> = seen.iter().filter(|seen| seen.message.id == *new).collect();
        assert_eq!(found.len(), 1, "message {place}, once");
        let found = &found[0].message;
        assert_eq!((&found.payload, &*found.payload_type), (&message.payload, message.payload_type));
        assert_eq!(found.key.as_deref(), message.key.as_deref());
        assert_eq!(found.headers, [("ä".to_owned(), "ö\"\\".to_owned())]);
        assert_eq!(found.attempts, 0);
    }
    for partition in 0..4 {
        let of = seen.iter().filter(|seen| seen.message.partition == partition).map(|seen| seen.message.id);
        assert!(of.is_sorted(), "in the order in which they were first enqueued");
    }
    let letters = listed(&outbox, &db.pool).await;
    for (letter, (old, new)) in letters.iter().zip(&sent) {
        assert_eq!((letter.id, letter.redelivered_as), (*old, Some(*new)));
        assert_eq!(letter.status, DeadLetterStatus::Resolved);
    }
    assert!(outbox_now.dead_letter_redeliver(&db.pool, &everything()).await.unwrap().is_empty(), "once");
    handle.stop().await;
    db.remove().await;
}

async fn redelivering_at_once_sends_each_back_once<S: Server>() {
    const LETTERS: usize = 200;
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(LETTERS)).await;
    handle.stop().await;
    let operators = (0..6).map(|_| {
        let (outbox, pool) = (outbox.clone(), db.pool.clone());
        tokio::spawn(async move {
            let mut sent = Vec::new();
            for _ in 0..20 {
                sent.extend(outbox.dead_letter_redeliver(&pool, &everything().limit(7)).await.unwrap());
            }
            sent
        })
    });
    let mut sent = Vec::new();
    for operator in operators.collect::<Vec<_>>() {
        sent.extend(operator.await.unwrap());
    }
    let old: HashSet<_> = sent.iter().map(|(old, _)| *old).collect();
    assert_eq!((sent.len(), old), (LETTERS, ids.into_iter().collect()));
    assert_eq!(
        count(&db.pool, "SELECT count(DISTINCT redelivered_as) FROM posthaste_dead_letter").await,
        i64::try_from(LETTERS).unwrap()
    );
    db.remove().await;
}

async fn every_criterion_selects<S: Server>() {
    let db = fresh::<S>().await;
    let messages = [
        EnqueueMessage::new("timeout of 100%").partition(1).payload_type("a"),
        EnqueueMessage::new("Timeout_of nothing").key("Zürich").payload_type("A"),
        EnqueueMessage::new("grüße \\ 'x'").key("zürich").payload_type("a.b"),
        EnqueueMessage::new("with a space").key("zürich ").payload_type("a.b "),
    ];
    let handler = Memory::new()
        .scripted(|_, message| Step::Reject(String::from_utf8_lossy(&message.payload).into_owned()));
    let handler = Arc::new(handler);
    let handle = builder(&db)
        .queue("orders", Partitions::of(4))
        .leased(Arc::clone(&handler))
        .queue("Orders", Partitions::of(4))
        .leased(handler)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let mut ids = outbox.enqueue_batch(&db.pool, "orders", &messages).await.unwrap();
    ids.extend(outbox.enqueue_batch(&db.pool, "Orders", &messages[..1]).await.unwrap());
    eventually("they are buried", async || {
        outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap() == 5
    })
    .await;
    // An hour apart, the first one an hour ago.
    for (id, hours) in ids.iter().zip([1, 2, 3, 4, 5]) {
        let time = S::Db::moment(-3_600_000 * hours);
        run(&db.pool, &format!("UPDATE posthaste_dead_letter SET rejected_at = {time} WHERE id = {id}"))
            .await;
    }
    outbox.dead_letter_discard(&db.pool, &everything().ids([ids[4]])).await.unwrap();
    let (hour, now) = (secs(3600), SystemTime::now());
    let filter = DeadLetterFilter::default;
    for (filter, expected) in [
        (filter(), vec![0, 1, 2, 3, 4]),
        (filter().queue("orders"), vec![0, 1, 2, 3]),
        (filter().queue("Orders"), vec![4]),
        (filter().queue("ORDERS"), vec![]),
        (filter().partition(1).payload_type("a"), vec![0, 4]),
        (filter().partition(u32::MAX), vec![]),
        (filter().key("Zürich"), vec![1]),
        (filter().key("Zurich"), vec![]),
        (filter().key("zürich"), vec![2]),
        (filter().key("zürich "), vec![3]),
        (filter().payload_type("a.b"), vec![2]),
        (filter().payload_type("a.b "), vec![3]),
        (filter().payload_type("a"), vec![0, 4]),
        (filter().payload_type("A"), vec![1]),
        (filter().status(DeadLetterStatus::Discarded), vec![4]),
        (filter().status(DeadLetterStatus::Pending), vec![0, 1, 2, 3]),
        (filter().status(DeadLetterStatus::Reprocessing), vec![]),
        (filter().older_than(hour * 5 / 2), vec![2, 3, 4]),
        (filter().unchanged_for(hour), vec![]),
        (filter().unchanged_for(Duration::ZERO).after(ids[3]), vec![4]),
        (filter().older_than(Duration::MAX), vec![]),
        (filter().rejected_from(now - hour * 7 / 2).rejected_before(now - hour * 3 / 2), vec![1, 2]),
        (filter().rejected_from(now + Duration::from_secs(1 << 40)), vec![]),
        (filter().rejected_before(SystemTime::UNIX_EPOCH), vec![]),
        (filter().reason_contains("imeout"), vec![0, 1, 4]),
        (filter().reason_contains("Timeout_"), vec![1]),
        (filter().reason_contains("%"), vec![0, 4]),
        (filter().reason_contains("üße \\ 'x'"), vec![2]),
        (filter().ids([ids[2], ids[0], OutboxMessageId(-1)]), vec![0, 2]),
        (filter().ids([]), vec![]),
        (filter().after(ids[1]), vec![2, 3, 4]),
        (filter().limit(2), vec![0, 1]),
        (filter().queue("orders").after(ids[0]).limit(1).payload_type("A"), vec![1]),
    ] {
        let found = outbox.dead_letter_list(&db.pool, &filter).await.unwrap();
        let expected: Vec<_> = expected.into_iter().map(|place: usize| ids[place]).collect();
        assert_eq!(found.iter().map(|letter| letter.id).collect::<Vec<_>>(), expected, "{filter:?}");
        let counted = outbox.dead_letter_count(&db.pool, &filter.clone().limit(9)).await.unwrap();
        if filter != DeadLetterFilter::default().limit(2) {
            assert_eq!(counted, u64::try_from(expected.len()).unwrap(), "{filter:?}");
        }
    }
    handle.stop().await;
    db.remove().await;
}

async fn what_changes_later_is_not_what_was_counted<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(4)).await;
    // The clock of SQLite counts milliseconds: those of the moment itself have changed since.
    let last = listed(&outbox, &db.pool).await.iter().map(|letter| letter.changed_at).max().unwrap();
    let mut then = last;
    eventually("time passes", async || {
        then = outbox.database_time().await.unwrap();
        then > last
    })
    .await;
    let scope = everything().unchanged_since(then);
    let left = async || outbox.dead_letter_count(&db.pool, &scope.clone().into()).await.unwrap();
    assert_eq!(left().await, 4);
    let claimed = outbox.dead_letter_replay(&db.pool, &everything().ids([ids[1]]), MINUTE).await.unwrap();
    outbox.dead_letter_reject(&db.pool, &claimed, "again").await.unwrap();
    assert_eq!(left().await, 3, "it is pending again, and was not at first");
    let sent = outbox.dead_letter_redeliver(&db.pool, &scope.clone().limit(1)).await.unwrap();
    assert_eq!(sent[0].0, ids[0]);
    eventually("it is rejected again", async || {
        outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap() == 5
    })
    .await;
    let sent = outbox.dead_letter_redeliver(&db.pool, &scope).await.unwrap();
    assert_eq!(sent.iter().map(|(old, _)| *old).collect::<Vec<_>>(), ids[2..]);
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &scope).await.unwrap(), 0, "they are resolved since");
    assert_eq!(left().await, 0);
    handle.stop().await;
    db.remove().await;
}

/// Copies the dead letters that are there so many times, the ids of each copy further up by a step.
async fn multiply<DB: Tested>(pool: &sqlx::Pool<DB>, step: u32, times: u32) {
    let sql = format!(
        "INSERT INTO posthaste_dead_letter SELECT d.id + {step} * s.n, d.partition_id, d.seq, d.queue, d.partition, d.payload_type,
         d.key, d.headers, d.payload, d.created_at, d.attempts, d.reason, d.status, d.rejected_at, d.changed_at, d.token,
         d.claimed_until, d.redelivered_as FROM {} AS s CROSS JOIN posthaste_dead_letter d",
        DB::series(times)
    );
    let mut tx = begin(pool).await;
    DB::run(&mut tx, &sql).await.unwrap();
    tx.commit().await.unwrap();
}

async fn pages_cover_everything_once_and_none_is_large<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &[EnqueueMessage::new(vec![b'x'; 1 << 20])]).await;
    multiply(&db.pool, 1000, 39).await;
    let (mut filter, mut ids) = (DeadLetterFilter::default(), Vec::new());
    loop {
        let page = outbox.dead_letter_list(&db.pool, &filter).await.unwrap();
        let bytes: usize = page.iter().map(|letter| letter.payload.len()).sum();
        assert!(bytes <= 16 << 20, "{bytes} bytes");
        let Some(last) = page.last() else { break };
        filter = filter.after(last.id);
        ids.extend(page.iter().map(|letter| letter.id));
    }
    assert_eq!(ids.len(), 40);
    assert!(ids.is_sorted() && ids.iter().collect::<HashSet<_>>().len() == 40);
    let claimed = outbox.dead_letter_replay(&db.pool, &everything(), MINUTE).await.unwrap();
    assert_eq!(claimed.len(), 15, "no more than fit");
    assert_eq!(
        outbox
            .dead_letter_count(&db.pool, &DeadLetterFilter::default().status(DeadLetterStatus::Reprocessing))
            .await
            .unwrap(),
        15,
        "and no more than are returned"
    );
    handle.stop().await;
    db.remove().await;
}

async fn discarding_and_cleaning_up_keep_to_their_states<S: Server>() {
    use DeadLetterStatus::{Discarded, Pending, Reprocessing, Resolved};
    let db = fresh::<S>().await;
    let (handle, outbox, ids) = buried(&db, &numbered(5)).await;
    let claimed = outbox.dead_letter_replay(&db.pool, &everything().limit(2), MINUTE).await.unwrap();
    outbox.dead_letter_resolve(&db.pool, &claimed[..1]).await.unwrap();
    let before = listed(&outbox, &db.pool).await;
    assert_eq!(statuses(&before), [Resolved, Reprocessing, Pending, Pending, Pending]);
    // Some of what is named is in no state for it, or not there at all: then nothing is done.
    for (scope, missing) in [
        (everything().ids([ids[2], ids[1]]), ids[1]),
        (everything().ids([ids[0], ids[3]]), ids[0]),
        (everything().ids([ids[3], OutboxMessageId(-7)]), OutboxMessageId(-7)),
    ] {
        for error in [
            outbox.dead_letter_discard(&db.pool, &scope).await.unwrap_err(),
            outbox.dead_letter_redeliver(&db.pool, &scope).await.unwrap_err(),
            outbox.dead_letter_replay(&db.pool, &scope, MINUTE).await.unwrap_err(),
        ] {
            assert!(
                matches!(&error, OutboxError::DeadLettersNotFound { ids, .. } if ids == &[missing]),
                "{error}"
            );
            assert!(error.to_string().contains("pending"), "{error}");
        }
    }
    let error = outbox.dead_letter_cleanup(&db.pool, &everything().ids([ids[0], ids[4]])).await.unwrap_err();
    assert!(error.to_string().contains("resolved or discarded"), "{error}");
    assert_eq!(listed(&outbox, &db.pool).await, before);

    assert_eq!(outbox.dead_letter_discard(&db.pool, &everything().limit(2)).await.unwrap(), 2);
    assert_eq!(
        statuses(&listed(&outbox, &db.pool).await),
        [Resolved, Reprocessing, Discarded, Discarded, Pending]
    );
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &everything().status(Resolved)).await.unwrap(), 1);
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &everything().older_than(secs(3600))).await.unwrap(), 0);
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &everything()).await.unwrap(), 2);
    assert_eq!(statuses(&listed(&outbox, &db.pool).await), [Reprocessing, Pending]);
    handle.stop().await;
    db.remove().await;
}

async fn what_makes_no_sense_is_refused_and_changes_nothing<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) = buried(&db, &numbered(2)).await;
    let before = listed(&outbox, &db.pool).await;
    for (timeout, is_allowed) in [
        (Duration::ZERO, false),
        (Duration::from_micros(999), false),
        (millis(1), true),
        (secs(7 * 86_400), true),
        (secs(365 * 86_400), false),
        (Duration::MAX, false),
    ] {
        let mut tx = begin(&db.pool).await;
        let claimed = outbox.dead_letter_replay(&mut tx, &everything(), timeout).await;
        assert_eq!(claimed.is_ok(), is_allowed, "{timeout:?}: {claimed:?}");
        if let Err(error) = claimed {
            assert!(
                matches!(&error, OutboxError::InvalidArgument(text) if text.contains("604800s")),
                "{error}"
            );
        }
        tx.rollback().await.unwrap();
    }
    let error = outbox.dead_letter_list(&db.pool, &DeadLetterFilter::default().limit(0)).await.unwrap_err();
    assert!(error.to_string().contains("use 1 to 10000"), "{error}");
    for scope in [
        everything().limit(0),
        everything().queue("no such\nname"),
        everything().status(DeadLetterStatus::Reprocessing),
        everything().reason_contains("\0"),
    ] {
        outbox.dead_letter_discard(&db.pool, &scope).await.unwrap_err();
        outbox.dead_letter_cleanup(&db.pool, &scope).await.unwrap_err();
        outbox.dead_letter_redeliver(&db.pool, &scope).await.unwrap_err();
        outbox.dead_letter_replay(&db.pool, &scope, MINUTE).await.unwrap_err();
    }
    assert_eq!(outbox.dead_letter_discard(&db.pool, &everything().queue("nobody-has-it")).await.unwrap(), 0);
    assert_eq!(listed(&outbox, &db.pool).await, before);
    assert_eq!(outbox.dead_letter_discard(&db.pool, &everything().limit(1_000_000_000)).await.unwrap(), 2);
    handle.stop().await;
    db.remove().await;
}

/// As much memory as with fifty times fewer of them.
async fn a_million_dead_letters_take_no_memory<S: Server>() {
    let db = fresh::<S>().await;
    let (handle, outbox, _) =
        buried(&db, &[EnqueueMessage::new("broken"), EnqueueMessage::new("late")]).await;
    handle.stop().await;
    multiply(&db.pool, 1000, 999).await;
    multiply(&db.pool, 1_000_000, 9).await;
    do_as_much_as_can_be(&outbox, &db.pool, 20_000).await;
    let few = crate::bounds::memory();
    multiply(&db.pool, 10_000_000, 49).await;
    do_as_much_as_can_be(&outbox, &db.pool, 1_000_000).await;
    let many = crate::bounds::memory();
    assert!(many < few + 32 * 1024, "{few} KB with few, {many} KB with many");
    db.remove().await;
}

async fn do_as_much_as_can_be<DB: Tested>(outbox: &Outbox<DB>, pool: &sqlx::Pool<DB>, there: u64) {
    let (filter, everything) = (DeadLetterFilter::default(), everything().limit(u32::MAX));
    let last = count(pool, "SELECT max(id) FROM posthaste_dead_letter").await;
    let mut tx = begin(pool).await;
    assert_eq!(outbox.dead_letter_count(&mut tx, &filter).await.unwrap(), there);
    let behind = filter.clone().after(OutboxMessageId(last - 1)).limit(1_000_000_000);
    assert_eq!(outbox.dead_letter_list(&mut tx, &behind).await.unwrap().len(), 1);
    let page = outbox.dead_letter_list(&mut tx, &filter.clone().limit(1_000_000_000)).await.unwrap();
    assert_eq!(page.len(), 10_000);
    drop(page);
    let rare = filter.reason_contains("late").limit(3);
    assert_eq!(outbox.dead_letter_list(&mut tx, &rare).await.unwrap().len(), 3);
    let claimed = outbox.dead_letter_replay(&mut tx, &everything, MINUTE).await.unwrap();
    assert_eq!(claimed.len(), 10_000);
    outbox.dead_letter_resolve(&mut tx, &claimed).await.unwrap();
    assert_eq!(outbox.dead_letter_discard(&mut tx, &everything).await.unwrap(), 10_000);
    assert_eq!(outbox.dead_letter_cleanup(&mut tx, &everything).await.unwrap(), 10_000);
    tx.rollback().await.unwrap();
}
