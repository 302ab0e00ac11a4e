//! Waiting until a queue has nothing left.

use std::{panic::Location, time::Duration};

use sqlx::Connection;
use tokio::time::Instant;

use super::{
    DEFAULT_LIMIT,
    report::{Describe, or_panic},
};
use crate::{
    Outbox, OutboxError,
    queue::check_name,
    store::{Backend, Store, Unsettled},
};

/// How long to wait before another look.
const PAUSE: Duration = Duration::from_millis(5);
/// How long a look may take, however short the limit is.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Waits until a queue is drained: everything that is committed is settled, delivered or made a dead letter, the messages that
/// handlers enqueued meanwhile included. It goes by a look at one moment, so a queue that somebody keeps filling may never be.
///
/// # Panics
///
/// After [`DEFAULT_LIMIT`]: the text says what each partition has left, for how long, and why the last try failed. Or if the
/// queue is not registered, or the database does not answer.
#[track_caller]
pub fn wait_until_drained<DB: Backend>(outbox: &Outbox<DB>, queue: &str) -> impl Future<Output = ()> {
    wait_until_drained_within(outbox, queue, DEFAULT_LIMIT)
}

/// Like [`wait_until_drained`], with another limit: zero for one look.
///
/// # Panics
///
/// As [`wait_until_drained`] does, after this limit.
#[track_caller]
pub fn wait_until_drained_within<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    limit: Duration,
) -> impl Future<Output = ()> {
    or_panic(Location::caller(), async move {
        let began = Instant::now();
        loop {
            let patience = limit.saturating_sub(began.elapsed()).max(LOOK_LIMIT);
            let Ok(looked) = tokio::time::timeout(patience, look(outbox, queue)).await else {
                return Err(unreadable(queue, limit));
            };
            let unsettled = looked.map_err(|error| error.to_string())?;
            if unsettled.is_empty() {
                return Ok(());
            }
            if began.elapsed() >= limit {
                return Err(late(outbox, queue, limit, &unsettled).await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

async fn look<DB: Backend>(outbox: &Outbox<DB>, name: &str) -> Result<Vec<Unsettled>, OutboxError> {
    check_name(name)?;
    let mut conn = outbox.store().lend(outbox.pool()).await?;
    // One that begins now: in a session that does not commit by itself, another might show what was.
    let mut tx = conn.begin().await?;
    let queue = outbox.queue(&mut tx, name).await?;
    let unsettled = outbox.store().unsettled(&mut tx, &queue).await?;
    tx.rollback().await?;
    Ok(unsettled)
}

fn unreadable(queue: &str, limit: Duration) -> String {
    format!("queue {queue:?} could not be read within {limit:?}: is a transaction of the test still open?")
}

/// What to say when the time is up.
async fn late<DB: Backend>(outbox: &Outbox<DB>, queue: &str, limit: Duration, left: &[Unsettled]) -> String {
    let mut text = format!("queue {queue:?} is not drained after {limit:?}");
    if left.iter().all(|left| left.attempts == 0) {
        text.push_str(
            ", and nothing of it was tried: does an outbox run that has a handler for it, or is it paused?",
        );
    }
    for left in left {
        text.push_str(&format!("\n  partition {}: {}", left.partition, state(left)));
        // It is only told for the sake of the reader.
        let first = tokio::time::timeout(LOOK_LIMIT, message(outbox, queue, left.first_id));
        if let Ok(Ok(Some(message))) = first.await {
            text.push_str(&format!("\n    {message}"));
        }
    }
    text
}

fn state(left: &Unsettled) -> String {
    let Unsettled { sequenced, unsequenced, age, attempts, last_error, .. } = left;
    let mut text = format!("{} left", sequenced + unsequenced);
    if *unsequenced > 0 {
        text.push_str(&format!(", {unsequenced} of them not sequenced yet"));
    }
    text.push_str(&format!("; the first is {:?} old", Duration::from_millis(round(*age))));
    text.push_str(&match attempts {
        0 => ", not tried".to_owned(),
        1 => ", tried once".to_owned(),
        attempts => format!(", tried {attempts} times"),
    });
    if let Some(error) = last_error {
        text.push_str(&format!("; the last error: {error}"));
    }
    text
}

fn round(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

/// A message in a line, if it is still there.
async fn message<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    id: Option<i64>,
) -> Result<Option<String>, OutboxError> {
    let Some(id) = id else { return Ok(None) };
    let mut conn = outbox.store().lend(outbox.pool()).await?;
    let queue = outbox.queue(&mut conn, queue).await?;
    let found = outbox.store().peek(&mut conn, &queue, id - 1, 1).await?;
    Ok(found.first().filter(|message| message.id.0 == id).map(Describe::describe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_told_in_a_line() {
        let left = Unsettled {
            partition: 0,
            sequenced: 2,
            unsequenced: 1,
            first_id: None,
            age: Duration::from_micros(1_234_567),
            attempts: 3,
            last_error: Some("no route".to_owned()),
        };
        assert_eq!(
            state(&left),
            "3 left, 1 of them not sequenced yet; the first is 1.234s old, tried 3 times; the last error: no route"
        );
        let left = Unsettled { unsequenced: 0, attempts: 0, last_error: None, ..left };
        assert_eq!(state(&left), "2 left; the first is 1.234s old, not tried");
    }
}
