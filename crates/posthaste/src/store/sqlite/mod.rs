//! SQLite. The statements are in `sql/`, each with what it writes; the tables in `migrations/`.
//!
//! There is one writer at a time, and that is most of what is different: whoever begins to write (`BEGIN IMMEDIATE`) excludes
//! everybody else until it has committed, so nothing need be locked besides, and what is read there is what is built on.
//! `busy.rs` has how to wait for one's turn. A handler that works in a transaction keeps all other writers waiting meanwhile.

mod busy;
mod cursor;
mod dead_letters;
mod enqueue;
mod lag;
mod migrate;
mod peek;
mod statements;
mod tick;
mod transaction;
mod vacuum;
mod wake;

use std::{path::PathBuf, sync::Arc, time::Duration};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Pool, Row, Sqlite, SqliteConnection, Transaction,
    pool::PoolConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::sync::Mutex;
use uuid::Uuid;

pub(super) use self::busy::failure;
use self::{
    busy::patiently,
    statements::{Statements, fill, names},
    transaction::Sessions,
};
use super::{
    Acquired, Backend, Begun, Change, Claim, Enqueued, Handling, Kept, Lagging, Lock, NewMessage,
    NewsChannel, Picked, Queue, Removed, Result, Selection, Session, Settled, Settlement, Store, Surveyed,
    Suspects, Tables, Tick, Ticket, Trim, Trimmed, Unsettled, connections::Connections, sealed,
};
use crate::{
    DeadLetterMessage, OutboxError, OutboxMessage, OutboxMessageId, Partitions, enqueued::EnqueuedMessage,
    timings::Timings, wake::Wake,
};

impl sealed::Sealed for Sqlite {}

impl Backend for Sqlite {
    type Store = SqliteStore;
}

/// How many workers read at once: each takes a thread, and a read takes no time to speak of.
const READERS: usize = 4;
/// How a transaction of ours begins, if it is to write: it waits for other writers now, not in the middle.
const BEGIN: &str = "BEGIN IMMEDIATE";
/// How long SQLite itself waits for a lock while a connection is set up.
const SET_UP_LIMIT: Duration = Duration::from_secs(5);
/// How long a pool may take to find a connection that can be done without.
const SPARE_LIMIT: Duration = Duration::from_secs(1);
/// How many rows a connection's thread may be ahead of who reads them: a batch need not be handed over in parts.
const ROWS: usize = 1000;
/// The log that is written ahead shrinks to this when it begins anew, and is made to when it is larger: in bytes.
const LOG_LIMIT: u64 = 16 * 1024 * 1024;

#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<Shared>,
}

struct Shared {
    timings: Timings,
    statements: Statements,
    /// Where the log is that is written ahead; none if the database is in memory.
    log: Option<PathBuf>,
    /// What workers read on.
    readers: Arc<Connections<Sqlite>>,
    /// What they write on: what is committed here may be lost in a power failure …
    quick: Arc<Connections<Sqlite>>,
    /// … and here it may not: ticks, and what vacuum removes.
    durable: Arc<Connections<Sqlite>>,
    /// With the caller's own options, for handlers.
    handler_connections: Arc<Connections<Sqlite>>,
    /// How long the caller's connections wait for a lock, in ms.
    caller_timeout: i64,
    /// Whose turn it is to write, in this process.
    turn: Mutex<()>,
    /// The sessions that handlers work in.
    sessions: Sessions,
}

impl SqliteStore {
    async fn open_patiently(
        pool: Pool<Sqlite>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> Result<Self> {
        migrate::refuse_schema(tables)?;
        let (file, caller_timeout) = patiently!(Self::check(&pool, tables))?;
        let names = names(tables);
        let (readers, quick, durable, handler_connections) = if file.is_some() {
            let own = |most, adapt| Arc::new(Connections::new(pool.clone(), most, adapt));
            // One writer at a time, so one connection to write is enough, however many workers there are.
            (
                own(workers.min(READERS), quick_options as fn(_) -> _),
                own(1, quick_options),
                own(1, durable_options),
                own(handlers, handler_options),
            )
        } else {
            // Another connection would be another database. Half of them are the caller's, whatever we do.
            let half = pool.options().get_max_connections() / 2;
            let most = usize::try_from(half).unwrap_or(usize::MAX).clamp(1, workers.max(1));
            let shared = Arc::new(Connections::shared(pool, most));
            (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&shared), shared)
        };
        let log = file.map(|file| {
            let mut log = file.into_os_string();
            log.push("-wal");
            log.into()
        });
        Ok(Self {
            shared: Arc::new(Shared {
                timings,
                statements: Statements::render(|sql| fill(&names, sql)),
                log,
                readers,
                quick,
                durable,
                handler_connections,
                caller_timeout,
                turn: Mutex::default(),
                sessions: Sessions::default(),
            }),
        })
    }

