//! The workers' own connections, so that they never starve the business pool.
//!
//! Not a sqlx pool, for two reasons. That one asks a connection whether it is alive each time it is given back, which
//! would double the round trips of a batch. And a future that is dropped half-way gives a connection back in a state
//! that nobody knows; here such a connection is closed.

use std::{
    ops::{Deref, DerefMut},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use sqlx::{ConnectOptions, Connection, Pool, pool::PoolConnection};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::reconnect::Reconnect;
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
    /// The pool itself is used: what it leads to, no connection made elsewhere would.
    is_shared: bool,
    /// How many connections were lost so far.
    losses: AtomicI64,
    /// Paces attempts while the server cannot be reached; none for a connection that is made once.
    reconnect: Option<Arc<Reconnect>>,
}

impl<DB: sqlx::Database> Connections<DB> {
    pub(crate) fn new(pool: Pool<DB>, most: usize, adapt: fn(OptionsOf<DB>) -> OptionsOf<DB>) -> Self {
        Self {
            pool,
            adapt,
            idle: Mutex::default(),
            permits: Arc::new(Semaphore::new(most)),
            is_shared: false,
            losses: AtomicI64::new(0),
            reconnect: None,
        }
    }

    /// The attempts of all connections that share this are paced together.
    pub(crate) fn paced(self, reconnect: &Arc<Reconnect>) -> Self {
        Self { reconnect: Some(Arc::clone(reconnect)), ..self }
    }

    /// The pool's own connections: for a database in memory, where another connection is another database.
    pub(crate) fn shared(pool: Pool<DB>, most: usize) -> Self {
        Self { is_shared: true, ..Self::new(pool, most, |options| options) }
    }

    /// A connection of the pool, if it has one that nobody uses.
    pub(crate) fn spare(&self) -> Option<PoolConnection<DB>> {
        self.pool.try_acquire()
    }

    /// How many connections were lost so far: whoever answers now may be another server, or the same after a crash.
    pub(crate) fn losses(&self) -> i64 {
        self.losses.load(Ordering::Relaxed)
    }

    /// A connection, and whether it is new.
    pub(crate) async fn take(self: &Arc<Self>) -> Result<(Taken<DB>, bool), OutboxError> {
        let closed = |_| OutboxError::Database(sqlx::Error::PoolClosed);
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(closed)?;
        if self.is_shared {
            let conn = Conn::Pooled(self.pool.acquire().await?);
            return Ok((Taken { conn: Some(conn), home: Arc::clone(self), _permit: permit }, false));
        }
        let idle = self.pop();
        let (conn, is_new) = match idle {
            Some(conn) => (conn, false),
            None => {
                let conn = self.connect().await;
                if conn.is_err() {
                    // The server may have no room: what we do not use is better used by others.
                    self.lose_idle();
                }
                (conn?, true)
            }
        };
        Ok((Taken { conn: Some(Conn::Own(conn)), home: Arc::clone(self), _permit: permit }, is_new))
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
        let Some(reconnect) = &self.reconnect else { return self.connect_now().await };
        reconnect.begin()?;
        let attempt = self.connect_now().await;
        reconnect.ended(&attempt);
        attempt
    }

    async fn connect_now(&self) -> Result<DB::Connection, OutboxError> {
        let options = self.options();
        let late = |_| std::io::Error::new(std::io::ErrorKind::TimedOut, "the server does not let us in");
        // In a box: with TLS it is so large that it would weigh on everything that may connect.
        let connecting = Box::pin(async move { options.connect().await });
        Ok(tokio::time::timeout(CONNECT_LIMIT, connecting).await.map_err(late).map_err(sqlx::Error::Io)??)
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

    fn lose_idle(&self) {
        self.losses.fetch_add(1, Ordering::Relaxed);
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(DB::Connection, Instant)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection of our own, or of the caller's pool.
enum Conn<DB: sqlx::Database> {
    Own(DB::Connection),
    Pooled(PoolConnection<DB>),
}

/// A connection that is closed when dropped, unless it is kept. One of the caller's pool goes back there.
pub(crate) struct Taken<DB: sqlx::Database> {
    conn: Option<Conn<DB>>,
    home: Arc<Connections<DB>>,
    _permit: OwnedSemaphorePermit,
}

impl<DB: sqlx::Database> Taken<DB> {
    /// Gives the connection back if what was done with it left it usable.
    pub(crate) fn keep_if_usable<T>(mut self, result: Result<T, OutboxError>) -> Result<T, OutboxError> {
        let is_usable = result.as_ref().err().is_none_or(OutboxError::leaves_connection_usable);
        if is_usable
            && !self.home.permits.is_closed()
            && let Some(Conn::Own(conn)) = self.conn.take()
        {
            let mut idle = self.home.lock();
            // Whatever was not needed for so long is better used by others.
            idle.retain(|(_, since)| since.elapsed() < IDLE_LIMIT);
            idle.push((conn, Instant::now()));
        }
        if !is_usable {
            // What ended this connection has probably ended the idle ones too.
            self.home.lose_idle();
        }
        result
    }
}

impl<DB: sqlx::Database> Taken<DB> {
    /// Closes the connection, on which this happened.
    pub(crate) fn give_up(self, error: OutboxError) -> OutboxError {
        if !error.leaves_connection_usable() {
            self.home.lose_idle();
        }
        error
    }
}

impl<DB: sqlx::Database> Deref for Taken<DB> {
    type Target = DB::Connection;
    fn deref(&self) -> &DB::Connection {
        match self.conn.as_ref().expect("only keep_if_usable takes it, and that consumes the guard") {
            Conn::Own(conn) => conn,
            Conn::Pooled(conn) => conn,
        }
    }
}

impl<DB: sqlx::Database> DerefMut for Taken<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        match self.conn.as_mut().expect("only keep_if_usable takes it, and that consumes the guard") {
            Conn::Own(conn) => conn,
            Conn::Pooled(conn) => conn,
        }
    }
}
