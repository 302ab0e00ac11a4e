//! Waiting for one's turn: SQLite has one writer at a time, and tells everybody else to try again.

use std::time::Duration;

use sqlx::sqlite::SqliteError;
use tokio::{sync::MutexGuard, time::Instant};

use super::SqliteStore;
use crate::{
    OutboxError,
    store::{Failure, Result, Taken},
};

/// How long others may be in the way before somebody is told.
pub(super) const BUSY_LIMIT: Duration = Duration::from_secs(30);

/// How long to wait before another try: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

/// What an error of SQLite means.
pub(in crate::store) fn failure(error: &SqliteError) -> Failure {
    let code = sqlx::error::DatabaseError::code(error).and_then(|code| code.parse::<i32>().ok());
    // The lower byte is what kind it is, whatever the rest says.
    match code.unwrap_or_default() & 0xff {
        // BUSY: another connection writes, or has written since we looked. LOCKED: the same within a shared cache.
        // PROTOCOL: the same for too often in a row, while a log begins anew.
        5 | 6 | 15 => Failure::Passing,
        // NOMEM, IOERR, FULL: SQLite may have rolled the transaction back by itself, and sqlx believes that it is still open.
        7 | 10 | 13 => Failure::Fatal,
        _ => Failure::Lasting,
    }
}

/// Whether somebody else was in the way, and the same may succeed a moment later.
fn is_in_the_way(error: &OutboxError) -> bool {
    match error {
        // Where the workers share the caller's pool, others have all its connections.
        OutboxError::Database(sqlx::Error::PoolTimedOut) => true,
        OutboxError::Database(sqlx::Error::Database(error)) => Failure::of(&**error) == Failure::Passing,
        _ => false,
    }
}

/// Tries again and again, until the others have been in the way for too long.
pub(super) struct Patience {
    ends: Instant,
    pause: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { ends: Instant::now() + BUSY_LIMIT, pause: FIRST_PAUSE }
    }

    /// Whether to try again after this error; if so, it is time to now.
    pub(super) async fn forgives(&mut self, error: &OutboxError) -> bool {
        if !is_in_the_way(error) || Instant::now() + self.pause >= self.ends {
            return false;
        }
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }
}

/// Which of the workers' connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To read on.
    Reader,
    /// To write on; what is committed may be lost in a power failure.
    Quick,
    /// To write on; what is committed, and all that was committed before, is on the disk.
    Durable,
}

impl SqliteStore {
    /// A worker's connection.
    pub(super) async fn connection(&self, kind: Kind) -> Result<Taken<sqlx::Sqlite>> {
        let connections = match kind {
            Kind::Reader => &self.shared.readers,
            Kind::Quick => &self.shared.quick,
            Kind::Durable => &self.shared.durable,
        };
        Ok(patiently!(connections.take())?.0)
    }

    /// This process's turn to write, which is given out in the order of asking. SQLite itself lets whoever comes first
    /// have it, and those who have waited for long come rarely.
    ///
    /// Who waits for it has its connection already: who has the turn must not wait for a connection that somebody has who
    /// wants the turn.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.shared.turn.lock().await
    }
}

/// Does what it is given as often as it takes while others are in the way. Macros, since a closure that lends out its connection
/// cannot be shown to be `Send`.
macro_rules! patiently {
    ($work:expr) => {{
        let mut patience = $crate::store::sqlite::busy::Patience::new();
        loop {
            match $work.await {
                Err(error) if patience.forgives(&error).await => {}
                done => break done,
            }
        }
    }};
}
pub(super) use patiently;

/// The same on a worker's connection.
macro_rules! reading {
    ($store:expr, $conn:ident => $work:expr) => {{
        let mut taken = $store.connection($crate::store::sqlite::busy::Kind::Reader).await?;
        let done = $crate::store::sqlite::busy::patiently!({
            let $conn = &mut *taken;
            $work
        });
        taken.keep_if_usable(done)
    }};
}
pub(super) use reading;

/// The same when it is this process's turn to write.
macro_rules! writing {
    ($store:expr, $kind:expr, $conn:ident => $work:expr) => {{
        let mut taken = $store.connection($kind).await?;
        let turn = $store.turn().await;
        let done = $crate::store::sqlite::busy::patiently!({
            let $conn = &mut *taken;
            $work
        });
        drop(turn);
        taken.keep_if_usable(done)
    }};
}
pub(super) use writing;

#[cfg(test)]
mod tests {
    use sqlx::{Connection, SqliteConnection};

    use super::*;

    #[tokio::test]
    async fn a_connection_whose_disk_was_full_is_not_used_again() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        sqlx::raw_sql("CREATE TABLE t (x); PRAGMA max_page_count = 3").execute(&mut conn).await.unwrap();
        let mut tx = conn.begin().await.unwrap();
        let error =
            sqlx::raw_sql("INSERT INTO t VALUES (zeroblob(100000))").execute(&mut *tx).await.unwrap_err();
        drop(tx);
        let sqlx::Error::Database(error) = error else { panic!("{error}") };
        assert_eq!(Failure::of(&*error), Failure::Fatal, "{error}");
        // This is why.
        conn.ping().await.unwrap();
        assert!(conn.is_in_transaction());
        assert!(sqlx::raw_sql("ROLLBACK").execute(&mut conn).await.is_err());
    }
}
