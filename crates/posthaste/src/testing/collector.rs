//! A handler that keeps what it is given, and messages to give to handlers.

use std::{
    panic::Location,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};

use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    DEFAULT_LIMIT,
    report::{Describe, list, messages, or_panic},
};
use crate::{
    EnqueueMessage, HandlerResult, LeasedMessageHandler, MessageResult, OutboxMessage, OutboxMessageId,
    TransactionalHandler, TransactionalMessageHandler, limits::DEFAULT_MAX_PAYLOAD, store::Backend,
};

/// A handler, for every mode, that collects what is delivered. All clones collect into one.
///
/// A message is collected when the handler is called, in the order of the calls: in order per partition. It is settled a moment
/// later; [`wait_until_drained`](super::wait_until_drained) waits for that. A message that comes again is collected again.
///
/// ```no_run
/// use posthaste::{Outbox, Partitions, testing::Collector};
///
/// # async fn test(pool: sqlx::PgPool) -> Result<(), posthaste::OutboxError> {
/// let (orders, audit) = (Collector::new(), Collector::new());
/// let handle = Outbox::builder(pool)
///     .queue("orders", Partitions::of(4)).leased(orders.clone())
///     .queue("audit", Partitions::of(1)).transactional(audit.clone())
///     .start()
///     .await?;
/// // … what is tested …
/// assert_eq!(orders.wait_for(1).await[0].payload_type, "order.placed");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct Collector {
    collected: watch::Sender<Vec<OutboxMessage>>,
}

impl Collector {
    /// A collector that has nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was collected and not taken.
    #[must_use]
    pub fn messages(&self) -> Vec<OutboxMessage> {
        self.collected.borrow().clone()
    }

    /// Takes what was collected: from now on it counts from nothing.
    pub fn take(&self) -> Vec<OutboxMessage> {
        self.collected.send_replace(Vec::new())
    }

    /// How many messages were collected and not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.collected.borrow().len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.collected.borrow().is_empty()
    }

    /// The payloads of [`messages`](Self::messages), read as JSON.
    ///
    /// # Panics
    ///
    /// If one is not, or not of this type: the text shows it.
    #[must_use]
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> Vec<T> {
        let mut values = Vec::new();
        for message in &self.messages() {
            match serde_json::from_slice(&message.payload) {
                Ok(value) => values.push(value),
                Err(error) => panic!(
                    "a payload cannot be read as {}: {error}\n  {}",
                    std::any::type_name::<T>(),
                    message.describe()
                ),
            }
        }
        values
    }

    /// Waits until there are so many messages, or more, and returns all of them.
    ///
    /// # Panics
    ///
    /// After [`DEFAULT_LIMIT`]: the text says which came.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> impl Future<Output = Vec<OutboxMessage>> {
        self.wait_for_within(count, DEFAULT_LIMIT)
    }

    /// Like [`wait_for`](Self::wait_for), with another limit.
    ///
    /// # Panics
    ///
    /// After this limit: the text says which messages came.
    #[track_caller]
    pub fn wait_for_within(&self, count: usize, limit: Duration) -> impl Future<Output = Vec<OutboxMessage>> {
        or_panic(Location::caller(), async move {
            let mut collected = self.collected.subscribe();
            let enough = tokio::time::timeout(limit, collected.wait_for(|came| came.len() >= count)).await;
            if let Ok(Ok(came)) = enough {
                return Ok(came.clone());
            }
            let came = self.messages();
            let (has, wanted) = (messages(came.len()), messages(count));
            Err(format!("after {limit:?} there were {has} of {wanted}{}", list(&came, came.len())))
        })
    }

    fn collect(&self, messages: &[OutboxMessage]) {
        self.collected.send_modify(|collected| collected.extend_from_slice(messages));
    }
}

impl LeasedMessageHandler for Collector {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        self.collect(std::slice::from_ref(msg));
        MessageResult::Ok
    }
}

impl<DB: Backend> TransactionalMessageHandler<DB> for Collector {
    async fn handle(&self, _: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        self.collect(std::slice::from_ref(msg));
        HandlerResult::Success
    }
}

impl<DB: Backend> TransactionalHandler<DB> for Collector {
    async fn handle(&self, _: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        self.collect(msgs);
        HandlerResult::Success
    }
}

/// A message as a handler gets it, to call one in a test without an outbox: the first of its partition, at its first try, with
/// an id that no other call gives. The fields are public: a test may set others.
///
/// ```
/// use posthaste::{EnqueueMessage, LeasedMessageHandler, MessageResult, OutboxMessage, testing};
///
/// struct Ship;
///
/// impl LeasedMessageHandler for Ship {
///     async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
///         if msg.payload.is_empty() { MessageResult::Reject("nothing to ship".into()) } else { MessageResult::Ok }
///     }
/// }
///
/// # /*
/// #[tokio::test]
/// # */
/// async fn an_empty_order_is_rejected() {
///     let message = testing::as_delivered("orders", EnqueueMessage::new("").key("customer-7"));
///     assert_eq!(Ship.handle(&message).await, MessageResult::Reject("nothing to ship".into()));
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(an_empty_order_is_rejected());
/// ```
///
/// # Panics
///
/// If no outbox would take the message.
#[must_use]
#[track_caller]
pub fn as_delivered(queue: &str, message: EnqueueMessage<'_>) -> OutboxMessage {
    static LAST_ID: AtomicI64 = AtomicI64::new(0);
    if let Err(error) = message.validate(DEFAULT_MAX_PAYLOAD) {
        panic!("{error}");
    }
    let EnqueueMessage { partition, payload, payload_type, key, headers } = message;
    OutboxMessage {
        id: OutboxMessageId(LAST_ID.fetch_add(1, Ordering::Relaxed) + 1),
        queue: Arc::from(queue),
        partition,
        partition_id: i32::try_from(partition).unwrap_or(i32::MAX),
        seq: 1,
        key: key.map(std::borrow::Cow::into_owned),
        headers: headers.into_iter().map(|(name, value)| (name.into_owned(), value.into_owned())).collect(),
        payload,
        payload_type: payload_type.to_owned(),
        created_at: SystemTime::now(),
        attempts: 0,
    }
}
