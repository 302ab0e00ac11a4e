//! A message as it lies in the outbox.

use std::{fmt, sync::Arc, time::SystemTime};

use serde::de::DeserializeOwned;

use crate::OutboxMessageId;

/// A message as it lies in the outbox, whether it is delivered already or not. Its place in the partition is not known: it
/// may have none yet.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnqueuedMessage {
    /// Its number.
    pub id: OutboxMessageId,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its partition in the queue.
    pub partition: u32,
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
}

impl EnqueuedMessage {
    /// The first header of that name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// The payload, read as JSON.
    ///
    /// # Errors
    ///
    /// If it is not, or not of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.payload)
    }
}

/// Without the payload, which is nobody's business here.
impl fmt::Debug for EnqueuedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnqueuedMessage")
            .field("id", &self.id.0)
            .field("queue", &self.queue)
            .field("partition", &self.partition)
            .field("key", &self.key)
            .field("payload_type", &self.payload_type)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
