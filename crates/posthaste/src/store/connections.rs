//! The workers' own connections, so that they never starve the business pool.
//!
//! Not a sqlx pool, for two reasons. That one asks a connection whether it is alive each time it is given back, which
//! would double the round trips of a batch. And a future that is dropped half-way gives a connection back in a state
//! that nobody knows; here such a connection is closed.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use sqlx::{ConnectOptions, Connection, Pool};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::OutboxError;

/// How long a server may take to let somebody in.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may be idle: firewalls and balancers forget one after some minutes, and say nothing.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

type OptionsOf<DB> = <<DB as sqlx::Database>::Connection as Connection>::Options;

/// At most so many connections, made with the options that the business pool has at that moment.
pub(crate) struct Connections<DB: sqlx::Database> {
    pool: Pool<DB>,
    adapt: fn(OptionsOf<DB>) -> OptionsOf<DB>,
    /// With since when.
    idle: Mutex<Vec<(DB::Connection, Instant)>>,
    permits: Arc<Semaphore>,
}

impl<DB: sqlx::Database> Connections<DB> {
    pub(crate) fn new(pool: Pool<DB>, most: usize, adapt: fn(OptionsOf<DB>) -> OptionsOf<DB>) -> Self {
        Self { pool, adapt, idle: Mutex::default(), permits: Arc::new(Semaphore::new(most)) }
    }

    /// A connection, and whether it is new.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<(Taken<DB>, bool), OutboxError> {
        let closed = |_| OutboxError::Database(sqlx::Error::PoolClosed);
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        let idle = self.pop();
        let (conn, is_new) = match idle {
            Some(conn) => (conn, false),
            None => {
                let conn = self.connect().await;
                if conn.is_err() {
                    // The server may have no room: what we do not use is better used by others.
                    self.lock().clear();
                }
                (conn?, true)
            }
        };
        Ok((Taken { conn: Some(conn), home: Arc::clone(self), _permit: permit }, is_new))
    }

    /// The connection that was given back last, unless that is so long ago that something in between may have dropped it.
    fn pop(&self) -> Option<DB::Connection> {
        let mut idle = self.lock();
        let (conn, since) = idle.pop()?;
        if since.elapsed() < IDLE_LIMIT {
            return Some(conn);
        }
        // The others are older still.
        idle.clear();
        None
    }

    /// A connection outside the count.
    pub(crate) async fn connect(&self) -> Result<DB::Connection, OutboxError> {
        let options = self.options();
        let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not let us in");
        Ok(tokio::time::timeout(CONNECT_LIMIT, options.connect())
            .await
            .map_err(late)
            .map_err(sqlx::Error::Io)??)
    }

    /// The options that the business pool has now, which may not be those it had at first.
    pub(crate) fn options(&self) -> OptionsOf<DB> {
        (self.adapt)((*self.pool.connect_options()).clone())
    }

    pub(crate) async fn close(&self) {
        self.permits.close();
        let idle = std::mem::take(&mut *self.lock());
        for (conn, _) in idle {
            conn.close().await.ok();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(DB::Connection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection that is closed when dropped, unless it is kept.
pub(crate) struct Taken<DB: sqlx::Database> {
    conn: Option<DB::Connection>,
    home: Arc<Connections<DB>>,
    _permit: OwnedSemaphorePermit,
}

impl<DB: sqlx::Database> Taken<DB> {
    /// Gives the connection back if what was done with it left it usable.
    pub(crate) fn keep_if_usable<T>(mut self, result: Result<T, OutboxError>) -> Result<T, OutboxError> {
        let is_usable = result.as_ref().err().is_none_or(OutboxError::leaves_connection_usable);
        if is_usable
            && !self.home.permits.is_closed()
            && let Some(conn) = self.conn.take()
        {
            let mut idle = self.home.lock();
            // Whatever was not needed for so long is better used by others.
            idle.retain(|(_, since)| since.elapsed() < IDLE_LIMIT);
            idle.push((conn, Instant::now()));
        }
        if !is_usable {
            // What ended this connection has probably ended the idle ones too.
            self.home.lock().clear();
        }
        result
    }
}

impl<DB: sqlx::Database> Deref for Taken<DB> {
    type Target = DB::Connection;
    fn deref(&self) -> &DB::Connection {
        self.conn.as_ref().expect("only keep_if_usable takes it, and that consumes the guard")
    }
}

impl<DB: sqlx::Database> DerefMut for Taken<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        self.conn.as_mut().expect("only keep_if_usable takes it, and that consumes the guard")
    }
}
