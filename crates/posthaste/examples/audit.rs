//! An audit trail that is exact: each change is written down once, however often the process that does so is killed.
//!
//! ```sh
//! cargo run -p posthaste --example audit -- postgres://user@localhost/shop
//! ```
//!
//! It makes changes in business transactions, starts itself again as a worker, and kills that in the middle of its work,
//! again and again. The trail has no unique key, so a change that was written down twice would show. Run it as often as you
//! like: it checks what earlier runs left behind, too.

use std::{
    process::{Child, Command},
    time::Duration,
};

use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, Outbox, OutboxMessage, Partitions,
    TransactionalMessageHandler,
};
use sqlx::{PgConnection, PgPool, Postgres};

const CHANGES: u32 = 600;
const KILLS: u32 = 5;
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Writes changes down, on the connection whose transaction also settles the message.
struct Audit;

impl TransactionalMessageHandler<Postgres> for Audit {
    async fn handle(&self, conn: &mut PgConnection, msg: &OutboxMessage) -> HandlerResult {
        write_down(conn, msg).await.into()
    }
}

async fn write_down(conn: &mut PgConnection, msg: &OutboxMessage) -> std::result::Result<(), sqlx::Error> {
    let change: i64 = String::from_utf8_lossy(&msg.payload).parse().unwrap_or_default();
    let insert = sqlx::query("INSERT INTO audit_trail (change, seq) VALUES ($1, $2)").bind(change);
    insert.bind(msg.seq).execute(&mut *conn).await?;
    // So that a kill finds it in the middle of a batch.
    sqlx::query("SELECT pg_sleep(0.002)").execute(conn).await?;
    Ok(())
}

/// The service: delivers until it is killed, or its parent is gone and closes its standard input.
async fn work(pool: PgPool) -> Result<()> {
    let handle = Outbox::builder(pool)
        .queue("audit", Partitions::of(2))
        .transactional(Audit)
        // Short, so that the next process does not wait long for the partitions of one that was killed.
        .lease(LeaseConfig::of(Duration::from_millis(500)))
        .start()
        .await?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    handle.stop().await;
    Ok(())
}

/// The business: each change and its announcement are one transaction.
async fn make_changes(pool: &PgPool) -> Result<()> {
    let outbox = Outbox::connect(pool.clone()).await?;
    for number in 0..CHANGES {
        let mut tx = pool.begin().await?;
        let change: i64 =
            sqlx::query_scalar("INSERT INTO changes DEFAULT VALUES RETURNING id").fetch_one(&mut *tx).await?;
        outbox
            .enqueue(&mut tx, "audit", EnqueueMessage::new(change.to_string()).partition(number % 2))
            .await?;
        tx.commit().await?;
    }
    Ok(())
}

async fn written_down(pool: &PgPool) -> Result<i64> {
    Ok(sqlx::query_scalar("SELECT count(DISTINCT change) FROM audit_trail").fetch_one(pool).await?)
}

/// Waits until so many changes are written down.
async fn wait_for(pool: &PgPool, changes: i64) -> Result<()> {
    for _ in 0..1200 {
        if written_down(pool).await? >= changes {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Err(format!("{changes} changes were not written down within a minute").into())
}

fn hire(url: &str) -> Result<Child> {
    let mut worker = Command::new(std::env::current_exe()?);
    Ok(worker.args([url, "worker"]).stdin(std::process::Stdio::piped()).spawn()?)
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let url = args.next().or_else(|| std::env::var("DATABASE_URL").ok());
    let url = url.ok_or("name a PostgreSQL server: audit postgres://user@host/database")?;
    let pool = PgPool::connect(&url).await?;
    if args.next().as_deref() == Some("worker") {
        return work(pool).await;
    }
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS changes (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY);
         CREATE TABLE IF NOT EXISTS audit_trail (change BIGINT NOT NULL, seq BIGINT NOT NULL)",
    )
    .execute(&pool)
    .await?;

    // The first worker registers the queue; then there is something to do.
    let mut worker = hire(&url)?;
    posthaste::migrate(&pool).await?;
    let outbox = Outbox::connect(pool.clone()).await?;
    while let Err(error) = outbox.enqueue_batch(&pool, "audit", &[]).await {
        if !matches!(error, posthaste::OutboxError::QueueNotRegistered(_)) {
            return Err(error.into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let business = tokio::spawn({
        let pool = pool.clone();
        async move { make_changes(&pool).await.map_err(|error| error.to_string()) }
    });
    for kill in 1..=KILLS {
        let some = i64::from(CHANGES / (KILLS + 3));
        wait_for(&pool, written_down(&pool).await? + some).await?;
        worker.kill()?; // with SIGKILL: it can do nothing about it
        worker.wait()?;
        println!("killed worker {kill} when {} changes were written down", written_down(&pool).await?);
        worker = hire(&url)?;
    }
    business.await??;
    let made: i64 = sqlx::query_scalar("SELECT count(*) FROM changes").fetch_one(&pool).await?;
    wait_for(&pool, made).await?;
    drop(worker.stdin.take());
    worker.wait()?;

    let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM audit_trail").fetch_one(&pool).await?;
    println!("{made} changes, {rows} rows in the trail, {KILLS} workers killed");
    if rows == made { Ok(()) } else { Err("a change was written down twice".into()) }
}
