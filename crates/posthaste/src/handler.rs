//! What users write: handlers, and what they return.

use std::{fmt::Display, sync::Arc, time::Duration};

use tracing::Instrument;

use crate::{
    Batch, OutboxMessage,
    limits::{DEFAULT_LEASE_DURATION, DEFAULT_LEASE_HEADROOM, MAX_LEASE_DURATION},
    store::Backend,
    telemetry,
};

/// What became of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MessageResult {
    /// It is done.
    Ok,
    /// It comes again later, and everything behind it.
    Retry,
    /// It becomes a dead letter, with this reason.
    Reject(String),
}

impl<E: Display> From<Result<(), E>> for MessageResult {
    /// An error is a retry.
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Ok,
            Err(error) => {
                // A retry of one message carries no reason; the log does.
                tracing::warn!(%error, "a message handler failed");
                Self::Retry
            }
        }
    }
}

/// What became of a batch. See [`Batch`] for which messages that means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerResult {
    /// What was taken is done.
    Success,
    /// What is not settled comes again later.
    Retry {
        /// Why.
        reason: String,
    },
    /// What was taken and is not settled becomes dead letters.
    Reject {
        /// Why.
        reason: String,
    },
}

impl<E: Display> From<Result<(), E>> for HandlerResult {
    /// An error is a retry.
    fn from(result: Result<(), E>) -> Self {
        match result {
            Ok(()) => Self::Success,
            Err(error) => Self::Retry { reason: error.to_string() },
        }
    }
}

/// Handles one message at a time, under a lease, outside any transaction.
///
/// ```
/// use posthaste::{LeasedMessageHandler, MessageResult, OutboxMessage};
///
/// struct Ship;
///
/// impl LeasedMessageHandler for Ship {
///     async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
///         ship(&msg.payload).await.into()
///     }
/// }
/// # async fn ship(order: &[u8]) -> Result<(), std::io::Error> { Ok(()) }
/// ```
pub trait LeasedMessageHandler: Send + Sync + 'static {
    /// Handles a message. It may come again, with the same id, if this process dies before it is settled.
    fn handle(&self, msg: &OutboxMessage) -> impl Future<Output = MessageResult> + Send;
}

/// Handles a batch, under a lease, outside any transaction. Every [`LeasedMessageHandler`] is one.
pub trait LeasedHandler: Send + Sync + 'static {
    /// Takes messages from the batch and settles them.
    fn handle(&self, batch: &mut Batch<'_>) -> impl Future<Output = HandlerResult> + Send;
}

/// A [`LeasedMessageHandler`] as a [`LeasedHandler`]: takes message after message while there is time.
#[derive(Debug, Clone, Default)]
pub struct PerMessageAdapter<H>(pub H);

impl<H: LeasedMessageHandler> LeasedHandler for H {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        each_message(self, batch).await
    }
}

impl<H: LeasedMessageHandler> LeasedMessageHandler for PerMessageAdapter<H> {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        self.0.handle(msg).await
    }
}

async fn each_message<H: LeasedMessageHandler>(handler: &H, batch: &mut Batch<'_>) -> HandlerResult {
    while !batch.remaining().is_zero() {
        let Some(message) = batch.next_msg() else { break };
        let handling = LeasedMessageHandler::handle(handler, message);
        match handling.instrument(telemetry::message(message)).await {
            MessageResult::Ok => batch.ack(),
            MessageResult::Reject(reason) => batch.reject(reason),
            MessageResult::Retry => {
                return HandlerResult::Retry { reason: "the handler asked for a retry".to_owned() };
            }
        }
    }
    HandlerResult::Success
}

