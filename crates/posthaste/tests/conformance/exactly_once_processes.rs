//! G3 with real processes, killed and paused in the middle of their handlers. Each test starts itself again as a worker.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::{EnqueueMessage, HandlerResult, LeaseConfig, Outbox, Partitions};
use sqlx::Pool;
use tokio::time::Instant;

use crate::{
    cases::cases,
    dialect::Dialect,
    effects::{assert_exactly_once, each},
    fresh::{Fresh, Server},
    stage::{
        Memory, SOON, builder_on, eventually, fresh, grows_to, millis, quick_retries, register, settled,
        within,
    },
};

cases! {
    []:
        g3_kill_9_of_workers_in_the_middle_of_their_handlers,
        g3_a_process_that_is_paused_in_its_handler_frees_its_partition_in_time_and_changes_nothing_later
            except(sqlite = "a process that is paused while it writes keeps the lock of the file: nobody can take it away");
}

/// In the environment of a worker: the database, how long its handler takes, and the folder where a process that is in its
/// handler has a file.
const WORKER: &str = "POSTHASTE_TEST_WORKER";
const PAUSE: &str = "POSTHASTE_TEST_PAUSE";
const FOLDER: &str = "POSTHASTE_TEST_FOLDER";
const LEASE: Duration = Duration::from_millis(1000);

/// A file that is there for as long as a handler is in its middle: it goes with the handler, however that ends.
struct Present(PathBuf);

impl Present {
    fn at(file: PathBuf) -> Self {
        std::fs::write(&file, "").expect("a file");
        Self(file)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// If this process was started as a worker: be one until killed, or until standard input is closed.
async fn be_a_worker_if_asked<S: Server>(partitions: u32) -> bool {
    let Ok(url) = std::env::var(WORKER) else { return false };
    let pause: u64 = std::env::var(PAUSE).unwrap().parse().unwrap();
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let pool = Pool::<S::Db>::connect_with(S::Db::options(&url)).await.unwrap();
    let handler = each::<S::Db, _>(&Memory::new(), move |conn, msg| {
        let file = folder.join(format!("{}-{}", std::process::id(), msg.id));
        Box::pin(async move {
            if let Err(error) = S::Db::write(conn, msg).await {
                return HandlerResult::Retry { reason: error.to_string() };
            }
            // It has written the effect, and its transaction is open.
            let _present = Present::at(file);
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
    test: String,
    url: String,
    pause: u64,
    folder: tempfile::TempDir,
    children: Vec<Child>,
}

impl Workers {
    fn new<S: Server>(db: &Fresh<S>, test: &str, pause: u64) -> Self {
        let test = format!("exactly_once_processes::{}::{test}", S::NAME);
        let folder = tempfile::tempdir().unwrap();
        Self { test, url: db.url.clone(), pause, folder, children: Vec::new() }
    }

    fn hire(&mut self) {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([&self.test, "--exact", "--nocapture"])
            .env(WORKER, &self.url)
            .env(PAUSE, self.pause.to_string())
            .env(FOLDER, self.folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        self.children.push(child);
    }

    /// A process that is in the middle of its handler: it has written the effect, and its transaction is open.
    async fn in_its_handler(&self) -> Pid {
        let mut found = None;
        eventually("somebody is in the middle of a handler", async || {
            found = a_process_with_a_file(self.folder.path());
            found.is_some()
        })
        .await;
        found.unwrap()
    }

    /// What a process leaves that is killed in the middle of its handlers.
    fn clean_up_after(&self, pid: Pid) {
        for file in std::fs::read_dir(self.folder.path()).unwrap() {
            let file = file.unwrap();
            if file.file_name().to_string_lossy().starts_with(&format!("{pid}-")) {
                std::fs::remove_file(file.path()).unwrap();
            }
        }
    }
}

fn a_process_with_a_file(folder: &Path) -> Option<Pid> {
    let file = std::fs::read_dir(folder).unwrap().next()?.unwrap();
    let name = file.file_name().into_string().unwrap();
    name.split('-').next()?.parse().ok().map(Pid::from_raw)
}

impl Drop for Workers {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

async fn g3_kill_9_of_workers_in_the_middle_of_their_handlers<S: Server>() {
    if be_a_worker_if_asked::<S>(4).await {
        return;
    }
    let db = fresh::<S>().await;
    register(&db, Partitions::of(4)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let test = "g3_kill_9_of_workers_in_the_middle_of_their_handlers";
    let mut workers = Workers::new(&db, test, 5);
    workers.hire();
    workers.hire();
    let mut total = 0;
    for _ in 0..8 {
        let messages: Vec<_> = (0..200).map(|n| EnqueueMessage::new("x").partition(n % 4)).collect();
        outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        total += 200;
        let some = settled(&db.pool).await + 20;
        eventually("work is under way", async || settled(&db.pool).await >= some).await;
        let killed = workers.in_its_handler().await;
        kill(killed, Signal::SIGKILL).unwrap();
        workers.hire();
        grows_to(total, "messages are settled", async || settled(&db.pool).await).await;
        workers.clean_up_after(killed);
    }
    drop(workers);
    assert_exactly_once(&db.pool, 4, total / 4).await;
    db.remove().await;
}

async fn g3_a_process_that_is_paused_in_its_handler_frees_its_partition_in_time_and_changes_nothing_later<
    S: Server,
>() {
    if be_a_worker_if_asked::<S>(1).await {
        return;
    }
    let db = fresh::<S>().await;
    register(&db, Partitions::of(1)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    let test =
        "g3_a_process_that_is_paused_in_its_handler_frees_its_partition_in_time_and_changes_nothing_later";
    let mut workers = Workers::new(&db, test, 100);
    workers.hire();
    workers.hire();
    let mut total = 0;
    for _ in 0..3 {
        outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 12]).await.unwrap();
        total += 12;
        let paused = workers.in_its_handler().await;
        kill(paused, Signal::SIGSTOP).unwrap();
        let (stopped, before) = (Instant::now(), settled(&db.pool).await);
        within(LEASE + SOON, "the other one goes on", async || settled(&db.pool).await > before).await;
        tokio::time::sleep((LEASE * 3).saturating_sub(stopped.elapsed())).await;
        kill(paused, Signal::SIGCONT).unwrap();
        within(SOON, "all is settled", async || settled(&db.pool).await == total).await;
    }
    drop(workers);
    assert_exactly_once(&db.pool, 1, total).await;
    db.remove().await;
}
