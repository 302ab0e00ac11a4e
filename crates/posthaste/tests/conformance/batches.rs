//! The rules of a batch: what is done, what comes again, what becomes a dead letter.

use posthaste::{EnqueueMessage, HandlerResult, Partitions};

use crate::{
    cases::{cases, spread},
    dialect::Dialect,
    fresh::{Fresh, Server},
    stage::{
        Memory, Step, assert_consistent, builder, count, eventually, fresh, quick_retries, register,
        remember_links, settled,
    },
};

cases! {
    []:
        success_settles_what_was_taken_and_leaves_the_rest_for_the_next_batch,
        retry_settles_the_prefix_and_brings_the_rest_again,
        a_message_left_unsettled_before_a_retry_comes_again_with_everything_behind_it,
        reject_of_the_batch_buries_what_was_taken_and_is_unsettled,
        single_rejections_are_buried_with_their_reasons,
        a_retry_with_everything_settled_is_no_try_of_the_next_message;
}

spread! {
    sqlite => { []: acking_too_much_settles_no_other_message, a_panic_is_a_retry_with_its_text; }
    mariadb => { []: success_without_taking_a_message_is_a_retry; }
}

/// Enqueues `n` messages "0", "1", … to one partition before the workers start, so that they come as one batch.
async fn played<S: Server>(
    n: u32,
    script: impl Fn(usize, &str) -> Step + Send + Sync + 'static,
) -> (Fresh<S>, Memory) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    remember_links(&db).await;
    let outbox = posthaste::Outbox::connect(db.pool.clone()).await.unwrap();
    let messages: Vec<_> = (0..n).map(|n| EnqueueMessage::new(n.to_string())).collect();
    outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();

    let memory = Memory::new();
    let handler =
        memory.scripted(move |call, message| script(call, &String::from_utf8_lossy(&message.payload)));
    let handle = builder(&db)
        .processor_tuning(quick_retries().batch_size(10).degradation_threshold(100))
        .queue("q", Partitions::of(1))
        .leased(handler)
        .start()
        .await
        .unwrap();
    eventually("everything is settled", async || settled(&db.pool).await == i64::from(n)).await;
    handle.stop().await;
    assert_consistent(&db.pool).await;
    (db, memory)
}

/// The payloads of the dead letters, and the reasons.
async fn dead<S: Server>(db: &Fresh<S>) -> Vec<(String, String)> {
    let letters = S::Db::dead_letters(&mut *db.pool.acquire().await.unwrap()).await.unwrap();
    letters.into_iter().map(|dead| (String::from_utf8(dead.payload).unwrap(), dead.reason)).collect()
}

fn retry() -> Step {
    Step::Return(HandlerResult::Retry { reason: "later".to_owned() })
}

async fn success_settles_what_was_taken_and_leaves_the_rest_for_the_next_batch<S: Server>() {
    let (db, memory) = played::<S>(5, |call, n| match (call, n) {
        (1, "2") => Step::Return(HandlerResult::Success),
        _ => Step::Leave,
    })
    .await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3", "4"], "nothing twice, and what was not taken follows");
    assert_eq!(memory.calls(), 2);
    assert!(dead(&db).await.is_empty());
    db.remove().await;
}

async fn retry_settles_the_prefix_and_brings_the_rest_again<S: Server>() {
    let (db, memory) =
        played::<S>(5, |call, n| if call == 1 && n == "3" { retry() } else { Step::Ack }).await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3", "3", "4"]);
    let attempts: Vec<_> = memory.all().iter().map(|seen| seen.message.attempts).collect();
    assert_eq!(
        attempts,
        [0, 0, 0, 0, 1, 0],
        "the try counts for the message that was tried, and for no other"
    );
    db.remove().await;
}

async fn a_message_left_unsettled_before_a_retry_comes_again_with_everything_behind_it<S: Server>() {
    let (db, memory) = played::<S>(4, |call, n| match (call, n) {
        (1, "1") => Step::Leave,
        (1, "2") => Step::Reject("not written: it comes again".to_owned()),
        (1, "3") => retry(),
        _ => Step::Ack,
    })
    .await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3", "1", "2", "3"]);
    assert!(dead(&db).await.is_empty(), "a rejection behind an unsettled message is not written");
    db.remove().await;
}