/// Handles one message at a time, inside the transaction that moves the cursor: its writes on `conn` and the settlement
/// commit together or not at all, so each message has its effect exactly once.
///
/// ```
/// use posthaste::{HandlerResult, OutboxMessage, TransactionalMessageHandler};
/// use sqlx::{PgConnection, Postgres};
///
/// struct Audit;
///
/// impl TransactionalMessageHandler<Postgres> for Audit {
///     async fn handle(&self, conn: &mut PgConnection, msg: &OutboxMessage) -> HandlerResult {
///         write_down(conn, msg).await.into()
///     }
/// }
///
/// async fn write_down(conn: &mut PgConnection, msg: &OutboxMessage) -> Result<(), sqlx::Error> {
///     let insert = sqlx::query("INSERT INTO audit (message, payload) VALUES ($1, $2)");
///     insert.bind(msg.id.0).bind(&msg.payload).execute(conn).await?;
///     Ok(())
/// }
/// ```
pub trait TransactionalMessageHandler<DB: Backend>: Send + Sync + 'static {
    /// Handles a message, in a savepoint: what it wrote stays if it returns `Success`, and is undone if it returns
    /// anything else, fails, panics, or takes too long.
    ///
    /// It may begin transactions on `conn`, which become savepoints, and enqueue on it. It must not end the transaction
    /// that it was given. What it sets in the session is taken back; a statement
    /// that it prepares by name, or a lock of the session, only at the end of the batch. Its statements may take as long as the handler, whatever
    /// the role's `statement_timeout` says.
    ///
    /// Behind a pooler that gives each transaction another session, use queries that are not prepared
    /// (`query.persistent(false)`) and set nothing in the session: others get it next.
    fn handle(
        &self,
        conn: &mut DB::Connection,
        msg: &OutboxMessage,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// Handles a batch, inside the transaction that moves the cursor. See [`TransactionalMessageHandler`].
pub trait TransactionalHandler<DB: Backend>: Send + Sync + 'static {
    /// Handles messages, all of one partition and in order, in one savepoint: all of them are done, retried or rejected.
    fn handle(
        &self,
        conn: &mut DB::Connection,
        msgs: &[OutboxMessage],
    ) -> impl Future<Output = HandlerResult> + Send;
}

impl<DB: Backend, H: TransactionalMessageHandler<DB>> TransactionalMessageHandler<DB> for Arc<H> {
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        (**self).handle(conn, msg).await
    }
}

impl<DB: Backend, H: TransactionalHandler<DB>> TransactionalHandler<DB> for Arc<H> {
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        (**self).handle(conn, msgs).await
    }
}

impl<H: LeasedHandler> LeasedHandler for Arc<H> {
    async fn handle(&self, batch: &mut Batch<'_>) -> HandlerResult {
        LeasedHandler::handle(&**self, batch).await
    }
}

/// How long a processor may hold a partition, and how long before the end its handler is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseConfig {
    /// How long, by the database's clock; in milliseconds.
    pub duration: Duration,
    /// What is kept for settling.
    pub headroom: Duration,
}

impl Default for LeaseConfig {
    fn default() -> Self {
        Self { duration: DEFAULT_LEASE_DURATION, headroom: DEFAULT_LEASE_HEADROOM }
    }
}

impl LeaseConfig {
    /// A lease of that duration, with a headroom of a quarter of it, at most 2 s.
    #[must_use]
    pub fn of(duration: Duration) -> Self {
        Self { duration, headroom: DEFAULT_LEASE_HEADROOM.min(duration / 4) }
    }

    /// Checks the relation between the fields.
    ///
    /// # Panics
    ///
    /// Unless `headroom` is less than `duration`, and `duration` is from a millisecond to a week.
    pub fn validate(&self) {
        assert!(
            self.headroom < self.duration,
            "LeaseConfig: headroom ({:?}) must be less than duration ({:?})",
            self.headroom,
            self.duration,
        );
        assert!(
            self.duration >= Duration::from_millis(1),
            "LeaseConfig: duration ({:?}) must be at least 1 ms",
            self.duration,
        );
        assert!(
            self.duration <= MAX_LEASE_DURATION,
            "LeaseConfig: duration ({:?}) must be at most {MAX_LEASE_DURATION:?}",
            self.duration,
        );
    }

    /// How long a handler may take.
    #[must_use]
    pub const fn handler_budget(&self) -> Duration {
        self.duration.saturating_sub(self.headroom)
    }
}
