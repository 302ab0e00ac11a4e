//! MySQL and MariaDB. The statements are in `sql/`, each with what it writes and locks; the tables in `migrations/`.
//!
//! What differs from PostgreSQL: one statement writes to one table and returns nothing, so a verb is two to five statements,
//! in a transaction where more than one of them writes; nothing tells which rows became visible since the last tick, so
//! messages wait in `pending`; there are no notifications, so a watcher looks; and any statement may be the victim of a
//! deadlock, so each verb is tried again as a whole.

mod cursor;
mod dead_letters;
mod enqueue;
mod lag;
mod migrate;
mod peek;
mod pending;
mod statements;
mod text;
mod tick;
mod together;
mod transaction;
mod vacuum;
mod wake;

use std::{
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, MySql, MySqlConnection, Pool, Transaction,
    mysql::{MySqlArguments, MySqlConnectOptions, MySqlDatabaseError, MySqlRow},
    pool::PoolConnection,
    query::Query,
};
use uuid::Uuid;

use self::statements::{Statements, enqueues_mariadb, fill, names};
use super::{
    Acquired, Backend, Begun, Change, Claim, Enqueued, Handling, Kept, Lagging, Lock, NewMessage,
    NewsChannel, Picked, Queue, Removed, Result, Selection, Session, Settled, Settlement, Store, Surveyed,
    Suspects, Tables, Tick, Ticket, Trim, Trimmed, Unsettled,
    answer::{ANSWER_LIMIT, answer},
    connections::{Connections, Taken},
    failure::Failure,
    reconnect::Reconnect,
    sealed,
    together::Together,
};
use crate::{
    DeadLetterMessage, OutboxError, OutboxMessage, OutboxMessageId, Partitions, enqueued::EnqueuedMessage,
    timings::Timings, wake::Wake,
};

impl sealed::Sealed for MySql {}

impl Backend for MySql {
    type Store = MySqlStore;
}

/// What every session of a worker is set to, whatever the server's defaults. A wait for a lock is short: who waits is
/// tried again, and who holds one of ours for long is a handler, whose partition is skipped.
const SESSION: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION TRANSACTION READ WRITE; \
     SET SESSION autocommit = 1, innodb_lock_wait_timeout = 5, wait_timeout = 600, sql_safe_updates = 0, \
     sql_select_limit = DEFAULT, sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'";

/// How our transactions of more than one statement begin: what they have locked, others wait for, so a process that falls silent in
/// the middle, frozen or cut off, does not keep it for long.
const BEGIN: &str = "SET SESSION wait_timeout = 3; START TRANSACTION";
/// What follows their end: an idle connection may stay.
const REST: &str = "SET SESSION wait_timeout = 600";

/// How a transaction of ours begins on a connection of the caller's, whatever the session's defaults.
const BEGIN_TO_WRITE: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";

/// How often a verb is tried again while others are in the way.
const TRIES: u32 = 10;
/// How long to wait before the second try; then twice as long, each time.
const FIRST_WAIT: Duration = Duration::from_millis(2);

/// Runs a verb on a worker's connection, again if others were in the way. After an error the connection is closed: what the verb left
/// unfinished is rolled back, and what it set for its transaction stays with nobody.
macro_rules! work {
    ($store:expr, $limit:expr, |$conn:ident| $verb:expr) => {{
        let mut tries = $crate::store::mysql::Tries::new();
        loop {
            let tried = $crate::store::answer::answer_within($limit, async {
                let mut taken = $store.connection().await?;
                let result = {
                    let $conn = &mut *taken;
                    $verb.await
                };
                match result {
                    Err(error) => Err(taken.give_up(error)),
                    done => taken.keep_if_usable(done),
                }
            });
            if let Some(result) = tries.end(tried.await).await {
                break result;
            }
        }
    }};
}
use work;

/// A unique key is taken.
const DUPLICATE: u16 = 1062;
/// The server does not understand the statement.
const SYNTAX: u16 = 1064;
/// There is no savepoint of that name: the transaction in which it was set has ended, or there was none.
const NO_SAVEPOINT: u16 = 1305;
/// A lock that is not waited for is taken; MariaDB calls it a wait that took too long.
const LOCKED: [u16; 2] = [3572, 1205];

#[derive(Clone)]
pub struct MySqlStore {
    shared: Arc<Shared>,
}

