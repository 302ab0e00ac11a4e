//! Real processes: several workers on one queue, killed and paused. Each test starts itself again as a worker, which
//! appends what it sees to a file, and has the mode of the test.

use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, LeasedMessageHandler, MessageResult, Outbox, OutboxMessage,
    Partitions, TransactionalHandler, TransactionalMessageHandler,
};
use sqlx::Pool;

use crate::{
    cases::cases,
    dialect::{Dialect, Tested},
    fresh::{Fresh, Server},
    modes::{InMode, Mode},
    stage::{
        SOON, assert_consistent, builder_on, eventually, fresh, grows_to, millis, register, settled, within,
    },
};

cases! {
    [leased, transactional, batch]:
        g4_four_processes_compete_without_a_duplicate,
        g12_kill_9_of_a_lease_holder_delays_its_partition_by_the_lease,
        g7_a_process_paused_past_its_lease_settles_nothing_when_it_wakes
            except(sqlite = "a process that is paused while it writes keeps the lock of the file: nobody can take it away");
}

/// In the environment of a worker: the database, the file, and its lease in milliseconds.
const WORKER: &str = "POSTHASTE_TEST_WORKER";
const FILE: &str = "POSTHASTE_TEST_FILE";
const LEASE_MS: &str = "POSTHASTE_TEST_LEASE_MS";
/// Short, for who waits for its end.
const LEASE: Duration = millis(3000);
/// How often a worker is killed.
const KILLS: usize = 2;

/// Appends a line a message, and takes a little while.
struct Clerk {
    file: PathBuf,
}

impl Clerk {
    async fn write_down(&self, msg: &OutboxMessage) {
        let line =
            format!("{} {} {} {} {}\n", std::process::id(), msg.partition, msg.seq, msg.id, msg.attempts);
        let mut file =
            std::fs::OpenOptions::new().append(true).create(true).open(&self.file).expect("the file");
        file.write_all(line.as_bytes()).expect("a line");
        tokio::time::sleep(millis(2)).await;
    }
}

impl LeasedMessageHandler for Clerk {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        self.write_down(msg).await;
        MessageResult::Ok
    }
}

impl<DB: Tested> TransactionalHandler<DB> for Clerk {
    async fn handle(&self, conn: &mut DB::Connection, msgs: &[OutboxMessage]) -> HandlerResult {
        if let Err(error) = DB::write_effects(conn, msgs, true).await {
            return HandlerResult::Retry { reason: error.to_string() };
        }
        for msg in msgs {
            self.write_down(msg).await;
        }
        HandlerResult::Success
    }
}

impl<DB: Tested> TransactionalMessageHandler<DB> for Clerk {
    async fn handle(&self, conn: &mut DB::Connection, msg: &OutboxMessage) -> HandlerResult {
        <Self as TransactionalHandler<DB>>::handle(self, conn, std::slice::from_ref(msg)).await
    }
}

/// If this process was started as a worker: be one until killed, or until standard input is closed.
async fn be_a_worker_if_asked<S: Server>(mode: Mode) -> bool {
    let Ok(url) = std::env::var(WORKER) else { return false };
    let file = std::env::var_os(FILE).map(PathBuf::from).expect("a file");
    let lease = std::env::var(LEASE_MS).ok().and_then(|ms| ms.parse().ok()).map(millis).expect("a lease");
    let pool = Pool::<S::Db>::connect_with(S::Db::options(&url)).await.expect("the database");
    let handle = builder_on(pool)
        .queue("q", Partitions::of(4))
        .handled(mode, Clerk { file })
        .lease(LeaseConfig { duration: lease, headroom: millis(200) })
        .start()
        .await
        .expect("it starts");
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()))
        .await
        .expect("a line")
        .ok();
    handle.stop().await;
    true
}

/// Workers in processes of their own; those that are left are killed at the end.
struct Workers {
    /// Its full name.
    test: String,
    url: String,
    file: PathBuf,
    lease: Duration,
    children: Vec<Child>,
}

impl Workers {
    fn new<S: Server>(db: &Fresh<S>, mode: Mode, test: &str, folder: &Path) -> Self {
        let test = format!("processes::{}::{}::{test}", S::NAME, mode.module());
        let file = folder.join("seen");
        Self { test, url: db.url.clone(), file, lease: LEASE, children: Vec::new() }
    }

    fn hire(&mut self) -> Pid {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([&self.test, "--exact", "--nocapture"])
            .env(WORKER, &self.url)
            .env(FILE, &self.file)
            .env(LEASE_MS, self.lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a worker");
        let pid = Pid::from_raw(child.id().try_into().expect("a pid"));
        self.children.push(child);
        pid
    }

    /// What was seen so far: process, partition, seq, id, attempts.
    fn seen(&self) -> Vec<[i64; 5]> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let numbers = |line: &str| {
            let numbers: Vec<i64> = line.split(' ').map(|n| n.parse().expect("a number")).collect();
            <[i64; 5]>::try_from(numbers).expect("five numbers")
        };
        // Behind the last end of a line is what is being written.
        text.rsplit_once('\n').map_or("", |(whole, _)| whole).lines().map(numbers).collect()
    }

