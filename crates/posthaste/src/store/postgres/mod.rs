//! PostgreSQL. The statements are in `sql/`, each with what it writes and locks; the tables in `migrations/`.

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

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, PgConnection, Pool, Postgres, Transaction,
    pool::PoolConnection,
    postgres::{PgArguments, PgConnectOptions, PgDatabaseError, PgRow},
    query::Query,
};
use tokio::sync::Mutex;
use uuid::Uuid;

use self::{
    cursor::{Acquiring, Settling},
    statements::{Statements, fill, names},
};
use super::{
    Acquired, Backend, Begun, Change, Claim, Enqueued, Handling, Kept, Lagging, Lock, NewMessage,
    NewsChannel, Picked, Queue, Removed, Result, Selection, Session, Settled, Settlement, Store, Surveyed,
    Suspects, Tables, Tick, Ticket, Trim, Trimmed, Unsettled,
    answer::{ANSWER_LIMIT, answer, answer_within},
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

impl sealed::Sealed for Postgres {}

impl Backend for Postgres {
    type Store = PostgresStore;
}

/// How our statements are planned, whatever the role's defaults: they are written for one plan, by index, newest first, and
/// statistics of tables that fill and empty by the second would talk the planner out of it. Locks are waited for.
const PLANNING: [(&str, &str); 7] = [
    ("lock_timeout", "0"),
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("jit", "off"),
    ("plan_cache_mode", "force_generic_plan"),
];

fn plan_our_way(set: &str) -> String {
    PLANNING.map(|(name, value)| format!("{set} {name} = {value}")).join("; ")
}

fn plan_as_usual() -> String {
    PLANNING.map(|(name, _)| format!("SET LOCAL {name} TO DEFAULT")).join("; ")
}

/// What every session of a worker is set to.
static SESSION: LazyLock<String> = LazyLock::new(|| {
    let planning = plan_our_way("SET");
    format!(
        "SET default_transaction_isolation = 'read committed'; SET default_transaction_read_only = off; \
         SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '60s'; {planning}"
    )
});

/// The same for one transaction, where the session is not ours.
static TRANSACTION: LazyLock<String> = LazyLock::new(|| {
    let planning = plan_our_way("SET LOCAL");
    format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = 0; \
         SET LOCAL idle_in_transaction_session_timeout = '10s'; {planning}"
    )
});

/// How a transaction of ours begins on a connection of the caller's, whatever the role's defaults.
const BEGIN_TO_WRITE: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE";

#[derive(Clone)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

struct Shared {
    timings: Timings,
    statements: Statements,
    /// The table of messages, as SQL names it.
    incoming: String,
    /// Names this outbox among others in the cluster.
    outbox_id: Uuid,
    /// Names this process among those that notify, so that it does not listen to itself.
    process_id: Uuid,
    connections: Arc<Connections<Postgres>>,
    /// Apart from the workers', whose sessions are set to what our statements need.
    handler_connections: Arc<Connections<Postgres>>,
    /// For notifications, which need nothing of a worker's session.
    notifier: Mutex<Option<PgConnection>>,
    acquires: Together<PostgresStore, Acquiring>,
    settlements: Together<PostgresStore, Settling>,
    /// Between us and the server is a pooler that gives each transaction another session: no LISTEN, no session
    /// settings, no prepared statements that last, and each statement in a transaction of its own.
    is_pooled: bool,
}

impl PostgresStore {
    async fn open_unlimited(
        pool: Pool<Postgres>,
        tables: &Tables,
        workers: usize,
        handlers: usize,
        timings: Timings,
    ) -> Result<Self> {
        let reconnect = Arc::new(Reconnect::new(timings.unreachable));
        let handler_connections =
            Arc::new(Connections::new(pool.clone(), handlers, worker_options).paced(&reconnect));
        let connections = Arc::new(Connections::new(pool, workers, worker_options).paced(&reconnect));
        let mut conn = connections.connect().await?;
        // In one transaction: a pooler may give each its own session.
        let mut tx = conn.begin().await?;
        let schema = migrate::schema_of(&mut tx, tables).await?;
        let outbox_id = migrate::check_version(&mut tx, &schema, tables).await?;
        tx.commit().await?;
        conn.close().await.ok();
        let names = names(Some(&schema), tables);
        let statements = Statements::render(|sql| fill(&names, sql));
        let is_pooled = wake::shares_sessions(&connections).await?;
        Ok(Self {
            shared: Arc::new(Shared {
                timings,
                statements,
                incoming: names.table("incoming"),
                outbox_id,
                process_id: Uuid::new_v4(),
                connections,
                handler_connections,
                notifier: Mutex::default(),
                acquires: Together::default(),
                settlements: Together::default(),
                is_pooled,
            }),
        })
    }

    fn sql(&self) -> &Statements {
        &self.shared.statements
    }

    fn is_pooled(&self) -> bool {
        self.shared.is_pooled
    }

    /// The channel that this outbox's news travels on.
    fn channel(&self) -> String {
        format!("posthaste_{}", self.shared.outbox_id.simple())
    }

