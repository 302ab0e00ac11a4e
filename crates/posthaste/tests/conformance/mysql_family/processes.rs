//! Real processes that start at the same time on an empty database: one of them makes the tables, and none of them knows
//! which. The test starts itself again as such a process.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use posthaste::{EnqueueMessage, LeasedMessageHandler, MessageResult, OutboxMessage, Partitions};
use sqlx::MySqlPool;

use super::{Family, on_both};
use crate::stage::{assert_consistent, builder_on, count, eventually, settled, unmigrated};

on_both! {
    []: four_processes_that_start_at_once_on_an_empty_database_all_start_and_deliver;
}

/// In the environment of a process: the database, the file that it writes to, and which of them it is.
const URL: &str = "POSTHASTE_TEST_WORKER";
const FILE: &str = "POSTHASTE_TEST_FILE";
const WHO: &str = "POSTHASTE_TEST_WHO";

const PROCESSES: i64 = 4;
const EACH: u32 = 50;

/// Appends a line a message.
struct Clerk {
    file: PathBuf,
}

impl LeasedMessageHandler for Clerk {
    async fn handle(&self, msg: &OutboxMessage) -> MessageResult {
        let line = format!("{} {}\n", msg.queue, String::from_utf8_lossy(&msg.payload));
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(&self.file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        MessageResult::Ok
    }
}

/// If this process was started as one of the four: start when told, enqueue to both queues, and work until told to stop.
async fn be_one_of_them_if_asked() -> bool {
    let Ok(url) = std::env::var(URL) else { return false };
    let (file, who) = (PathBuf::from(std::env::var_os(FILE).unwrap()), std::env::var(WHO).unwrap());
    let pool = MySqlPool::connect(&url).await.unwrap();
    println!("ready");
    let line = || tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    line().await.unwrap().unwrap();
    let handle = builder_on(pool.clone())
        .queue("first", Partitions::of(4))
        .leased(posthaste::PerMessageAdapter(Clerk { file: file.clone() }))
        .queue("second", Partitions::of(2))
        .leased(posthaste::PerMessageAdapter(Clerk { file }))
        .start()
        .await
        .unwrap();
    for n in 0..EACH {
        for (queue, partitions) in [("first", 4), ("second", 2)] {
            let message = EnqueueMessage::new(format!("{who}/{n}")).partition(n % partitions);
            handle.outbox().enqueue(&pool, queue, message).await.unwrap();
        }
    }
    println!("enqueued");
    line().await.unwrap().ok();
    handle.stop().await;
    true
}

struct Processes(Vec<Child>);

impl Processes {
    fn tell_all(&mut self) {
        for child in &mut self.0 {
            child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        }
    }

    /// Waits until each has said this word.
    fn hear_all(&mut self, word: &str) {
        for child in &mut self.0 {
            let said = BufReader::new(child.stdout.as_mut().unwrap())
                .lines()
                .any(|line| line.unwrap().contains(word));
            assert!(said, "one of them ended before it was {word}");
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

async fn four_processes_that_start_at_once_on_an_empty_database_all_start_and_deliver<S: Family>() {
    if be_one_of_them_if_asked().await {
        return;
    }
    let (db, folder) = (unmigrated::<S>().await, tempfile::tempdir().unwrap());
    let file = folder.path().join("seen");
    let test = format!(
        "mysql_family::processes::{}::four_processes_that_start_at_once_on_an_empty_database_all_start_and_deliver",
        S::NAME
    );
    let start = |who: i64| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([&test, "--exact", "--nocapture"])
            .env(URL, &db.url)
            .env(FILE, &file)
            .env(WHO, who.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut processes = Processes((0..PROCESSES).map(start).collect());
    processes.hear_all("ready");
    processes.tell_all();
    processes.hear_all("enqueued");
    let total = PROCESSES * i64::from(EACH) * 2;
    eventually("all is settled", async || settled(&db.pool).await == total).await;
    processes.tell_all();
    for child in &mut processes.0 {
        assert!(child.wait().unwrap().success());
    }
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        *seen.entry(line.to_owned()).or_default() += 1;
    }
    assert_eq!(i64::try_from(seen.len()).unwrap(), total, "all");
    assert!(seen.values().all(|times| *times == 1), "each once");
    for (sql, rows) in [
        ("SELECT count(*) FROM posthaste_meta", 1),
        ("SELECT count(*) FROM posthaste_queue", 2),
        ("SELECT count(*) FROM posthaste_partition", 6),
        ("SELECT count(DISTINCT partition_id) FROM posthaste_cursor", 6),
    ] {
        assert_eq!(count(&db.pool, sql).await, rows, "{sql}");
    }
    assert_consistent(&db.pool).await;
    db.remove().await;
}