async fn reject_of_the_batch_buries_what_was_taken_and_is_unsettled<S: Server>() {
    let (db, memory) = played::<S>(5, |call, n| match (call, n) {
        (1, "1" | "3") => Step::Leave,
        (1, "4") => Step::Return(HandlerResult::Reject { reason: "all wrong".to_owned() }),
        _ => Step::Ack,
    })
    .await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3", "4"]);
    let expected = ["1", "3", "4"].map(|n| (n.to_owned(), "all wrong".to_owned()));
    assert_eq!(dead(&db).await, expected);
    db.remove().await;
}

async fn single_rejections_are_buried_with_their_reasons<S: Server>() {
    let (db, memory) =
        played::<S>(4, |_, n| if n == "0" || n == "2" { Step::Reject(format!("no {n}")) } else { Step::Ack })
            .await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3"]);
    assert_eq!(dead(&db).await, ["0", "2"].map(|n| (n.to_owned(), format!("no {n}"))));
    db.remove().await;
}

async fn acking_too_much_settles_no_other_message<S: Server>() {
    let (db, memory) = played::<S>(3, |call, n| match (call, n) {
        (1, "0") => Step::AckMany(1000),
        (1, "1") => retry(),
        _ => Step::Ack,
    })
    .await;
    assert_eq!(memory.payloads(), ["0", "1", "1", "2"], "the acks that were too many are not carried over");
    db.remove().await;
}

async fn success_without_taking_a_message_is_a_retry<S: Server>() {
    use posthaste::{Batch, LeasedHandler};
    use std::sync::atomic::{AtomicU32, Ordering};
    struct Lazy(AtomicU32, Memory);
    impl LeasedHandler for Lazy {
        async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
            if self.0.fetch_add(1, Ordering::SeqCst) < 3 {
                return HandlerResult::Success;
            }
            for message in batch.next_chunk(usize::MAX) {
                self.1.note(message);
            }
            assert_eq!((batch.len(), batch.processed(), batch.is_empty()), (2, 0, false));
            batch.ack_chunk(2);
            assert_eq!(batch.processed(), 2);
            HandlerResult::Success
        }
    }
    let (db, memory) = (fresh::<S>().await, Memory::new());
    remember_links(&db).await;
    let handle = builder(&db)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(1))
        .leased(Lazy(AtomicU32::new(0), memory.clone()))
        .start()
        .await
        .unwrap();
    let messages = [EnqueueMessage::new("a"), EnqueueMessage::new("b")];
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    memory.has(2).await;
    assert_eq!(memory.all()[0].message.attempts, 3);
    handle.stop().await;
    let errors = count(&db.pool, "SELECT count(*) FROM links WHERE last_error LIKE '%without taking%'").await;
    assert!(errors >= 3);
    db.remove().await;
}

async fn a_panic_is_a_retry_with_its_text<S: Server>() {
    let (db, memory) = played::<S>(3, |call, n| match (call, n) {
        (1, "1") => Step::Panic("bad luck".to_owned()),
        _ => Step::Ack,
    })
    .await;
    assert_eq!(memory.payloads(), ["0", "1", "1", "2"]);
    let errors = "SELECT count(*) FROM links WHERE last_error = 'panic: bad luck' AND attempts = 1";
    assert_eq!(count(&db.pool, errors).await, 1);
    db.remove().await;
}

/// The handler settled all it took and failed for another reason: nobody else pays for that.
async fn a_retry_with_everything_settled_is_no_try_of_the_next_message<S: Server>() {
    let db = fresh::<S>().await;
    let memory = Memory::new();
    let handler = {
        use posthaste::{Batch, LeasedHandler};
        struct FailsAfterwards(Memory);
        impl LeasedHandler for FailsAfterwards {
            async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
                for message in batch.next_chunk(2) {
                    self.0.note(message);
                }
                batch.ack_chunk(2.min(batch.len()));
                HandlerResult::Retry { reason: "flush failed".to_owned() }
            }
        }
        FailsAfterwards(memory.clone())
    };
    let handle = builder(&db)
        .processor_tuning(quick_retries().degradation_threshold(100))
        .queue("q", Partitions::of(1))
        .leased(handler)
        .max_attempts(1)
        .start()
        .await
        .unwrap();
    let messages: Vec<_> = (0..5).map(|n| EnqueueMessage::new(n.to_string())).collect();
    handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    eventually("all are settled", async || settled(&db.pool).await == 5).await;
    handle.stop().await;
    assert_eq!(memory.payloads(), ["0", "1", "2", "3", "4"]);
    assert!(memory.all().iter().all(|seen| seen.message.attempts == 0));
    assert!(dead(&db).await.is_empty());
    db.remove().await;
}