    /// The name of a handler's savepoint, which no handler has by chance.
    fn savepoint(&self) -> String {
        format!("posthaste_{}", self.shared.process_id.simple())
    }

    /// The key of the advisory lock that saves sequencers from each other.
    fn lock_key(&self) -> i64 {
        let (high, low) = self.shared.outbox_id.as_u64_pair();
        (high ^ low).cast_signed()
    }

    /// A worker's connection, set up.
    async fn connection(&self) -> Result<Taken<Postgres>> {
        let (mut conn, is_new) = self.shared.connections.take().await?;
        if is_new && !self.is_pooled() {
            sqlx::raw_sql(SESSION.as_str()).execute(&mut *conn).await?;
        }
        Ok(conn)
    }

    /// Runs a statement on a worker's connection: one round trip, one transaction.
    async fn fetch(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>> {
        self.fetch_within(ANSWER_LIMIT, query).await
    }

    /// The same for a statement that may take long. A server that does not answer in time is as good as gone: dropping
    /// the connection half-way closes it.
    async fn fetch_within(
        &self,
        limit: Duration,
        query: Query<'_, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>> {
        answer_within(limit, self.fetch_unlimited(query)).await
    }

    async fn fetch_unlimited(&self, query: Query<'_, Postgres, PgArguments>) -> Result<Vec<PgRow>> {
        let mut conn = self.connection().await?;
        let result = if self.is_pooled() {
            fetch_pooled(&mut conn, query).await
        } else {
            query.fetch_all(&mut *conn).await
        };
        conn.keep_if_usable(result.map_err(OutboxError::from))
    }
}

async fn fetch_pooled(
    conn: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, sqlx::Error> {
    sqlx::raw_sql(TRANSACTION.as_str()).execute(&mut *conn).await?;
    let result = query.persistent(false).fetch_all(&mut *conn).await;
    let end = if result.is_ok() { "COMMIT" } else { "ROLLBACK" };
    sqlx::raw_sql(end).execute(&mut *conn).await?;
    result
}

/// A statement of ours.
fn query<'q>(sql: &Arc<str>) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(AssertSqlSafe(Arc::clone(sql)))
}

/// What an error of PostgreSQL means.
pub(super) fn failure(error: &PgDatabaseError) -> Failure {
    match error.code() {
        // Connection exceptions, a server going down or not yet up, a primary that became a standby.
        code if code.starts_with("08") || code.starts_with("57P") || code == "25006" => Failure::Lost,
        // Serialisation failures, deadlocks, out of connections.
        "40001" | "40P01" | "53300" => Failure::Passing,
        _ => Failure::Lasting,
    }
}

fn worker_options(options: PgConnectOptions) -> PgConnectOptions {
    let name = options
        .get_application_name()
        .map_or_else(|| "posthaste".to_owned(), |name| format!("{name} posthaste"));
    // A large tick may be slow for good reasons, and its text is long.
    options.application_name(&name).log_slow_statements(log::LevelFilter::Debug, Duration::from_secs(1))
}

impl Store for PostgresStore {
    type Db = Postgres;

    const CANCELS_CLEANLY: bool = false;
    const BEGIN_TO_READ: &'static str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    const BEGIN_TO_WRITE: &'static str = BEGIN_TO_WRITE;
    const TRANSACTION_ENDED: &'static str =
        "the handler ended the transaction that it was given (COMMIT, ROLLBACK or PREPARE TRANSACTION)";

    async fn migrate(pool: &Pool<Postgres>, tables: &Tables) -> Result<()> {
        migrate::migrate(pool, tables).await
    }

    fn migration_sql(tables: &Tables) -> String {
        migrate::migration_sql(tables)
    }

    fn drop_sql(tables: &Tables) -> String {
        migrate::drop_sql(tables)
    }

    async fn drop_tables(pool: &Pool<Postgres>, tables: &Tables) -> Result<()> {
        migrate::drop_tables(pool, tables).await
    }

    fn timings(&self) -> &Timings {
        &self.shared.timings
    }

    async fn open(
        pool: Pool<Postgres>,
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
        answer(wake::probe(self)).await
    }

    async fn register_queue(&self, name: &str, partitions: Partitions) -> Result<Queue> {
        enqueue::register_queue(self, name, partitions).await
    }

    async fn find_queue(&self, conn: &mut PgConnection, name: &str) -> Result<Option<Queue>> {
        enqueue::find_queue(self, conn, name).await
    }

    async fn pause(&self, queue: &str, is_paused: bool) -> Result<()> {
        enqueue::pause(self, queue, is_paused).await
    }

    async fn is_paused(&self, queue: &str) -> Result<bool> {
        enqueue::is_paused(self, queue).await
    }

    async fn enqueue(&self, conn: &mut PgConnection, messages: &[NewMessage<'_>]) -> Result<Enqueued> {
        enqueue::enqueue(self, conn, messages).await
    }

    async fn lend(&self, pool: &Pool<Postgres>) -> Result<PoolConnection<Postgres>> {
        Ok(pool.acquire().await?)
    }

    async fn begin_for_caller(&self, pool: &Pool<Postgres>) -> Result<Transaction<'static, Postgres>> {
        Ok(pool.begin().await?)
    }

