//! A COMMIT that fails: a cluster says so of a transaction that another node was faster than, with the number of a deadlock.
//! And one whose connection is cut, before the server hears of it or after.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use posthaste::{EnqueueMessage, Partitions, WorkerTuning};
use sqlx::{MySql, MySqlPool};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use super::{Family, on_both, wire::packet};
use crate::{
    dialect::Dialect,
    effects::{all_settled, dead_letters},
    modes::{InMode, Mode},
    stage::{
        Memory, Step, assert_consistent, builder_on, count, eventually, fresh, millis, quick_retries, settled,
    },
};

on_both! {
    [leased, transactional, batch]:
        a_commit_that_a_cluster_refuses_is_tried_again_as_a_whole;
    [leased, transactional]:
        a_commit_that_the_server_never_hears_of_changes_nothing,
        a_commit_whose_answer_is_lost_is_done_once;
    []:
        an_enqueue_on_a_pool_is_tried_again_as_a_whole_if_a_cluster_refuses_it,
        an_enqueue_on_a_pool_whose_commit_is_cut_is_whole_or_not_at_all;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The server rolls back, and the client is told of a deadlock.
    Refused,
    /// The connection is cut, and the server never hears of it.
    CutBefore,
    /// The server commits, and the connection is cut.
    CutAfter,
}

/// Whose transaction it is, by what was last said in it by the text protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Of {
    Tick,
    Handler,
    Vacuum,
    /// A producer, or a settlement with dead letters.
    Another,
}

fn whose(text: &str) -> Of {
    if text.contains("posthaste_outgoing` (partition_id, first_seq") {
        Of::Tick
    } else if text.contains("SAVEPOINT posthaste_") {
        Of::Handler
    } else if text.contains("last_seq, o.ids") || text.starts_with("DELETE") {
        Of::Vacuum
    } else {
        Of::Another
    }
}

/// How many commits there were of each, and how many failed.
type Commits = Arc<Mutex<BTreeMap<Of, (u32, u32)>>>;

/// Stands before a server, and lets every second commit of each kind fail.
struct Refuser {
    commits: Commits,
    port: u16,
    listening: JoinHandle<()>,
}

impl Refuser {
    async fn before(pool: &MySqlPool, fault: Fault) -> Self {
        let server = MySql::server(&pool.connect_options());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, commits) = (listener.local_addr().unwrap().port(), Commits::default());
        let counted = Arc::clone(&commits);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(server.clone()).await.unwrap();
                let counted = Arc::clone(&counted);
                // Its end is the end of both connections.
                tokio::spawn(async move { forward(client, server, fault, &counted).await.ok() });
            }
        });
        Self { commits, port, listening }
    }

    async fn pool(&self, pool: &MySqlPool) -> MySqlPool {
        let options = MySql::by_way_of((*pool.connect_options()).clone(), self.port);
        MySqlPool::connect_with(options).await.unwrap()
    }

    fn failed(&self, of: Of) -> u32 {
        self.commits.lock().unwrap().get(&of).map_or(0, |(_, failed)| *failed)
    }
}

impl Drop for Refuser {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Forwards until either side ends, or the connection is cut.
async fn forward(
    mut client: TcpStream,
    mut server: TcpStream,
    fault: Fault,
    commits: &Commits,
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut said, mut answered, mut last) = (Vec::new(), Vec::new(), String::new());
    loop {
        tokio::select! {
            read = client.read_buf(&mut said) => if read? == 0 { return Ok(()) },
            read = server.read_buf(&mut answered) => if read? == 0 { return Ok(()) },
        }
        client.write_all(&answered).await?;
        answered.clear();
        while let Some(packet) = packet(&mut said) {
            let text = packet.text();
            let is_commit = text.as_deref().is_some_and(|text| text.starts_with("COMMIT"));
            if is_commit && is_due(commits, whose(&last)) {
                match fault {
                    Fault::CutBefore => return Ok(()),
                    Fault::CutAfter => {
                        server.write_all(&packet.bytes).await?;
                        server.read_u8().await?;
                        return Ok(());
                    }
                    Fault::Refused => {
                        server.write_all(b"\x09\0\0\0\x03ROLLBACK").await?;
                        let length = server.read_u32_le().await? & 0x00ff_ffff;
                        server.read_exact(&mut vec![0; usize::try_from(length).unwrap()]).await?;
                        let mut refusal = vec![0xff];
                        refusal.extend(1213_u16.to_le_bytes());
                        refusal.extend(
                            b"#40001Deadlock found when trying to get lock; try restarting transaction",
                        );
                        let mut bytes = u32::try_from(refusal.len()).unwrap().to_le_bytes();
                        bytes[3] = 1;
                        client.write_all(&[&bytes[..], &refusal].concat()).await?;
                    }
                }
                continue;
            }
            server.write_all(&packet.bytes).await?;
            last = text.filter(|_| !is_commit).unwrap_or(last);
        }
    }
}

