//! Real processes on one file, killed in the middle of everything. The test starts itself again as a process that both enqueues
//! and works.

use std::{
    collections::{HashMap, HashSet},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::{
    EnqueueMessage, HandlerResult, LeaseConfig, LeasedMessageHandler, MessageResult, Outbox, OutboxMessage,
    Partitions, TransactionalMessageHandler,
    testing::{Timings, WatcherTimings},
};
use sqlx::{Sqlite, SqliteConnection, SqlitePool, sqlite::SqliteConnectOptions};

use super::stage::{
    assert_consistent, builder, count, eventually, millis, quick_retries, secs, settled, write,
};
use crate::stage::{grows_to, idle_for_ever};

/// In the environment of such a process: the database and the file that leased handlers write to.
const FILE: &str = "POSTHASTE_TEST_FILE";
const SEEN: &str = "POSTHASTE_TEST_SEEN";
const KILLS: usize = 200;
const TEST: &str = "sqlite::processes::g1_to_g6_four_processes_on_one_file_killed_200_times";

/// Writes down in a file what it sees: partition, seq, payload.
struct Clerk(PathBuf);

impl LeasedMessageHandler for Clerk {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let text = String::from_utf8_lossy(&msg.payload);
        let line = format!("{} {} {text}\n", msg.partition, msg.seq);
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        MessageResult::Ok
    }
}

struct Writer;

impl TransactionalMessageHandler<Sqlite> for Writer {
    async fn handle(&self, conn: &mut SqliteConnection, msg: &OutboxMessage) -> HandlerResult {
        let written = write(conn, msg).await;
        tokio::time::sleep(millis(1)).await;
        written.into()
    }
}

async fn open(file: &Path) -> SqlitePool {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    SqlitePool::connect_with(options).await.unwrap()
}

/// Works, and enqueues, until it is killed.
async fn be_a_process_if_asked() -> bool {
    let Ok(file) = std::env::var(FILE) else { return false };
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).try_init().ok();
    let pool = open(Path::new(&file)).await;
    let handle = builder(&pool)
        .processor_tuning(quick_retries())
        .queue("leased", Partitions::of(2))
        .leased(Clerk(std::env::var_os(SEEN).unwrap().into()))
        .lease(LeaseConfig { duration: millis(300), headroom: millis(100) })
        .queue("transactional", Partitions::of(2))
        .transactional(Writer)
        .lease(LeaseConfig { duration: millis(300), headroom: millis(100) })
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    for n in 0_u32.. {
        let (name, is_phantom) = (format!("{}-{n}", std::process::id()), n % 4 == 3);
        let produced: Result<(), posthaste::OutboxError> = outbox
            .transaction(async |tx| {
                if !is_phantom {
                    sqlx::query("INSERT INTO ledger VALUES (?)").bind(&name).execute(&mut **tx).await?;
                }
                for queue in ["leased", "transactional"] {
                    let message = EnqueueMessage::new(name.clone()).partition(n % 2);
                    outbox.enqueue(&mut *tx, queue, message).await?;
                }
                if is_phantom { Err(sqlx::Error::RowNotFound.into()) } else { Ok(()) }
            })
            .await;
        assert_eq!(produced.is_err(), is_phantom, "{produced:?}");
        tokio::time::sleep(millis(20)).await;
    }
    true
}

/// Those that are left are killed at the end.
struct Processes {
    folder: PathBuf,
    children: Vec<Child>,
}