struct Shared {
    timings: Timings,
    statements: Statements,
    /// Names the savepoints of this process.
    process_id: Uuid,
    connections: Arc<Connections<MySql>>,
    /// Apart from the workers', whose sessions are set to what our statements need.
    handler_connections: Arc<Connections<MySql>>,
    /// MariaDB returns the ids of what is inserted.
    is_mariadb: bool,
    /// For so many messages each, largest first.
    enqueues_mariadb: Vec<(usize, Arc<str>)>,
    acquires: Together<MySqlStore, together::Acquiring>,
    settlements: Together<MySqlStore, together::Settling>,
    /// The most bytes of one statement.
    max_packet: usize,
    /// How many messages the runs that the last tick took had, about.
    run_length: AtomicU32,
}

impl MySqlStore {
    async fn open_unlimited(
        pool: Pool<MySql>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> Result<Self> {
        let reconnect = Arc::new(Reconnect::new(timings.unreachable));
        let handler_connections =
            Arc::new(Connections::new(pool.clone(), handlers, handler_options).paced(&reconnect));
        let connections = Arc::new(Connections::new(pool, workers, worker_options).paced(&reconnect));
        let mut conn = connections.connect().await?;
        let server = migrate::server(&mut conn).await?;
        let database = migrate::database_of(&mut conn, tables).await?;
        migrate::check_version(&mut conn, &database, tables).await?;
        conn.close().await.ok();
        let names = names(Some(&database), tables);
        let statements = Statements::render(|sql| fill(&names, sql));
        Ok(Self {
            shared: Arc::new(Shared {
                timings,
                enqueues_mariadb: enqueues_mariadb(&statements.enqueue_mariadb),
                statements,
                process_id: Uuid::new_v4(),
                connections,
                handler_connections,
                is_mariadb: server.is_mariadb,
                max_packet: server.max_packet,
                acquires: Together::default(),
                settlements: Together::default(),
                run_length: AtomicU32::new(1),
            }),
        })
    }

    fn sql(&self) -> &Statements {
        &self.shared.statements
    }

    /// How many keys fit into a packet as a list, however long they are.
    fn most_keys(&self) -> usize {
        (self.shared.max_packet / 32).max(1)
    }

    /// The name of a handler's savepoint, which no handler has by chance.
    fn savepoint(&self) -> String {
        format!("posthaste_{}", self.shared.process_id.simple())
    }

    /// A worker's connection, set up.
    async fn connection(&self) -> Result<Taken<MySql>> {
        let (mut conn, is_new) = self.shared.connections.take().await?;
        if is_new {
            sqlx::raw_sql(SESSION).execute(&mut *conn).await?;
        }
        Ok(conn)
    }

    /// Runs a statement that reads, on a worker's connection.
    async fn fetch(
        &self,
        query: impl Fn() -> Query<'static, MySql, MySqlArguments> + Send + Sync,
    ) -> Result<Vec<MySqlRow>> {
        work!(self, ANSWER_LIMIT, |conn| async { Ok(query().fetch_all(conn).await?) })
    }
}

/// How often something was tried as a whole because others were in the way: a deadlock, or a lock that took too long to wait
/// for. A cluster says the same of a transaction that another node was faster than, and may say so at its commit.
struct Tries {
    left: u32,
    wait: Duration,
}

impl Tries {
    const fn new() -> Self {
        Self { left: TRIES, wait: FIRST_WAIT }
    }

    /// What came of a try; or none, after a while, if it is worth another one.
    async fn end<T>(&mut self, result: Result<T>) -> Option<Result<T>> {
        self.left = self.left.saturating_sub(1);
        match result {
            Err(OutboxError::Database(sqlx::Error::Database(error)))
                if self.left > 0 && Failure::of(&*error) == Failure::Passing =>
            {
                tracing::debug!(%error, "others were in the way; trying again");
                tokio::time::sleep(self.wait).await;
                self.wait *= 2;
                None
            }
            result => Some(result),
        }
    }
}

/// Begins one of our transactions.
async fn begin(conn: &mut MySqlConnection) -> Result<Transaction<'_, MySql>> {
    Ok(conn.begin_with(BEGIN).await?)
}

/// Whether this says that somebody else has a lock, which was not waited for.
fn is_locked(error: &OutboxError) -> bool {
    matches!(error, OutboxError::Database(error) if number(error).is_some_and(|number| LOCKED.contains(&number)))
}

/// The number that the server gives an error.
fn number(error: &sqlx::Error) -> Option<u16> {
    match error {
        sqlx::Error::Database(error) => {
            error.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number)
        }
        _ => None,
    }
}