    /// On a connection of the caller's, which may be the only one there is: the file, and how long it waits for locks.
    async fn check(pool: &Pool<Sqlite>, tables: &Tables) -> Result<(Option<PathBuf>, i64)> {
        let mut conn = pool.acquire().await?;
        let file = file_of(&mut conn).await?;
        migrate::check_version(&mut conn, tables).await?;
        if file.is_some() {
            migrate::write_ahead(&mut conn).await?;
        } else {
            check_is_shared(pool, tables).await?;
        }
        let timeout = sqlx::raw_sql("PRAGMA busy_timeout").fetch_one(&mut *conn).await?.try_get(0)?;
        Ok((file, timeout))
    }

    fn sql(&self) -> &Statements {
        &self.shared.statements
    }

    /// The workers share the caller's pool.
    fn is_in_memory(&self) -> bool {
        self.shared.log.is_none()
    }
}

/// The file that a database is in; none if it is in memory.
async fn file_of(conn: &mut SqliteConnection) -> Result<Option<PathBuf>> {
    let rows = sqlx::raw_sql("PRAGMA database_list").fetch_all(conn).await?;
    for row in rows {
        if row.try_get::<&str, _>("name")? == "main" {
            let file: Option<String> = row.try_get("file")?;
            return Ok(file.filter(|file| !file.is_empty()).map(PathBuf::from));
        }
    }
    Ok(None)
}

/// In memory, all connections of a pool must lead to the same database. If the pool has none to spare now, nothing is found
/// out.
async fn check_is_shared(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
    if pool.options().get_max_connections() == 1 {
        return Ok(());
    }
    let Ok(Ok(mut other)) = tokio::time::timeout(SPARE_LIMIT, pool.acquire()).await else { return Ok(()) };
    match migrate::check_version(&mut other, tables).await {
        Err(OutboxError::NotMigrated { .. }) => Err(OutboxError::Unsuitable(
            "each connection of this pool is a database in memory of its own: give the pool max_connections(1), or a shared \
             cache, as \"sqlite::memory:\" has it"
                .to_owned(),
        )),
        checked => checked,
    }
}

/// A statement of ours.
fn query<'q>(sql: &Arc<str>) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// What the workers' connections have in common: they never wait inside SQLite, but in `busy.rs`.
fn worker_options(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options
        .shared_cache(false)
        .busy_timeout(SET_UP_LIMIT)
        .journal_mode(SqliteJournalMode::Wal)
        .pragma("wal_autocheckpoint", "1000")
        .pragma("journal_size_limit", LOG_LIMIT.to_string())
        .pragma("query_only", "OFF")
        // The last of all, and the settings are made in this order.
        .pragma("busy_timeout", "0")
        .optimize_on_close(false, None)
        .row_buffer_size(ROWS)
        .thread_name(thread_name)
        .log_slow_statements(log::LevelFilter::Debug, Duration::from_secs(1))
}

fn quick_options(options: SqliteConnectOptions) -> SqliteConnectOptions {
    worker_options(options).synchronous(SqliteSynchronous::Normal)
}

fn durable_options(options: SqliteConnectOptions) -> SqliteConnectOptions {
    worker_options(options).synchronous(SqliteSynchronous::Full)
}

/// A handler's connection is like the caller's others, but has its own view of the database.
fn handler_options(options: SqliteConnectOptions) -> SqliteConnectOptions {
    options.shared_cache(false).thread_name(thread_name)
}

fn thread_name(id: u64) -> String {
    format!("posthaste-{id}")
}

impl Store for SqliteStore {
    type Db = Sqlite;

    /// The thread that a connection has rolls back what nobody waits for any more.
    const CANCELS_CLEANLY: bool = true;
    const BEGIN_TO_READ: &'static str = "BEGIN";
    const BEGIN_TO_WRITE: &'static str = BEGIN;
    const TRANSACTION_ENDED: &'static str = "the handler ended the transaction that it was given (COMMIT, ROLLBACK or OR ROLLBACK), or SQLite did after an error \
         (a full disk, for one)";

