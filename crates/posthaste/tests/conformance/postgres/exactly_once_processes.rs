//! G3 with real processes, killed and paused in the middle of their handlers. Each test starts itself again as a worker.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::{EnqueueMessage, HandlerResult, LeaseConfig, Outbox, Partitions};
use sqlx::{PgPool, postgres::PgConnectOptions};
use tokio::time::Instant;

use super::{
    effects::{assert_exactly_once, each, write},
    stage::{Db, Memory, builder_on, fresh, millis, quick_retries, register, secs, settled, within},
};

/// In the environment of a worker: the database, and how long its handler takes.
const WORKER: &str = "POSTHASTE_TEST_WORKER";
const PAUSE: &str = "POSTHASTE_TEST_PAUSE";
const LEASE: Duration = Duration::from_millis(1000);

/// If this process was started as a worker: be one until killed, or until standard input is closed.
async fn be_a_worker_if_asked(partitions: u32) -> bool {
    let Ok(url) = std::env::var(WORKER) else { return false };
    let pause: u64 = std::env::var(PAUSE).unwrap().parse().unwrap();
    // By its name, the test finds out which process a session belongs to.
    let options: PgConnectOptions = url.parse().unwrap();
    let pool = PgPool::connect_with(options.application_name(&std::process::id().to_string())).await.unwrap();
    let handler = each(&Memory::new(), move |conn, msg| {
        Box::pin(async move {
            if let Err(error) = write(conn, msg).await {
                return HandlerResult::Retry { reason: error.to_string() };
            }
            tokio::time::sleep(millis(pause)).await;
            HandlerResult::Success
        })
    });
    let handle = builder_on(pool)
        .processor_tuning(quick_retries())
        .queue("q", Partitions::of(partitions))
        .transactional(handler)
        .lease(LeaseConfig { duration: LEASE, headroom: millis(200) })
        .start()
        .await
        .unwrap();
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await.unwrap().ok();
    handle.stop().await;
    true
}

/// Workers in processes of their own; those that are left are killed at the end.
struct Workers {
    test: &'static str,
    url: String,
    pause: u64,
    children: Vec<Child>,
}

impl Workers {
    fn new(db: &Db, test: &'static str, pause: u64) -> Self {
        let options = db.pool.connect_options();
        let (user, host, port) = (options.get_username(), options.get_host(), options.get_port());
        let url = format!("postgres://{user}@{host}:{port}/{}", options.get_database().unwrap_or_default());
        Self { test, url, pause, children: Vec::new() }
    }

    fn hire(&mut self) {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([self.test, "--exact", "--nocapture"])
            .env(WORKER, &self.url)
            .env(PAUSE, self.pause.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        self.children.push(child);
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// A process that is in the middle of its handler: it has written the effect, and its transaction is open.
async fn in_its_handler(pool: &PgPool) -> Pid {
    let sql = "SELECT split_part(application_name, ' ', 1) FROM pg_stat_activity
               WHERE datname = current_database() AND state = 'idle in transaction'
                 AND query LIKE 'INSERT INTO public.effects%' LIMIT 1";
    let mut found: Option<String> = None;
    within(secs(20), "somebody is in the middle of a handler", async || {
        found = sqlx::query_scalar(sql).fetch_optional(pool).await.unwrap();
        found.is_some()
    })
    .await;
    Pid::from_raw(found.unwrap().parse().unwrap())
}

#[tokio::test]
async fn g3_kill_9_of_workers_in_the_middle_of_their_handlers() {
    if be_a_worker_if_asked(4).await {
        return;
    }
    let db = fresh().await;
    register(&db, Partitions::of(4)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let test = "postgres::exactly_once_processes::g3_kill_9_of_workers_in_the_middle_of_their_handlers";
    let mut workers = Workers::new(&db, test, 2);
    workers.hire();
    workers.hire();
    let mut total = 0;
    for _ in 0..8 {
        let messages: Vec<_> = (0..200).map(|n| EnqueueMessage::new("x").partition(n % 4)).collect();
        outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        total += 200;
        let some = settled(&db.pool).await + 20;
        within(secs(20), "work is under way", async || settled(&db.pool).await >= some).await;
        kill(in_its_handler(&db.pool).await, Signal::SIGKILL).unwrap();
        workers.hire();
        within(LEASE + secs(5), "all is settled", async || settled(&db.pool).await == total).await;
    }
    drop(workers);
    assert_exactly_once(&db.pool, 4, total / 4).await;
    db.remove().await;
}

#[tokio::test]
async fn g3_a_process_that_is_paused_in_its_handler_frees_its_partition_in_time_and_changes_nothing_later() {
    if be_a_worker_if_asked(1).await {
        return;
    }
    let db = fresh().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let test = "postgres::exactly_once_processes::\
                g3_a_process_that_is_paused_in_its_handler_frees_its_partition_in_time_and_changes_nothing_later";
    let mut workers = Workers::new(&db, test, 100);
    workers.hire();
    workers.hire();
    let mut total = 0;
    for _ in 0..3 {
        outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 12]).await.unwrap();
        total += 12;
        let paused = in_its_handler(&db.pool).await;
        kill(paused, Signal::SIGSTOP).unwrap();
        let (stopped, before) = (Instant::now(), settled(&db.pool).await);
        within(LEASE * 3 + secs(5), "the other one goes on", async || settled(&db.pool).await > before).await;
        assert!(stopped.elapsed() < LEASE + millis(2500), "{:?}", stopped.elapsed());
        tokio::time::sleep((LEASE * 3).saturating_sub(stopped.elapsed())).await;
        kill(paused, Signal::SIGCONT).unwrap();
        within(secs(10), "all is settled", async || settled(&db.pool).await == total).await;
    }
    drop(workers);
    assert_exactly_once(&db.pool, 1, total).await;
    db.remove().await;
}