/// What an error of MySQL or MariaDB means.
pub(super) fn failure(error: &MySqlDatabaseError) -> Failure {
    match error.number() {
        // A server that goes down or is read-only by now, a session that was killed or silent for too long, a connection
        // that broke in the middle of a packet.
        1053 | 1077..=1080 | 1152 | 1154..=1161 | 1184 | 1290 | 1836 | 1927 | 3169 | 4031 => Failure::Lost,
        // Deadlocks, also as a cluster's commit calls them, locks that took too long, a record that changed meanwhile, a
        // statement that was killed, a definition that changed, out of connections, a cluster that is not ready.
        1020 | 1040 | 1047 | 1203 | 1205 | 1213 | 1317 | 1412 | 1615 | 3101 | 3572 => Failure::Passing,
        // A packet that is too large.
        1153 => Failure::Fatal,
        _ => Failure::Lasting,
    }
}

/// A statement of ours.
fn query(sql: &Arc<str>) -> Query<'static, MySql, MySqlArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

fn worker_options(options: MySqlConnectOptions) -> MySqlConnectOptions {
    // A large tick may be slow for good reasons, and its text is long.
    handler_options(options).charset("utf8mb4").set_names(true)
}

fn handler_options(options: MySqlConnectOptions) -> MySqlConnectOptions {
    options.log_slow_statements(log::LevelFilter::Debug, Duration::from_secs(1))
}

impl Store for MySqlStore {
    type Db = MySql;

    const CANCELS_CLEANLY: bool = false;
    const BEGIN_TO_READ: &'static str =
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION READ ONLY";
    const BEGIN_TO_WRITE: &'static str = BEGIN_TO_WRITE;
    const TRANSACTION_ENDED: &'static str = "the handler ended the transaction that it was given (COMMIT, ROLLBACK or DDL), or a \
         deadlock did";

    async fn migrate(pool: &Pool<MySql>, tables: &Tables) -> Result<()> {
        migrate::migrate(pool, tables).await
    }

    fn migration_sql(tables: &Tables) -> String {
        migrate::migration_sql(tables)
    }

    fn drop_sql(tables: &Tables) -> String {
        migrate::drop_sql(tables)
    }

    async fn drop_tables(pool: &Pool<MySql>, tables: &Tables) -> Result<()> {
        migrate::drop_tables(pool, tables).await
    }

    fn timings(&self) -> &Timings {
        &self.shared.timings
    }

    async fn open(
        pool: Pool<MySql>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> Result<Self> {
        answer(Self::open_unlimited(pool, tables, workers, handlers, timings)).await
    }

    async fn check_suitable(&self) -> Result<()> {
        migrate::check_suitable(self).await
    }

    async fn probe_news_channel(&self) -> Result<NewsChannel> {
        Ok(NewsChannel::Notified)
    }

    async fn register_queue(&self, name: &str, partitions: Partitions) -> Result<Queue> {
        enqueue::register_queue(self, name, partitions).await
    }

    async fn find_queue(&self, conn: &mut MySqlConnection, name: &str) -> Result<Option<Queue>> {
        enqueue::find_queue(self, conn, name).await
    }

    async fn pause(&self, queue: &str, is_paused: bool) -> Result<()> {
        enqueue::pause(self, queue, is_paused).await
    }

    async fn is_paused(&self, queue: &str) -> Result<bool> {
        enqueue::is_paused(self, queue).await
    }

    async fn enqueue(&self, conn: &mut MySqlConnection, messages: &[NewMessage<'_>]) -> Result<Enqueued> {
        enqueue::enqueue(self, conn, messages).await
    }

    async fn lend(&self, pool: &Pool<MySql>) -> Result<PoolConnection<MySql>> {
        Ok(pool.acquire().await?)
    }

    async fn begin_for_caller(&self, pool: &Pool<MySql>) -> Result<Transaction<'static, MySql>> {
        Ok(pool.begin().await?)
    }

    async fn enqueue_alone(
        &self,
        conn: &mut MySqlConnection,
        messages: &[NewMessage<'_>],
    ) -> Result<Enqueued> {
        enqueue::enqueue_alone(self, conn, messages).await
    }

    async fn peek(
        &self,
        conn: &mut MySqlConnection,
        queue: &Queue,
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::peek(self, conn, queue, after_id, most).await
    }

    async fn browse(
        &self,
        conn: &mut MySqlConnection,
        queue: &Queue,
        partition_id: i32,
        after_seq: i64,
        most: u32,
    ) -> Result<Vec<OutboxMessage>> {
        peek::browse(self, conn, queue, partition_id, after_seq, most).await
    }

    async fn unsequenced(
        &self,
        conn: &mut MySqlConnection,
        queue: &Queue,
        partition_ids: &[i32],
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::unsequenced(self, conn, queue, partition_ids, after_id, most).await
    }

    async fn clock(&self, conn: &mut MySqlConnection) -> Result<i64> {
        peek::clock(self, conn).await
    }

    async fn unsettled(&self, conn: &mut MySqlConnection, queue: &Queue) -> Result<Vec<Unsettled>> {
        peek::unsettled(self, conn, queue).await
    }

    async fn tick(&self, most: u32, _announce: bool) -> Result<Tick> {
        tick::tick(self, most).await
    }

    async fn recover(&self) -> Result<u64> {
        tick::recover(self).await
    }

    async fn acquire(&self, queue: &Arc<Queue>, claim: &Claim) -> Result<Acquired> {
        together::acquire(self, queue, claim).await
    }

    async fn settle(&self, queue: &Arc<Queue>, claim: &Claim, settlement: &Settlement) -> Result<Settled> {
        together::settle(self, queue, claim, settlement).await
    }

    async fn handling(&self) -> Result<Handling<MySql>> {
        transaction::handling(self).await
    }

    async fn begin<'c>(
        &self,
        handling: &'c mut Handling<MySql>,
        claim: &Claim,
        epoch: i64,
        timeout: Duration,
    ) -> Result<Begun<'c, MySql>> {
        transaction::begin(self, handling, claim, epoch, timeout).await
    }