    async fn migrate(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
        migrate::migrate(pool, tables).await
    }

    fn migration_sql(tables: &Tables) -> String {
        migrate::migration_sql(tables)
    }

    fn drop_sql(tables: &Tables) -> String {
        migrate::drop_sql(tables)
    }

    async fn drop_tables(pool: &Pool<Sqlite>, tables: &Tables) -> Result<()> {
        migrate::drop_tables(pool, tables).await
    }

    fn timings(&self) -> &Timings {
        &self.shared.timings
    }

    async fn open(
        pool: Pool<Sqlite>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> Result<Self> {
        Self::open_patiently(pool, tables, workers, handlers, timings).await
    }

    async fn check_suitable(&self) -> Result<()> {
        migrate::check_suitable(self).await
    }

    async fn probe_news_channel(&self) -> Result<NewsChannel> {
        // Where the workers share the caller's pool, none of its connections is taken to listen on.
        Ok(if self.is_in_memory() { NewsChannel::Polled } else { NewsChannel::Notified })
    }

    async fn register_queue(&self, name: &str, partitions: Partitions) -> Result<Queue> {
        enqueue::register_queue(self, name, partitions).await
    }

    async fn find_queue(&self, conn: &mut SqliteConnection, name: &str) -> Result<Option<Queue>> {
        enqueue::find_queue(self, conn, name).await
    }

    async fn pause(&self, queue: &str, is_paused: bool) -> Result<()> {
        enqueue::pause(self, queue, is_paused).await
    }

    async fn is_paused(&self, queue: &str) -> Result<bool> {
        enqueue::is_paused(self, queue).await
    }

    async fn enqueue(&self, conn: &mut SqliteConnection, messages: &[NewMessage<'_>]) -> Result<Enqueued> {
        enqueue::enqueue(self, conn, messages).await
    }

    async fn lend(&self, pool: &Pool<Sqlite>) -> Result<PoolConnection<Sqlite>> {
        patiently!(async { Ok(pool.acquire().await?) })
    }

    async fn begin_for_caller(&self, pool: &Pool<Sqlite>) -> Result<Transaction<'static, Sqlite>> {
        enqueue::begin_for_caller(self, pool).await
    }

    async fn enqueue_alone(
        &self,
        conn: &mut SqliteConnection,
        messages: &[NewMessage<'_>],
    ) -> Result<Enqueued> {
        enqueue::enqueue_alone(self, conn, messages).await
    }

    async fn peek(
        &self,
        conn: &mut SqliteConnection,
        queue: &Queue,
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::peek(self, conn, queue, after_id, most).await
    }

    async fn browse(
        &self,
        conn: &mut SqliteConnection,
        queue: &Queue,
        partition_id: i32,
        after_seq: i64,
        most: u32,
    ) -> Result<Vec<OutboxMessage>> {
        peek::browse(self, conn, queue, partition_id, after_seq, most).await
    }

    async fn unsequenced(
        &self,
        conn: &mut SqliteConnection,
        queue: &Queue,
        partition_ids: &[i32],
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::unsequenced(self, conn, queue, partition_ids, after_id, most).await
    }

    async fn clock(&self, conn: &mut SqliteConnection) -> Result<i64> {
        peek::clock(self, conn).await
    }

    async fn unsettled(&self, conn: &mut SqliteConnection, queue: &Queue) -> Result<Vec<Unsettled>> {
        peek::unsettled(self, conn, queue).await
    }

    async fn tick(&self, most: u32, _announce: bool) -> Result<Tick> {
        tick::tick(self, most).await
    }

    async fn recover(&self) -> Result<u64> {
        tick::recover(self).await
    }

    async fn acquire(&self, queue: &Arc<Queue>, claim: &Claim) -> Result<Acquired> {
        cursor::acquire(self, queue, claim).await
    }

    async fn settle(&self, queue: &Arc<Queue>, claim: &Claim, settlement: &Settlement) -> Result<Settled> {
        cursor::settle(self, queue, claim, settlement).await
    }

    async fn handling(&self) -> Result<Handling<Sqlite>> {
        transaction::handling(self).await
    }

    async fn begin<'c>(
        &self,
        handling: &'c mut Handling<Sqlite>,
        claim: &Claim,
        epoch: i64,
        _timeout: Duration,
    ) -> Result<Begun<'c, Sqlite>> {
        transaction::begin(self, handling, claim, epoch).await
    }

