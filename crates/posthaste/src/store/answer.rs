//! How long a database may take to answer.

use std::time::Duration;

use super::Result;
use crate::OutboxError;

/// How long a statement may take that touches a batch at most.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What the server answers, if it does.
pub(super) async fn answer<T, E: Into<OutboxError>>(asked: impl Future<Output = Result<T, E>>) -> Result<T> {
    answer_within(ANSWER_LIMIT, asked).await
}

/// The same for what may take long. A server that does not answer in time is as good as gone.
pub(super) async fn answer_within<T, E: Into<OutboxError>>(
    limit: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T> {
    tokio::time::timeout(limit, asked).await.map_err(|_| no_answer())?.map_err(Into::into)
}

pub(super) fn no_answer() -> OutboxError {
    let late = std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not answer");
    OutboxError::Database(sqlx::Error::Io(late))
}
