//! What can go wrong.

use crate::{
    OutboxMessageId,
    limits::{MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY, MAX_PAYLOAD_TYPE, MAX_QUEUE_NAME},
    store::Failure,
};

/// What can go wrong. Everything but [`Database`](Self::Database) is found before anything is written, and leaves the
/// caller's transaction usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    /// Nobody has registered this queue.
    #[error("queue {0:?} is not registered: start an outbox that has it, or check the name")]
    QueueNotRegistered(String),
    /// The queue has fewer partitions.
    #[error("queue {queue:?} has no partition {partition}: the last one is {max}")]
    PartitionOutOfRange {
        /// The queue.
        queue: String,
        /// The partition that was asked for.
        partition: u32,
        /// The last one that it has.
        max: u32,
    },
    /// The payload is larger than the outbox takes.
    #[error("a payload of {size} bytes is too large: the limit is {max} (see OutboxBuilder::max_payload)")]
    PayloadTooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// The queue is registered with another number of partitions, which cannot change.
    #[error(
        "queue {queue:?} is registered with {found} partitions, not {expected}: the number cannot change"
    )]
    PartitionCountMismatch {
        /// The queue.
        queue: String,
        /// The count that was asked for.
        expected: u32,
        /// The count that it has.
        found: u32,
    },
    /// A queue name is 1 to 128 of `[A-Za-z0-9._-]`.
    #[error("{0:?} is not a queue name: use 1 to {MAX_QUEUE_NAME} of A-Z, a-z, 0-9, '.', '_' and '-'")]
    InvalidQueueName(String),
    /// A payload type is 1 to 255 printable ASCII characters.
    #[error("{0:?} is not a payload type: use 1 to {MAX_PAYLOAD_TYPE} printable ASCII characters")]
    InvalidPayloadType(String),
    /// A key is 1 to 255 bytes without NUL.
    #[error("a key of {bytes} bytes is not valid: use 1 to {MAX_KEY} bytes without NUL")]
    InvalidKey {
        /// How many bytes it has. What it is may be nobody's business.
        bytes: usize,
    },
    /// At most 64 headers, 16 KiB together.
    #[error(
        "{count} headers of {bytes} bytes are too many: the limits are {MAX_HEADERS} and {MAX_HEADER_BYTES} bytes"
    )]
    TooManyHeaders {
        /// How many there are.
        count: usize,
        /// How many bytes their names and values have.
        bytes: usize,
    },
    /// A table prefix or schema is 1 to 32 of `[a-z0-9_]` and does not start with a digit.
    #[error("{0:?} is not a table prefix or schema: use 1 to 32 of a-z, 0-9 and '_', not a digit first")]
    InvalidTableName(String),
    /// The tables are not there, or older than this version needs.
    #[error("the outbox's tables have version {found}, this library needs {needed}: run posthaste::migrate")]
    NotMigrated {
        /// The version that was found; 0 if there are no tables.
        found: i32,
        /// The version that is needed.
        needed: i32,
    },
    /// The tables are of a later version that says it is not compatible with this one.
    #[error(
        "the outbox's tables have version {found}, which needs a library for version {least} or later, not {ours}"
    )]
    SchemaTooNew {
        /// The version that was found.
        found: i32,
        /// The oldest library that may use it.
        least: i32,
        /// The version that this library is for.
        ours: i32,
    },
    /// The database is not set up as the outbox needs it.
    #[error("{0}")]
    Unsuitable(String),
    /// The builder was told two things that do not go together.
    #[error("{0}")]
    Configuration(String),
    /// A value that makes no sense, or is out of its bounds.
    #[error("{0}")]
    InvalidArgument(String),
    /// These dead letters were named, but are not there, not in the right state, or somebody is at them. Nothing was changed.
    #[error(
        "dead letters {} are not there, not {expected}, or somebody is at them: nothing was changed",
        listed(ids)
    )]
    DeadLettersNotFound {
        /// Which of them.
        ids: Vec<OutboxMessageId>,
        /// What they would have to be.
        expected: String,
    },
    /// These claims are not valid any more: they ran out and somebody else has claimed the dead letters, or they have
    /// ended already. Nothing was changed.
    #[error(
        "the claims on dead letters {} are stale: they ran out and others have them, or they have ended; nothing was changed",
        listed(ids)
    )]
    StaleClaims {
        /// On which of them.
        ids: Vec<OutboxMessageId>,
    },
    /// A value could not be serialised.
    #[error("the payload cannot be serialised: {0}")]
    Json(#[from] serde_json::Error),
    /// The database said no, or nothing.
    #[error("database: {0}")]
    Database(#[from] sqlx::Error),
}

/// The first few of them.
fn listed(ids: &[OutboxMessageId]) -> String {
    const ENOUGH: usize = 20;
    let mut text = ids.iter().take(ENOUGH).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if ids.len() > ENOUGH {
        text.push_str(&format!(" and {} more", ids.len() - ENOUGH));
    }
    text
}

impl OutboxError {
    /// Whether the same call may succeed if it is tried again: a lost connection, a deadlock, a server that restarts.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        let Self::Database(error) = self else { return false };
        match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => true,
            sqlx::Error::Database(error) => Failure::of(&**error).is_retryable(),
            _ => false,
        }
    }

    /// What the database calls it, if it is the database that says so.
    pub(crate) fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
        match self {
            Self::Database(sqlx::Error::Database(error)) => error.code(),
            _ => None,
        }
    }

    /// Whether the connection that this happened on may still be good.
    pub(crate) fn leaves_connection_usable(&self) -> bool {
        match self {
            Self::Database(sqlx::Error::Database(error)) => Failure::of(&**error).leaves_connection_usable(),
            Self::Database(
                sqlx::Error::RowNotFound | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. },
            ) => true,
            Self::Database(_) => false,
            _ => true,
        }
    }
}

/// Cuts a text to at most `max` bytes at a character's end, and takes NUL out: no database can keep that in a text.
pub(crate) fn storable(text: &str, max: usize) -> String {
    let mut text = text.replace('\0', "");
    text.truncate(text.floor_char_boundary(max));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_cut_at_a_characters_end_and_has_no_nul() {
        assert_eq!(storable("a\0b", 10), "ab");
        assert_eq!(storable("ääää", 5), "ää");
        assert_eq!(storable(&"x".repeat(1 << 20), 4096).len(), 4096);
    }
}
