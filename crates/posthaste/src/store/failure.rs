//! What an error of a database means for whoever asked.

use sqlx::error::DatabaseError;

/// What to make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The connection is no good any more; on another one the same may succeed.
    Lost,
    /// The same may succeed if it is tried again: somebody else was in the way.
    Passing,
    /// The same will fail again.
    Lasting,
    /// The connection is no good any more, and the same will fail on another one too.
    Fatal,
}

impl Failure {
    pub(crate) const fn is_retryable(self) -> bool {
        matches!(self, Self::Lost | Self::Passing)
    }

    pub(crate) const fn leaves_connection_usable(self) -> bool {
        matches!(self, Self::Passing | Self::Lasting)
    }
}

impl Failure {
    pub(crate) fn of(error: &dyn DatabaseError) -> Self {
        #[cfg(feature = "mysql")]
        if let Some(error) = error.try_downcast_ref() {
            return super::mysql::failure(error);
        }
        #[cfg(feature = "postgres")]
        if let Some(error) = error.try_downcast_ref() {
            return super::postgres::failure(error);
        }
        #[cfg(feature = "sqlite")]
        if let Some(error) = error.try_downcast_ref() {
            return super::sqlite::failure(error);
        }
        tracing::trace!(%error, "an error of a database that we do not know");
        Self::Lasting
    }
}
