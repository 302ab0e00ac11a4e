//! A dead letter, and the proof that somebody reprocesses it.

use std::{fmt, str::FromStr, sync::Arc, time::SystemTime};

use uuid::Uuid;

use crate::{OutboxError, OutboxMessageId};

/// What a dead letter is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeadLetterStatus {
    /// For somebody to decide. A claim that has run out is pending again.
    Pending,
    /// For whoever has claimed it, until a deadline.
    Reprocessing,
    /// For cleanup: it was reprocessed, or sent back into its queue.
    Resolved,
    /// For cleanup: it was thrown away.
    Discarded,
}

impl DeadLetterStatus {
    const ALL: [(Self, &'static str); 4] = [
        (Self::Pending, "pending"),
        (Self::Reprocessing, "reprocessing"),
        (Self::Resolved, "resolved"),
        (Self::Discarded, "discarded"),
    ];
}

impl fmt::Display for DeadLetterStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(status, _)| status == self).map_or("", |(_, name)| *name);
        f.pad(name)
    }
}

impl FromStr for DeadLetterStatus {
    type Err = OutboxError;

    fn from_str(text: &str) -> Result<Self, OutboxError> {
        let known = Self::ALL.iter().find(|(_, name)| *name == text);
        known.map(|(status, _)| *status).ok_or_else(|| {
            let names = Self::ALL.map(|(_, name)| name).join(", ");
            OutboxError::InvalidArgument(format!(
                "{text:?} is no status of a dead letter: use one of {names}"
            ))
        })
    }
}

/// A rejected message, kept whole.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterMessage {
    /// The message's number.
    pub id: OutboxMessageId,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its partition in the queue.
    pub partition: u32,
    /// The partition's number in the database, among those of all queues.
    pub partition_id: i32,
    /// Its place in the partition.
    pub seq: i64,
    /// Its key.
    pub key: Option<String>,
    /// Its headers, in the order in which they were given.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub payload: Vec<u8>,
    /// What the payload is.
    pub payload_type: String,
    /// When it was enqueued.
    pub created_at: SystemTime,
    /// How often it was tried, by its handler and by those who reprocessed it.
    pub attempts: u32,
    /// Why it was rejected, most recently.
    pub reason: String,
    /// When it became a dead letter.
    pub rejected_at: SystemTime,
    /// What it is waiting for.
    pub status: DeadLetterStatus,
    /// When the status last changed; that a claim has run out is no change.
    pub changed_at: SystemTime,
    /// Until when somebody has claimed it.
    pub claimed_until: Option<SystemTime>,
    /// The message that it was sent back into its queue as.
    pub redelivered_as: Option<OutboxMessageId>,
}

/// Without payload, key and headers, nor the reason, in which a handler may have put some of them: they are nobody's business but
/// the operator's.
impl fmt::Debug for DeadLetterMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadLetterMessage")
            .field("id", &self.id.0)
            .field("queue", &self.queue)
            .field("partition", &self.partition)
            .field("seq", &self.seq)
            .field("payload_type", &self.payload_type)
            .field("payload_bytes", &self.payload.len())
            .field("attempts", &self.attempts)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

/// Proves that a dead letter was claimed: whoever claims it next gets another one. As text, it can go through other systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadLetterToken(pub(crate) Uuid);

impl fmt::Display for DeadLetterToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for DeadLetterToken {
    type Err = OutboxError;

    fn from_str(text: &str) -> Result<Self, OutboxError> {
        let wrong = |_| {
            OutboxError::InvalidArgument(
                "this is no token of a claim: it is 32 hexadecimal digits".to_owned(),
            )
        };
        Uuid::try_parse(text).map(Self).map_err(wrong)
    }
}

/// A dead letter that somebody reprocesses, and the proof of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeadLetterClaim {
    /// The dead letter.
    pub id: OutboxMessageId,
    /// The proof.
    pub token: DeadLetterToken,
}

/// A dead letter to reprocess. What [`Outbox::dead_letter_replay`](crate::Outbox::dead_letter_replay) returns can be given to
/// [`dead_letter_resolve`](crate::Outbox::dead_letter_resolve) and [`dead_letter_reject`](crate::Outbox::dead_letter_reject) as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimedDeadLetter {
    /// To say how it ended.
    pub claim: DeadLetterClaim,
    /// What to reprocess.
    pub message: DeadLetterMessage,
}

impl AsRef<DeadLetterClaim> for DeadLetterClaim {
    fn as_ref(&self) -> &DeadLetterClaim {
        self
    }
}

impl AsRef<DeadLetterClaim> for ClaimedDeadLetter {
    fn as_ref(&self) -> &DeadLetterClaim {
        &self.claim
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_is_written() {
        for (status, name) in DeadLetterStatus::ALL {
            assert_eq!((status.to_string(), name.parse().ok()), (name.to_owned(), Some(status)));
        }
        assert!("Pending".parse::<DeadLetterStatus>().unwrap_err().to_string().contains("discarded"));
    }

    #[test]
    fn a_token_is_read_as_it_is_written() {
        let token = DeadLetterToken(Uuid::new_v4());
        assert_eq!(token.to_string().parse::<DeadLetterToken>().ok(), Some(token));
        assert!("7".parse::<DeadLetterToken>().is_err());
    }
}