    async fn enqueue_alone(&self, conn: &mut PgConnection, messages: &[NewMessage<'_>]) -> Result<Enqueued> {
        enqueue::enqueue(self, conn, messages).await
    }

    async fn peek(
        &self,
        conn: &mut PgConnection,
        queue: &Queue,
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::peek(self, conn, queue, after_id, most).await
    }

    async fn browse(
        &self,
        conn: &mut PgConnection,
        queue: &Queue,
        partition_id: i32,
        after_seq: i64,
        most: u32,
    ) -> Result<Vec<OutboxMessage>> {
        peek::browse(self, conn, queue, partition_id, after_seq, most).await
    }

    async fn unsequenced(
        &self,
        conn: &mut PgConnection,
        queue: &Queue,
        partition_ids: &[i32],
        after_id: i64,
        most: u32,
    ) -> Result<Vec<EnqueuedMessage>> {
        peek::unsequenced(self, conn, queue, partition_ids, after_id, most).await
    }

    async fn clock(&self, conn: &mut PgConnection) -> Result<i64> {
        peek::clock(self, conn).await
    }

    async fn unsettled(&self, conn: &mut PgConnection, queue: &Queue) -> Result<Vec<Unsettled>> {
        peek::unsettled(self, conn, queue).await
    }

    async fn tick(&self, _most: u32, announce: bool) -> Result<Tick> {
        tick::tick(self, announce).await
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

    async fn handling(&self) -> Result<Handling<Postgres>> {
        transaction::handling(self).await
    }

    async fn begin<'c>(
        &self,
        handling: &'c mut Handling<Postgres>,
        claim: &Claim,
        epoch: i64,
        timeout: Duration,
    ) -> Result<Begun<'c, Postgres>> {
        transaction::begin(self, handling, claim, epoch, timeout).await
    }

    async fn keep(
        &self,
        conn: &mut PgConnection,
        claim: &Claim,
        timeout: Duration,
        is_last: bool,
    ) -> Result<Kept> {
        transaction::keep(self, conn, claim, timeout, is_last).await
    }

    async fn undo(&self, conn: &mut PgConnection, is_last: bool) -> Result<Kept> {
        transaction::undo(self, conn, is_last).await
    }

    async fn settle_within(
        &self,
        transaction: Transaction<'_, Postgres>,
        queue: &Queue,
        claim: &Claim,
        settlement: &Settlement,
    ) -> Result<Settled> {
        cursor::settle_within(self, transaction, queue, claim, settlement).await
    }

    async fn end_session(&self, session: Session) -> Result<()> {
        transaction::end_session(self, session).await
    }

    async fn give_back(&self, handling: Handling<Postgres>, is_lost: bool) -> Result<()> {
        if is_lost { Ok(()) } else { transaction::give_back(self, handling).await }
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

    async fn begin_on<'c>(&self, conn: &'c mut PgConnection) -> Result<Option<Transaction<'c, Postgres>>> {
        dead_letters::begin_on(conn).await
    }

    async fn pick_dead_letters(
        &self,
        conn: &mut PgConnection,
        selection: &Selection<'_>,
        lock: Lock,
    ) -> Result<Vec<Picked>> {
        dead_letters::pick(self, conn, selection, lock).await
    }

    async fn read_dead_letters(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
        _is_locked: bool,
    ) -> Result<Vec<DeadLetterMessage>> {
        dead_letters::read(self, conn, ids).await
    }

    async fn count_dead_letters(&self, conn: &mut PgConnection, selection: &Selection<'_>) -> Result<u64> {
        dead_letters::count(self, conn, selection).await
    }

    async fn change_dead_letters(
        &self,
        conn: &mut PgConnection,
        ids: &[i64],
        change: &Change<'_>,
    ) -> Result<()> {
        dead_letters::change(self, conn, ids, change).await
    }

    async fn mark_redelivered(
        &self,
        conn: &mut PgConnection,
        sent: &[(OutboxMessageId, OutboxMessageId)],
    ) -> Result<()> {
        dead_letters::mark_redelivered(self, conn, sent).await
    }

    async fn delete_dead_letters(&self, conn: &mut PgConnection, ids: &[i64]) -> Result<()> {
        dead_letters::delete(self, conn, ids).await
    }

    async fn lag(&self) -> Result<Lagging> {
        lag::lag(self).await
    }

    async fn announce_enqueued(&self, tickets: &[Ticket]) -> Result<()> {
        wake::announce_enqueued(self, tickets).await
    }

    async fn announce_released(&self, partition_id: i32) -> Result<()> {
        wake::announce_released(self, partition_id).await
    }

    async fn listen(&self, wake: &Wake) -> Result<()> {
        wake::listen(self, wake).await
    }

    async fn close(&self) {
        if let Some(notifier) = self.shared.notifier.lock().await.take() {
            notifier.close().await.ok();
        }
        self.shared.handler_connections.close().await;
        self.shared.connections.close().await;
    }
}