    /// Who worked on a partition, and on which seq, message by message: the last of them holds its lease.
    fn on(&self, partition: i64) -> Vec<(Pid, i64)> {
        let seen = self.seen();
        let lines = seen.iter().filter(|line| line[1] == partition);
        lines.map(|line| (Pid::from_raw(line[0].try_into().expect("a pid")), line[2])).collect()
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

async fn send<DB: Tested>(outbox: &Outbox<DB>, pool: &Pool<DB>, messages: u32) {
    let messages: Vec<_> = (0..messages).map(|n| EnqueueMessage::new("x").partition(n % 4)).collect();
    outbox.enqueue_batch(pool, "q", &messages).await.unwrap();
}

/// A database with the queue, an outbox to enqueue to, and a folder.
async fn start<S: Server>() -> (Fresh<S>, Outbox<S::Db>, tempfile::TempDir) {
    let db = fresh::<S>().await;
    register(&db, Partitions::of(4)).await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    (db, outbox, tempfile::tempdir().unwrap())
}

/// Each message was delivered in order: the first deliveries of a partition are 1, 2, 3 …
fn assert_order(seen: &[[i64; 5]], each: i64) {
    let mut next: HashMap<i64, i64> = HashMap::new();
    for [_, partition, seq, _, _] in seen {
        let next = next.entry(*partition).or_insert(1);
        assert!(*seq <= *next, "partition {partition}: {seq} came before {next}");
        if seq == next {
            *next += 1;
        }
    }
    assert!((0..4).all(|partition| next.get(&partition) == Some(&(each + 1))), "{next:?}");
}

async fn g4_four_processes_compete_without_a_duplicate<S: Server>(mode: Mode) {
    if be_a_worker_if_asked::<S>(mode).await {
        return;
    }
    let (db, outbox, folder) = start::<S>().await;
    let test = "g4_four_processes_compete_without_a_duplicate";
    let mut workers = Workers::new(&db, mode, test, folder.path());
    // Nobody is so slow that another one takes over from it.
    workers.lease = LeaseConfig::default().duration;
    for _ in 0..4 {
        workers.hire();
    }
    // On a busy machine the first process may be far ahead of the others.
    let (mut rounds, mut seen) = (0, workers.seen());
    let take_part = |seen: &[[i64; 5]]| seen.iter().map(|line| line[0]).collect::<BTreeSet<_>>().len();
    while rounds < 20 || take_part(&seen) < 2 {
        rounds += 1;
        assert!(rounds <= 500, "one process handles everything");
        send(&outbox, &db.pool, 100).await;
        grows_to(rounds * 100, "are settled", async || settled(&db.pool).await).await;
        seen = workers.seen();
    }
    assert_eq!(seen.len(), usize::try_from(rounds * 100).unwrap(), "no duplicate");
    assert_order(&seen, rounds * 25);
    drop(workers);
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g12_kill_9_of_a_lease_holder_delays_its_partition_by_the_lease<S: Server>(mode: Mode) {
    if be_a_worker_if_asked::<S>(mode).await {
        return;
    }
    let (db, outbox, folder) = start::<S>().await;
    let test = "g12_kill_9_of_a_lease_holder_delays_its_partition_by_the_lease";
    let mut workers = Workers::new(&db, mode, test, folder.path());
    workers.hire();
    workers.hire();
    let mut total = 0;
    for _ in 0..KILLS {
        let worked_before = workers.on(0).len();
        send(&outbox, &db.pool, 400).await;
        total += 400;
        // In the middle of it, on partition 0 too: the others may come first.
        let half = settled(&db.pool).await + 100;
        eventually("work is under way", async || {
            settled(&db.pool).await >= half && workers.on(0).len() > worked_before
        })
        .await;
        let (holder, _) = *workers.on(0).last().expect("somebody works on partition 0");
        kill(holder, Signal::SIGKILL).unwrap();
        let worked_by_then = workers.on(0);
        workers.hire();
        // Unless nothing was left of it, somebody else goes on in time. How fast all of it is done is no promise.
        if worked_by_then.iter().all(|(_, seq)| *seq < total / 4) {
            within(LEASE + SOON, "partition 0 goes on", async || workers.on(0).len() > worked_by_then.len())
                .await;
        }
        grows_to(total, "messages are settled", async || settled(&db.pool).await).await;
    }
    let seen = workers.seen();
    assert_order(&seen, total / 4);
    // At most one batch of each of the four partitions was under way at each kill.
    let duplicates = seen.len() - usize::try_from(total).unwrap();
    assert!(duplicates <= KILLS * 4 * 10, "{duplicates} duplicates");
    drop(workers);
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}

async fn g7_a_process_paused_past_its_lease_settles_nothing_when_it_wakes<S: Server>(mode: Mode) {
    if be_a_worker_if_asked::<S>(mode).await {
        return;
    }
    let (db, outbox, folder) = start::<S>().await;
    let test = "g7_a_process_paused_past_its_lease_settles_nothing_when_it_wakes";
    let mut workers = Workers::new(&db, mode, test, folder.path());
    let first = workers.hire();
    let mut total = 0;
    for round in 0..3 {
        send(&outbox, &db.pool, 400).await;
        total += 400;
        let some = settled(&db.pool).await + 40;
        eventually("work is under way", async || settled(&db.pool).await >= some).await;
        kill(first, Signal::SIGSTOP).unwrap();
        if round == 0 {
            workers.hire();
        }
        grows_to(total, "are settled by the other one", async || settled(&db.pool).await).await;
        kill(first, Signal::SIGCONT).unwrap();
        // What it does now must change nothing; and it goes on with new work.
        send(&outbox, &db.pool, 40).await;
        total += 40;
        grows_to(total, "are settled", async || settled(&db.pool).await).await;
    }
    assert_order(&workers.seen(), total / 4);
    drop(workers);
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    db.remove().await;
}
