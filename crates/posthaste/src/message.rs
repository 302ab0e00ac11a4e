//! Messages: what goes in, and what comes out.

use std::{borrow::Cow, fmt, sync::Arc, time::SystemTime};

use serde::Serialize;

use crate::{
    OutboxError,
    limits::{MAX_HEADER_BYTES, MAX_HEADERS, MAX_KEY, MAX_PAYLOAD_TYPE},
};

/// The number of a message: the key to deduplicate by. It never changes its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutboxMessageId(pub i64);

impl fmt::Display for OutboxMessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message to enqueue.
///
/// ```
/// use posthaste::EnqueueMessage;
///
/// let message = EnqueueMessage::new(b"42 euros".to_vec())
///     .key("customer-7")
///     .payload_type("order.created")
///     .header("source", "web");
/// assert_eq!(message.payload, b"42 euros");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct EnqueueMessage<'a> {
    /// The partition; ignored if there is a key.
    pub partition: u32,
    /// What to deliver.
    pub payload: Vec<u8>,
    /// What the payload is: 1 to 255 printable ASCII characters.
    pub payload_type: &'a str,
    /// Decides the partition, if there is one: messages with the same key are in the same partition.
    pub key: Option<Cow<'a, str>>,
    /// Delivered along, in this order; a name may occur more than once.
    pub headers: Vec<(Cow<'a, str>, Cow<'a, str>)>,
}

/// The name and the value of a header.
pub(crate) type Header<'a> = (Cow<'a, str>, Cow<'a, str>);

/// How long headers are together, by what the limit is of.
pub(crate) fn header_bytes(headers: &[Header<'_>]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Without the payload, the key and the headers, like [`OutboxMessage`].
impl fmt::Debug for EnqueueMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueueMessage")
            .field("partition", &self.partition)
            .field("payload_type", &self.payload_type)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl Default for EnqueueMessage<'_> {
    fn default() -> Self {
        Self {
            partition: 0,
            payload: Vec::new(),
            payload_type: "application/octet-stream",
            key: None,
            headers: Vec::new(),
        }
    }
}

impl<'a> EnqueueMessage<'a> {
    /// A message for partition 0, without a key.
    #[must_use]
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..Self::default() }
    }

    /// A message whose payload is a value as JSON, of the type `application/json`.
    ///
    /// # Errors
    ///
    /// If the value cannot be serialised.
    pub fn json(value: &impl Serialize) -> Result<Self, OutboxError> {
        Ok(Self::new(serde_json::to_vec(value)?).payload_type("application/json"))
    }

    /// Sets the partition.
    #[must_use]
    pub const fn partition(mut self, partition: u32) -> Self {
        self.partition = partition;
        self
    }

    /// Sets the key, which decides the partition.
    #[must_use]
    pub fn key(mut self, key: impl Into<Cow<'a, str>>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets the type of the payload.
    #[must_use]
    pub const fn payload_type(mut self, payload_type: &'a str) -> Self {
        self.payload_type = payload_type;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Everything that can be said without knowing the queue.
    pub(crate) fn validate(&self, max_payload: usize) -> Result<(), OutboxError> {
        if self.payload.len() > max_payload {
            return Err(OutboxError::PayloadTooLarge { size: self.payload.len(), max: max_payload });
        }
        check_payload_type(self.payload_type)?;
        self.key.as_deref().map_or(Ok(()), check_key)?;
        let (count, bytes) = (self.headers.len(), header_bytes(&self.headers));
        if count > MAX_HEADERS || bytes > MAX_HEADER_BYTES {
            return Err(OutboxError::TooManyHeaders { count, bytes });
        }
        Ok(())
    }
}

/// Refuses what is not a type of payload.
pub(crate) fn check_payload_type(payload_type: &str) -> Result<(), OutboxError> {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    if (1..=MAX_PAYLOAD_TYPE).contains(&payload_type.len()) && payload_type.bytes().all(printable) {
        return Ok(());
    }
    Err(OutboxError::InvalidPayloadType(excerpt(payload_type)))
}

/// Refuses what is not a key.
pub(crate) fn check_key(key: &str) -> Result<(), OutboxError> {
    if (1..=MAX_KEY).contains(&key.len()) && !key.contains('\0') {
        return Ok(());
    }
    Err(OutboxError::InvalidKey { bytes: key.len() })
}

/// Enough of a wrong value to recognise it by.
pub(crate) fn excerpt(text: &str) -> String {
    const ENOUGH: usize = 64;
    let end = text.floor_char_boundary(ENOUGH);
    if end == text.len() { text.to_owned() } else { format!("{}… ({} bytes)", &text[..end], text.len()) }
}

/// A message as its handler gets it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxMessage {
    /// Its number, the key to deduplicate by.
    pub id: OutboxMessageId,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its partition in the queue.
    pub partition: u32,
    /// The partition's number in the database, among those of all queues.
    pub partition_id: i32,
    /// Its place in the partition: 1, 2, 3 … without gaps.
    pub seq: i64,
    /// Its key.
    pub key: Option<String>,
    /// Its headers, in the order in which they were given.
    pub headers: Vec<(String, String)>,
    /// Its payload.
    pub payload: Vec<u8>,
    /// What the payload is.
    pub payload_type: String,
    /// When it was enqueued, by the database's clock.
    pub created_at: SystemTime,
    /// How often it was tried before, crashes included; known of the first message of a batch, 0 for the others.
    pub attempts: u32,
}

/// Without the payload: that is nobody's business but the handler's.
impl fmt::Debug for OutboxMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxMessage")
            .field("id", &self.id.0)
            .field("queue", &self.queue)
            .field("partition", &self.partition)
            .field("seq", &self.seq)
            .field("payload_type", &self.payload_type)
            .field("payload_bytes", &self.payload.len())
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