    async fn keep(
        &self,
        conn: &mut SqliteConnection,
        _claim: &Claim,
        _timeout: Duration,
        is_last: bool,
    ) -> Result<Kept> {
        transaction::keep(self, conn, is_last).await
    }

    async fn undo(&self, conn: &mut SqliteConnection, is_last: bool) -> Result<Kept> {
        transaction::undo(self, conn, is_last).await
    }

    async fn settle_within(
        &self,
        transaction: Transaction<'_, Sqlite>,
        queue: &Queue,
        claim: &Claim,
        settlement: &Settlement,
    ) -> Result<Settled> {
        cursor::settle_within(self, transaction, queue, claim, settlement).await
    }

    async fn end_session(&self, session: Session) -> Result<()> {
        self.shared.sessions.end(session, self.is_in_memory()).await;
        Ok(())
    }

    async fn give_back(&self, handling: Handling<Sqlite>, _is_lost: bool) -> Result<()> {
        transaction::give_back(self, handling).await
    }

    async fn waiting(&self, partition_ids: &[i32], owner: Uuid) -> Result<Vec<i32>> {
        cursor::waiting(self, partition_ids, owner).await
    }

    async fn survey(&self, known: &[Trimmed]) -> Result<Surveyed> {
        vacuum::survey(self, known).await
    }

    async fn vacuum(&self, trims: &[Trim], first_tick: i64, most_ticks: u32) -> Result<Option<Removed>> {
        vacuum::vacuum(self, trims, first_tick, most_ticks).await
    }

    async fn suspects(&self, after_id: i64) -> Result<Suspects> {
        vacuum::suspects(self, after_id).await
    }

    async fn strays(&self, suspects: &[i64]) -> Result<u64> {
        vacuum::strays(self, suspects).await
    }

    async fn begin_on<'c>(&self, conn: &'c mut SqliteConnection) -> Result<Option<Transaction<'c, Sqlite>>> {
        dead_letters::begin_on(conn).await
    }

    async fn pick_dead_letters(
        &self,
        conn: &mut SqliteConnection,
        selection: &Selection<'_>,
        lock: Lock,
    ) -> Result<Vec<Picked>> {
        dead_letters::pick(self, conn, selection, lock).await
    }

    async fn read_dead_letters(
        &self,
        conn: &mut SqliteConnection,
        ids: &[i64],
        _is_locked: bool,
    ) -> Result<Vec<DeadLetterMessage>> {
        dead_letters::read(self, conn, ids).await
    }

    async fn count_dead_letters(
        &self,
        conn: &mut SqliteConnection,
        selection: &Selection<'_>,
    ) -> Result<u64> {
        dead_letters::count(self, conn, selection).await
    }

    async fn change_dead_letters(
        &self,
        conn: &mut SqliteConnection,
        ids: &[i64],
        change: &Change<'_>,
    ) -> Result<()> {
        dead_letters::change(self, conn, ids, change).await
    }

    async fn mark_redelivered(
        &self,
        conn: &mut SqliteConnection,
        sent: &[(OutboxMessageId, OutboxMessageId)],
    ) -> Result<()> {
        dead_letters::mark_redelivered(self, conn, sent).await
    }

    async fn delete_dead_letters(&self, conn: &mut SqliteConnection, ids: &[i64]) -> Result<()> {
        dead_letters::delete(self, conn, ids).await
    }

    async fn lag(&self) -> Result<Lagging> {
        lag::lag(self).await
    }

    async fn announce_enqueued(&self, _tickets: &[Ticket]) -> Result<()> {
        // Whoever listens sees that the database has changed.
        Ok(())
    }

    async fn announce_released(&self, _partition_id: i32) -> Result<()> {
        Ok(())
    }

    async fn listen(&self, wake: &Wake) -> Result<()> {
        wake::listen(self, wake).await
    }

    async fn close(&self) {
        if self.is_in_memory() {
            return;
        }
        self.shared.handler_connections.close().await;
        self.shared.durable.close().await;
        self.shared.quick.close().await;
        self.shared.readers.close().await;
    }
}