/// Counts a commit; whether it is to fail.
fn is_due(commits: &Commits, of: Of) -> bool {
    let mut commits = commits.lock().unwrap();
    let (seen, failed) = commits.entry(of).or_default();
    *seen += 1;
    let is_due = *seen % 2 == 0;
    *failed += u32::from(is_due);
    is_due
}

const MESSAGES: u32 = 64;
/// One of so many is rejected.
const REJECTED: u32 = 8;

/// Messages flow while the workers' commits fail; then each is settled once, and vacuum gets through.
async fn flow<S: Family>(mode: Mode, fault: Fault) {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let refuser = Refuser::before(&db.pool, fault).await;
    let pool = refuser.pool(&db.pool).await;
    let handler = memory.scripted(|_, message| {
        if message.payload == b"bad" { Step::Reject("no good".to_owned()) } else { Step::Ack }
    });
    let handle = builder_on(pool.clone())
        .processor_tuning(quick_retries().batch_size(if mode == Mode::Batch { 1 } else { 5 }))
        .vacuum_tuning(
            WorkerTuning::vacuum().min_interval(millis(20)).active_interval(millis(20)).batch_size(40),
        )
        .queue("q", Partitions::of(4))
        .handled(mode, handler)
        // A commit that fails is no message's fault.
        .max_attempts(4)
        .start()
        .await
        .unwrap();
    // By another way, so that all of it is there.
    for n in 0..MESSAGES / 8 {
        let message = |m: u32| {
            let payload = if (n * 8 + m) % REJECTED == 3 { "bad" } else { "good" };
            EnqueueMessage::new(payload).partition(m % 4)
        };
        let messages: Vec<_> = (0..8).map(message).collect();
        handle.outbox().enqueue_batch(&db.pool, "q", &messages).await.unwrap();
        if n == 0 {
            // So that there is more than one tick, and one to fail.
            eventually("the first are settled", async || settled(&db.pool).await == 8).await;
        }
        tokio::time::sleep(millis(5)).await;
    }
    eventually("all is settled", async || settled(&db.pool).await == i64::from(MESSAGES)).await;
    // What a settlement has left whose answer was lost is only found every 5 s, so vacuum is waited for in some modes alone.
    let waits_for_vacuum = mode == Mode::Leased || fault == Fault::Refused;
    if waits_for_vacuum {
        eventually("all is removed", async || {
            count(&db.pool, "SELECT count(*) FROM posthaste_incoming").await == 0
        })
        .await;
    }
    handle.stop().await;
    let mut kinds = vec![Of::Tick, if mode == Mode::Leased { Of::Another } else { Of::Handler }];
    kinds.extend(waits_for_vacuum.then_some(Of::Vacuum));
    for of in kinds {
        assert!(refuser.failed(of) > 0, "no commit of {of:?} failed: {:?}", refuser.commits.lock().unwrap());
    }
    let dead = dead_letters(&db.pool).await;
    assert_eq!(dead.len(), usize::try_from(MESSAGES / REJECTED).unwrap(), "each once: {dead:?}");
    assert!(dead.iter().all(|dead| dead.reason == "no good"), "{dead:?}");
    let mut ids = memory.ids();
    if mode == Mode::Leased && fault == Fault::Refused {
        assert_eq!(
            ids.len(),
            usize::try_from(MESSAGES).unwrap(),
            "no duplicate: what was refused is written again"
        );
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), usize::try_from(MESSAGES).unwrap(), "nothing is lost");
    assert_consistent(&db.pool).await;
    mode.assert_effects(&db.pool).await;
    pool.close().await;
    db.remove().await;
}