    async fn keep(
        &self,
        conn: &mut MySqlConnection,
        claim: &Claim,
        timeout: Duration,
        is_last: bool,
    ) -> Result<Kept> {
        transaction::keep(self, conn, claim, timeout, is_last).await
    }

    async fn undo(&self, conn: &mut MySqlConnection, is_last: bool) -> Result<Kept> {
        transaction::undo(self, conn, is_last).await
    }

    async fn settle_within(
        &self,
        transaction: Transaction<'_, MySql>,
        queue: &Queue,
        claim: &Claim,
        settlement: &Settlement,
    ) -> Result<Settled> {
        cursor::settle_within(self, transaction, queue, claim, settlement).await
    }

    async fn end_session(&self, session: Session) -> Result<()> {
        transaction::end_session(self, session).await
    }

    async fn give_back(&self, handling: Handling<MySql>, is_lost: bool) -> Result<()> {
        if is_lost { Ok(()) } else { transaction::give_back(handling) }
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

    async fn begin_on<'c>(&self, conn: &'c mut MySqlConnection) -> Result<Option<Transaction<'c, MySql>>> {
        dead_letters::begin_on(self, conn).await
    }

    async fn pick_dead_letters(
        &self,
        conn: &mut MySqlConnection,
        selection: &Selection<'_>,
        lock: Lock,
    ) -> Result<Vec<Picked>> {
        dead_letters::pick(self, conn, selection, lock).await
    }

    async fn read_dead_letters(
        &self,
        conn: &mut MySqlConnection,
        ids: &[i64],
        is_locked: bool,
    ) -> Result<Vec<DeadLetterMessage>> {
        dead_letters::read(self, conn, ids, is_locked).await
    }

    async fn count_dead_letters(&self, conn: &mut MySqlConnection, selection: &Selection<'_>) -> Result<u64> {
        dead_letters::count(self, conn, selection).await
    }

    async fn change_dead_letters(
        &self,
        conn: &mut MySqlConnection,
        ids: &[i64],
        change: &Change<'_>,
    ) -> Result<()> {
        dead_letters::change(self, conn, ids, change).await
    }

    async fn mark_redelivered(
        &self,
        conn: &mut MySqlConnection,
        sent: &[(OutboxMessageId, OutboxMessageId)],
    ) -> Result<()> {
        dead_letters::mark_redelivered(self, conn, sent).await
    }

    async fn delete_dead_letters(&self, conn: &mut MySqlConnection, ids: &[i64]) -> Result<()> {
        dead_letters::delete(self, conn, ids).await
    }

    async fn lag(&self) -> Result<Lagging> {
        lag::lag(self).await
    }

    async fn announce_enqueued(&self, _tickets: &[Ticket]) -> Result<()> {
        // The watchers of the worker processes see it by themselves.
        Ok(())
    }

    async fn announce_released(&self, _partition_id: i32) -> Result<()> {
        Ok(())
    }

    async fn listen(&self, wake: &Wake) -> Result<()> {
        wake::listen(self, wake).await
    }

    async fn close(&self) {
        self.shared.handler_connections.close().await;
        self.shared.connections.close().await;
    }
}