impl Processes {
    fn start(&mut self) {
        let log =
            std::fs::OpenOptions::new().append(true).create(true).open(self.folder.join("log")).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(FILE, self.folder.join("test.db"))
            .env(SEEN, self.folder.join("seen"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        self.children.push(child);
    }

    fn kill_the_oldest(&mut self) {
        let mut child = self.children.remove(0);
        assert!(
            child.try_wait().unwrap().is_none(),
            "a process ended by itself: see {}",
            self.folder.display()
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

#[tokio::test]
async fn g1_to_g6_four_processes_on_one_file_killed_200_times() {
    if be_a_process_if_asked().await {
        return;
    }
    let folder = tempfile::tempdir_in(posthaste_test_support::sqlite_folder()).unwrap().keep();
    let pool = open(&folder.join("test.db")).await;
    super::stage::make_effects(&pool).await;
    sqlx::raw_sql("CREATE TABLE ledger (name TEXT PRIMARY KEY)").execute(&pool).await.unwrap();
    let mut processes = Processes { folder: folder.clone(), children: Vec::new() };
    let began = Instant::now();
    (0..4).for_each(|_| processes.start());
    let ledger = "SELECT count(*) FROM ledger";
    let mut n = 0;
    while n < KILLS || count(&pool, ledger).await <= i64::try_from(KILLS).unwrap() {
        // Between the first moments of a start and the middle of the work.
        tokio::time::sleep(millis(20 + u64::try_from(n * 37 % 160).unwrap())).await;
        processes.kill_the_oldest();
        processes.start();
        n += 1;
    }
    drop(processes);
    let killed = began.elapsed();

    // One process in peace finishes what the others have left.
    let seen = folder.join("seen");
    let handle = builder(&pool)
        .processor_tuning(quick_retries())
        .queue("leased", Partitions::of(2))
        .leased(Clerk(seen.clone()))
        .queue("transactional", Partitions::of(2))
        .transactional(Writer)
        .start()
        .await
        .unwrap();
    let names: Vec<String> = sqlx::query_scalar("SELECT name FROM ledger").fetch_all(&pool).await.unwrap();
    let names: HashSet<_> = names.into_iter().collect();
    assert!(names.len() > KILLS, "{} messages", names.len());
    let all = i64::try_from(2 * names.len()).unwrap();
    grows_to(all, "are settled, and nothing else", async || settled(&pool).await).await;
    let took = began.elapsed();
    println!("{} messages a queue; {n} kills in {killed:?}, all in {took:?}", names.len());

    // Exactly once, transactional: an effect for each, in order, and no phantom's.
    assert_eq!(count(&pool, "SELECT count(*) FROM effects").await, all / 2);
    assert_eq!(count(&pool, "SELECT count(DISTINCT id) FROM effects").await, all / 2);
    let order = "SELECT count(*) FROM (SELECT seq - lag(seq, 1, 0) OVER (PARTITION BY partition ORDER BY rowid) AS step
                 FROM effects) WHERE step <> 1";
    assert_eq!(count(&pool, order).await, 0, "in the order of the seqs");
    assert_eq!(count(&pool, "SELECT count(*) FROM posthaste_dead_letter").await, 0);

    // At least once, leased: each was seen, first in order, and none that was rolled back.
    let text = std::fs::read_to_string(&seen).unwrap();
    let (mut next, mut found, mut last_of) = (HashMap::new(), HashSet::new(), HashMap::new());
    for line in text.lines() {
        let [partition, seq, name] = line.split(' ').collect::<Vec<_>>().try_into().expect("three words");
        let (partition, seq): (u32, i64) = (partition.parse().unwrap(), seq.parse().unwrap());
        let next = next.entry(partition).or_insert(1);
        assert!(seq <= *next, "partition {partition}: {seq} came before {next}");
        assert!(names.contains(name), "{name} was never committed");
        if seq == *next {
            *next += 1;
            assert!(found.insert(name), "{name} has two places");
            let (process, n) = name.split_once('-').unwrap();
            let last = last_of.insert((partition, process), n.parse::<u32>().unwrap());
            assert!(last < Some(n.parse().unwrap()), "what a process enqueued is in order");
        }
    }
    assert_eq!(found.len(), names.len(), "each was seen");
    assert_consistent(&pool).await;
    handle.stop().await;
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let errors: Vec<_> =
        log.lines().filter(|line| line.contains("ERROR") || line.contains("panicked")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
    pool.close().await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// From another process, while nothing else happens: the watcher sees the commit, and no timer is left that could.
#[tokio::test]
async fn g13_the_commit_of_another_process_triggers_the_delivery() {
    let db = super::stage::fresh().await;
    let memory = super::stage::Memory::new();
    let watched = WatcherTimings { active_for: millis(100), ..Timings::default().sqlite_watcher };
    let timings = Timings { sqlite_watcher: watched, ..Timings::without_timers() };
    let queue = idle_for_ever(builder(&db.pool)).timings(timings).queue("q", Partitions::of(4));
    let handle = queue.leased(memory.clone()).start().await.unwrap();
    // As if in another process: it shares nothing with the workers.
    let file = db.pool.connect_options().get_filename().to_owned();
    let producer = Outbox::connect(open(&file).await).await.unwrap();
    let other = open(&file).await;
    for n in 0..15_usize {
        // At any time between two looks of the watcher, while it is active and while it is idle.
        tokio::time::sleep(millis([7, 71, 213][n % 3])).await;
        let mut tx = other.begin().await.unwrap();
        let message = EnqueueMessage::new("x").partition(u32::try_from(n % 4).unwrap());
        producer.enqueue(&mut tx, "q", message).await.unwrap();
        tx.commit().await.unwrap();
        memory.has(n + 1).await;
    }
    handle.stop().await;
    other.close().await;
    db.remove().await;
}

/// Takes its time, and writes down in a file that it does.
struct Slow(PathBuf);

impl LeasedMessageHandler for Slow {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(format!("{} {}\n", std::process::id(), msg.seq).as_bytes()).unwrap();
        tokio::time::sleep(millis(60)).await;
        MessageResult::Ok
    }
}

/// The process is paused while it handles, under a lease, and does not write: one that is paused while it writes keeps the lock of
/// the file, which nobody can take away.
#[tokio::test]
async fn g7_a_process_that_is_paused_in_its_handler_settles_nothing_when_it_wakes() {
    const LEASE: LeaseConfig = LeaseConfig { duration: millis(1000), headroom: millis(200) };
    let start = async |pool: &SqlitePool, seen: PathBuf| {
        let queue = builder(pool).processor_tuning(quick_retries()).queue("q", Partitions::of(1));
        queue.leased(Slow(seen)).lease(LEASE).start().await.unwrap()
    };
    if let Ok(file) = std::env::var(FILE) {
        let pool = open(Path::new(&file)).await;
        let _handle = start(&pool, std::env::var_os(SEEN).unwrap().into()).await;
        std::future::pending::<()>().await;
    }
    let (db, folder) = (super::stage::fresh().await, tempfile::tempdir().unwrap());
    let file = db.pool.connect_options().get_filename().to_owned();
    let (theirs, ours) = (folder.path().join("theirs"), folder.path().join("ours"));
    start(&db.pool, ours.clone()).await.stop().await;
    let outbox = Outbox::connect(db.pool.clone()).await.unwrap();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); 40]).await.unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "sqlite::processes::g7_a_process_that_is_paused_in_its_handler_settles_nothing_when_it_wakes",
            "--exact",
        ])
        .envs([(FILE, &file), (SEEN, &theirs)])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().try_into().unwrap());
    let _killed_at_the_end = Processes { folder: folder.path().to_owned(), children: vec![child] };
    let lines = |file: &Path| std::fs::read_to_string(file).unwrap_or_default().lines().count();
    eventually("it is at work", async || lines(&theirs) >= 3).await;
    let impatient = SqliteConnectOptions::new().filename(&file).busy_timeout(millis(0));
    let probe = SqlitePool::connect_with(impatient).await.unwrap();
    loop {
        kill(pid, Signal::SIGSTOP).unwrap();
        if probe.begin_with("BEGIN IMMEDIATE").await.is_ok() {
            break;
        }
        kill(pid, Signal::SIGCONT).unwrap();
        tokio::time::sleep(millis(7)).await;
    }
    let seen = lines(&theirs);
    let handle = start(&db.pool, ours.clone()).await;
    eventually("we take over", async || lines(&ours) > 0).await;
    eventually("all is settled", async || settled(&db.pool).await == 40).await;
    let newest = "SELECT max(epoch) FROM posthaste_cursor";
    let epoch = count(&db.pool, newest).await;
    kill(pid, Signal::SIGCONT).unwrap();
    tokio::time::sleep(secs(2)).await;
    assert_eq!(count(&db.pool, newest).await, epoch, "what it settles now changes nothing");
    assert!(lines(&theirs) <= seen + 1, "and it goes on with nothing");
    assert_consistent(&db.pool).await;
    handle.stop().await;
    probe.close().await;
    db.remove().await;
}
