//! What lies in a queue, and whether that is what the test wants.

use std::{ops::ControlFlow, panic::Location};

use sqlx::Connection;

use super::{
    DEFAULT_LIMIT,
    report::{Describe, LISTED, list, messages, or_panic},
};
use crate::{
    Outbox, OutboxError, Target,
    enqueued::EnqueuedMessage,
    queue::check_name,
    store::{Backend, Store},
};

/// How many messages are read in one go.
const PAGE: u32 = 100;

/// All messages of a queue that are committed, in the order of their ids. With workers, that is what they have not removed
/// yet, settled or not: to see what was delivered, use a [`Collector`](super::Collector).
///
/// It reads all messages of the outbox to find those of the queue: good for tests.
///
/// # Panics
///
/// If the queue is not registered, or the database does not answer. On a SQLite database in memory it does not while a
/// transaction is open that has written: then look there, with [`enqueued_in`].
#[track_caller]
pub fn enqueued<DB: Backend>(outbox: &Outbox<DB>, queue: &str) -> impl Future<Output = Vec<EnqueuedMessage>> {
    enqueued_in(outbox, outbox.pool(), queue)
}

/// Like [`enqueued`], as a connection sees it: in a transaction, with what that has enqueued itself.
///
/// # Panics
///
/// If the queue is not registered, or the database does not answer.
#[track_caller]
pub fn enqueued_in<'c, DB: Backend>(
    outbox: &Outbox<DB>,
    conn: impl Into<Target<'c, DB>>,
    queue: &str,
) -> impl Future<Output = Vec<EnqueuedMessage>> {
    or_panic(Location::caller(), all(outbox, conn.into(), queue))
}

/// Asserts that a queue has a message, and returns the first that matches. See [`enqueued`] for which messages it has.
///
/// # Panics
///
/// If no message matches: the text says which are there. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_enqueued<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    wanted: impl FnMut(&EnqueuedMessage) -> bool,
) -> impl Future<Output = EnqueuedMessage> {
    assert_enqueued_in(outbox, outbox.pool(), queue, wanted)
}

/// Like [`assert_enqueued`], as a connection sees it: in a transaction, with what that has enqueued itself.
///
/// ```
/// # use posthaste::{EnqueueMessage, Outbox, testing};
/// # async fn test(pool: sqlx::PgPool, outbox: Outbox<sqlx::Postgres>) {
/// let mut tx = pool.begin().await.unwrap();
/// outbox.enqueue(&mut tx, "orders", EnqueueMessage::new("a chair").key("customer-7")).await.unwrap();
/// testing::assert_enqueued_in(&outbox, &mut tx, "orders", |m| m.key.as_deref() == Some("customer-7")).await;
/// # }
/// ```
///
/// # Panics
///
/// If no message matches: the text says which are there. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_enqueued_in<'c, DB: Backend>(
    outbox: &Outbox<DB>,
    conn: impl Into<Target<'c, DB>>,
    queue: &str,
    mut wanted: impl FnMut(&EnqueuedMessage) -> bool,
) -> impl Future<Output = EnqueuedMessage> {
    let (caller, target) = (Location::caller(), conn.into());
    or_panic(caller, async move {
        let (found, others) = first(outbox, target, queue, &mut wanted).await?;
        found.ok_or_else(|| {
            let (count, list) = (messages(others.count), list(&others.first, others.count));
            format!("queue {queue:?} has no such message; it has {count}{list}")
        })
    })
}

/// Asserts that a queue has so many messages, and returns them. See [`enqueued`] for which it has.
///
/// # Panics
///
/// If there are more or fewer: the text says which are there. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_enqueued_count<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    count: usize,
) -> impl Future<Output = Vec<EnqueuedMessage>> {
    assert_enqueued_count_in(outbox, outbox.pool(), queue, count)
}

/// Like [`assert_enqueued_count`], as a connection sees it: in a transaction, with what that has enqueued itself.
///
/// # Panics
///
/// If there are more or fewer: the text says which are there. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_enqueued_count_in<'c, DB: Backend>(
    outbox: &Outbox<DB>,
    conn: impl Into<Target<'c, DB>>,
    queue: &str,
    count: usize,
) -> impl Future<Output = Vec<EnqueuedMessage>> {
    let (caller, target) = (Location::caller(), conn.into());
    or_panic(caller, async move {
        let found = all(outbox, target, queue).await?;
        if found.len() == count {
            return Ok(found);
        }
        let (has, wanted) =
            (messages(found.len()), if count == 0 { "none".into() } else { count.to_string() });
        Err(format!("queue {queue:?} has {has}, not {wanted}{}", list(&found, found.len())))
    })
}

/// Asserts that a queue has no message that matches. See [`enqueued`] for which messages it has.
///
/// # Panics
///
/// If there is one: the text says which. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_not_enqueued<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    unwanted: impl FnMut(&EnqueuedMessage) -> bool,
) -> impl Future<Output = ()> {
    assert_not_enqueued_in(outbox, outbox.pool(), queue, unwanted)
}