async fn a_commit_that_a_cluster_refuses_is_tried_again_as_a_whole<S: Family>(mode: Mode) {
    flow::<S>(mode, Fault::Refused).await;
}

async fn a_commit_that_the_server_never_hears_of_changes_nothing<S: Family>(mode: Mode) {
    flow::<S>(mode, Fault::CutBefore).await;
}

async fn a_commit_whose_answer_is_lost_is_done_once<S: Family>(mode: Mode) {
    flow::<S>(mode, Fault::CutAfter).await;
}

async fn an_enqueue_on_a_pool_is_tried_again_as_a_whole_if_a_cluster_refuses_it<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let refuser = Refuser::before(&db.pool, Fault::Refused).await;
    let pool = refuser.pool(&db.pool).await;
    let queue = builder_on(db.pool.clone()).queue("q", Partitions::of(2));
    let handle = queue.leased(memory.handler()).start().await.unwrap();
    let mut given = Vec::new();
    for n in 0..30_u32 {
        let messages: Vec<_> =
            (0..=n % 3).map(|m| EnqueueMessage::new(format!("{n}.{m}")).partition(m % 2)).collect();
        let ids = handle.outbox().enqueue_batch(&pool, "q", &messages).await.unwrap();
        given.extend(ids.iter().zip(0..).map(|(id, m)| (id.0, format!("{n}.{m}"))));
        handle
            .outbox()
            .enqueue(&pool, "q", EnqueueMessage::new("alone"))
            .await
            .map(|id| given.push((id.0, "alone".to_owned())))
            .unwrap();
    }
    assert_eq!(refuser.failed(Of::Another), 59, "each but the first was refused once");
    all_settled(&db.pool, i64::try_from(given.len()).unwrap()).await;
    handle.stop().await;
    let mut seen: Vec<_> = memory.ids().into_iter().zip(memory.payloads()).collect();
    seen.sort();
    given.sort();
    assert_eq!(seen, given, "under the ids that were returned, and nothing else");
    pool.close().await;
    db.remove().await;
}

/// Nobody can tell whether a commit was heard whose answer is lost: the caller gets an error, and may try again.
async fn an_enqueue_on_a_pool_whose_commit_is_cut_is_whole_or_not_at_all<S: Family>() {
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        let (db, memory) = (fresh::<S>().await, Memory::new());
        let refuser = Refuser::before(&db.pool, fault).await;
        let pool = refuser.pool(&db.pool).await;
        let queue = builder_on(db.pool.clone()).queue("q", Partitions::of(2));
        let handle = queue.leased(memory.handler()).start().await.unwrap();
        let (mut returned, mut refused) = (Vec::new(), 0);
        for n in 0..20_u32 {
            let messages: Vec<_> =
                (0..3).map(|m| EnqueueMessage::new(n.to_string()).partition(m % 2)).collect();
            match handle.outbox().enqueue_batch(&pool, "q", &messages).await {
                Ok(ids) => returned.extend(ids.into_iter().map(|id| id.0)),
                Err(error) => {
                    assert!(error.is_retryable(), "{error}");
                    refused += 3;
                }
            }
        }
        assert_eq!((returned.len(), refused), (30, 30), "every second one");
        let there = if fault == Fault::CutAfter { 60 } else { 30 };
        all_settled(&db.pool, there).await;
        handle.stop().await;
        let mut seen = memory.ids();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(
            (memory.all().len(), seen.len()),
            (usize::try_from(there).unwrap(), usize::try_from(there).unwrap())
        );
        assert!(returned.iter().all(|id| seen.binary_search(id).is_ok()), "what was returned is delivered");
        assert_eq!(count(&db.pool, "SELECT count(*) FROM posthaste_pending").await, 0);
        pool.close().await;
        db.remove().await;
    }
}