/// Like [`assert_not_enqueued`], as a connection sees it: in a transaction, with what that has enqueued itself.
///
/// # Panics
///
/// If there is one: the text says which. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_not_enqueued_in<'c, DB: Backend>(
    outbox: &Outbox<DB>,
    conn: impl Into<Target<'c, DB>>,
    queue: &str,
    mut unwanted: impl FnMut(&EnqueuedMessage) -> bool,
) -> impl Future<Output = ()> {
    let (caller, target) = (Location::caller(), conn.into());
    or_panic(caller, async move {
        let (found, _) = first(outbox, target, queue, &mut unwanted).await?;
        found.map_or(Ok(()), |found| {
            Err(format!("queue {queue:?} has a message that it should not have\n  {}", found.describe()))
        })
    })
}

/// Asserts that a queue has no messages. See [`enqueued`] for which it has.
///
/// # Panics
///
/// If there are any: the text says which. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_nothing_enqueued<DB: Backend>(outbox: &Outbox<DB>, queue: &str) -> impl Future<Output = ()> {
    assert_nothing_enqueued_in(outbox, outbox.pool(), queue)
}

/// Like [`assert_nothing_enqueued`], as a connection sees it: in a transaction, with what that has enqueued itself.
///
/// # Panics
///
/// If there are any: the text says which. Or as [`enqueued`] does.
#[track_caller]
pub fn assert_nothing_enqueued_in<'c, DB: Backend>(
    outbox: &Outbox<DB>,
    conn: impl Into<Target<'c, DB>>,
    queue: &str,
) -> impl Future<Output = ()> {
    let nothing = assert_enqueued_count_in(outbox, conn, queue, 0);
    async { drop(nothing.await) }
}

/// Messages that were passed: how many, and the first of them.
#[derive(Default)]
struct Passed {
    count: usize,
    first: Vec<EnqueuedMessage>,
}

/// The first message that matches, and what was passed before.
async fn first<DB: Backend>(
    outbox: &Outbox<DB>,
    target: Target<'_, DB>,
    queue: &str,
    matches: &mut impl FnMut(&EnqueuedMessage) -> bool,
) -> Result<(Option<EnqueuedMessage>, Passed), String> {
    let (mut found, mut passed) = (None, Passed::default());
    let look = |message: EnqueuedMessage| {
        if matches(&message) {
            found = Some(message);
            return ControlFlow::Break(());
        }
        passed.count += 1;
        if passed.count <= LISTED {
            passed.first.push(message);
        }
        ControlFlow::Continue(())
    };
    read(outbox, target, queue, look).await?;
    Ok((found, passed))
}

async fn all<DB: Backend>(
    outbox: &Outbox<DB>,
    target: Target<'_, DB>,
    queue: &str,
) -> Result<Vec<EnqueuedMessage>, String> {
    let mut all = Vec::new();
    let keep = |message| {
        all.push(message);
        ControlFlow::Continue(())
    };
    read(outbox, target, queue, keep).await?;
    Ok(all)
}

/// Reads a queue to its end, or until `each` has enough.
async fn read<DB: Backend>(
    outbox: &Outbox<DB>,
    target: Target<'_, DB>,
    queue: &str,
    each: impl FnMut(EnqueuedMessage) -> ControlFlow<()>,
) -> Result<(), String> {
    match tokio::time::timeout(DEFAULT_LIMIT, read_unlimited(outbox, target, queue, each)).await {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err(format!(
            "queue {queue:?} could not be read within {DEFAULT_LIMIT:?}: is a transaction of the test still open? Then end it, or \
             look on its connection (the functions that end in `_in`)"
        )),
    }
}

async fn read_unlimited<DB: Backend>(
    outbox: &Outbox<DB>,
    target: Target<'_, DB>,
    queue: &str,
    each: impl FnMut(EnqueuedMessage) -> ControlFlow<()>,
) -> Result<(), OutboxError> {
    match target {
        Target::Connection(conn) => read_pages(outbox, conn, queue, each).await,
        Target::Pool(pool) => {
            let mut conn = outbox.store().lend(pool).await?;
            // One that begins now: in a session that does not commit by itself, another might show what was.
            let mut tx = conn.begin().await?;
            read_pages(outbox, &mut tx, queue, each).await?;
            Ok(tx.rollback().await?)
        }
    }
}

async fn read_pages<DB: Backend>(
    outbox: &Outbox<DB>,
    conn: &mut DB::Connection,
    queue: &str,
    mut each: impl FnMut(EnqueuedMessage) -> ControlFlow<()>,
) -> Result<(), OutboxError> {
    check_name(queue)?;
    let queue = outbox.queue(conn, queue).await?;
    let mut after_id = 0;
    loop {
        let page = outbox.store().peek(conn, &queue, after_id, PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        after_id = last.id.0;
        for message in page {
            if each(message).is_break() {
                return Ok(());
            }
        }
    }
}
