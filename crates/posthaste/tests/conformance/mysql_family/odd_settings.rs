//! Servers and sessions that are set to what nobody expects.

use std::{
    process::Command,
    time::{Duration, SystemTime},
};

use posthaste::{
    DeadLetterFilter, DeadLetterScope, DeadLetterStatus, EnqueueMessage, LeaseConfig, Outbox, OutboxMessage,
    Partitions,
};
use sqlx::{Connection, MySql, MySqlConnection, MySqlPool, mysql::MySqlPoolOptions};

use super::{Family, on_both};
use crate::{
    dialect::Dialect,
    effects::{all_settled, dead_letters},
    fresh::Fresh,
    modes::make_effects,
    stage::{
        Memory, Step, assert_consistent, builder, builder_on, count, eventually, fresh, millis,
        quick_retries, secs, show_logs,
    },
};

on_both! {
    []:
        an_enqueue_works_in_whatever_session_the_caller_has,
        operators_work_in_whatever_session_they_have,
        operators_work_where_no_session_commits_by_itself,
        operators_at_once_get_everything_where_sessions_are_serializable (flavor = "multi_thread", worker_threads = 2),
        a_server_with_odd_settings_is_good_enough (flavor = "multi_thread");
}

const KEY: &str = "clé \u{1f511} ключ";

fn message(n: u32) -> EnqueueMessage<'static> {
    EnqueueMessage::new(n.to_string()).key(KEY).header("smile \u{1f600}", KEY).payload_type("t'\"\\")
}

fn assert_whole(message: &OutboxMessage, what: &str) {
    assert_eq!(message.key.as_deref(), Some(KEY), "{what}");
    assert_eq!(message.headers[..], [("smile \u{1f600}".to_owned(), KEY.to_owned())], "{what}");
    assert_eq!(message.payload_type, "t'\"\\", "{what}");
    let age = SystemTime::now().duration_since(message.created_at).unwrap_or_else(|ahead| ahead.duration());
    assert!(age < secs(60), "{what}: {age:?} old");
}

const SESSIONS: [&str; 14] = [
    "SET SESSION sql_mode = 'ANSI_QUOTES'",
    "SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,HIGH_NOT_PRECEDENCE'",
    "SET SESSION sql_mode = ''",
    "SET SESSION sql_mode = 'TRADITIONAL,ONLY_FULL_GROUP_BY'",
    "SET SESSION sql_safe_updates = 1",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    "SET NAMES latin1",
    "SET NAMES cp1251",
    "SET SESSION time_zone = '+05:30'",
    "SET SESSION auto_increment_increment = 7, auto_increment_offset = 3",
    "SET SESSION sql_select_limit = 1",
    "SET SESSION sql_warnings = 1, sql_notes = 0, unique_checks = 0, foreign_key_checks = 0",
    "USE information_schema",
];

/// In which a bracket is a letter: MySQL says so of its lists, and MariaDB takes messages all the same.
const BRACKETS_ARE_LETTERS: &str =
    "SET /*M!100000 character_set_client = swe7, character_set_connection = swe7, */ SESSION sql_notes = 1";

async fn an_enqueue_works_in_whatever_session_the_caller_has<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(memory.handler()).start().await.unwrap();
    let outbox = handle.outbox();
    let mut given = Vec::new();
    for session in SESSIONS.into_iter().chain([BRACKETS_ARE_LETTERS]) {
        let mut conn = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
        MySql::run(&mut conn, session).await.unwrap();
        given.push(outbox.enqueue(&mut conn, "q", message(1)).await.unwrap());
        let batch: Vec<_> = (0..5).map(message).collect();
        given.extend(outbox.enqueue_batch(&mut conn, "q", &batch).await.unwrap());
        let mut tx = conn.begin().await.unwrap();
        given.extend(outbox.enqueue_batch(&mut tx, "q", &batch).await.unwrap());
        given.push(outbox.enqueue(&mut tx, "q", message(7)).await.unwrap());
        tx.commit().await.unwrap();
        memory.has(given.len()).await;
        for seen in memory.all().iter().skip(given.len() - 12) {
            assert_whole(&seen.message, session);
        }
        conn.close().await.unwrap();
    }
    handle.stop().await;
    let mut ids: Vec<_> = given.into_iter().map(|id| id.0).collect();
    assert!(ids.is_sorted(), "in the order in which they were enqueued");
    let mut seen = memory.ids();
    seen.sort_unstable();
    ids.sort_unstable();
    assert_eq!(seen, ids, "under the ids that were returned");
    db.remove().await;
}

/// A pool whose sessions are set so.
async fn pool_with<S: Family>(db: &Fresh<S>, session: &'static str) -> MySqlPool {
    let pool = MySqlPoolOptions::new().max_connections(6).after_connect(move |conn, _| {
        Box::pin(async move { sqlx::raw_sql(session).execute(conn).await.map(drop) })
    });
    pool.connect_with((*db.pool.connect_options()).clone()).await.unwrap()
}

/// Whoever looks there begins a transaction, and sees what was true then for as long as it is open.
async fn operators_work_where_no_session_commits_by_itself<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let reject = memory.scripted(|_, _| Step::Reject("no".to_owned()));
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(reject).start().await.unwrap();
    let outbox = handle.outbox();
    let pool = pool_with(&db, "SET SESSION autocommit = 0").await;
    for n in 1..=3 {
        outbox.enqueue(&db.pool, "q", message(n)).await.unwrap();
        eventually("it is seen", async || {
            let filter = DeadLetterFilter::default();
            let counted = outbox.dead_letter_count(&pool, &filter).await.unwrap();
            counted == u64::from(n)
                && outbox.dead_letter_list(&pool, &filter).await.unwrap().len() == n as usize
        })
        .await;
    }
    assert_eq!(outbox.dead_letter_discard(&pool, &DeadLetterScope::default()).await.unwrap(), 3);
    assert_eq!(outbox.dead_letter_cleanup(&db.pool, &DeadLetterScope::default()).await.unwrap(), 3);
    handle.stop().await;
    db.remove().await;
}

async fn operators_at_once_get_everything_where_sessions_are_serializable<S: Family>() {
    const LETTERS: usize = 100;
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let reject = memory.scripted(|_, _| Step::Reject("no".to_owned()));
    let handle = builder(&db).queue("q", Partitions::of(1)).leased(reject).start().await.unwrap();
    let outbox = handle.outbox();
    outbox.enqueue_batch(&db.pool, "q", &vec![EnqueueMessage::new("x"); LETTERS]).await.unwrap();
    eventually("they are buried", async || {
        outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap() == 100
    })
    .await;
    let pool = pool_with(&db, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE").await;
    let operators = (0..5).map(|_| {
        let (outbox, pool) = (outbox.clone(), pool.clone());
        tokio::spawn(async move {
            let mut mine = 0;
            let scope = DeadLetterScope::default().limit(3);
            loop {
                let claimed = outbox.dead_letter_replay(&pool, &scope, secs(60)).await.unwrap();
                mine += claimed.len();
                let pending = DeadLetterFilter::default().status(DeadLetterStatus::Pending);
                if claimed.is_empty() && outbox.dead_letter_count(&pool, &pending).await.unwrap() == 0 {
                    return mine;
                }
            }
        })
    });
    let mut all = 0;
    for operator in operators.collect::<Vec<_>>() {
        all += operator.await.unwrap();
    }
    assert_eq!(all, LETTERS);
    handle.stop().await;
    db.remove().await;
}

/// A server of this test's own.
struct OddServer {
    xtask: std::ffi::OsString,
    folder: tempfile::TempDir,
}

impl OddServer {
    fn start(kind: &str, settings: &str) -> (Self, String) {
        let xtask =
            std::env::var_os("POSTHASTE_XTASK").expect("POSTHASTE_XTASK is not set: run `cargo xtask test`");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir().expect("a folder");
        let server = Self { xtask, folder };
        let output = server
            .command("up")
            .args(["--db", kind])
            .env("POSTHASTE_MYSQL_SETTINGS", settings)
            .env_remove("POSTHASTE_TEST_MARIADB_URL")
            .env_remove("POSTHASTE_TEST_MYSQL_URL")
            .output()
            .expect("xtask runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("text");
        (server, text.split('\'').nth(1).expect("an URL in quotes").to_owned())
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.xtask);
        command.args(["servers", verb]).env("TMPDIR", self.folder.path());
        command
    }
}

impl Drop for OddServer {
    fn drop(&mut self) {
        self.command("down").output().ok();
    }
}

const SETTINGS: &str = "--innodb-autoinc-lock-mode=0 --auto-increment-increment=7 --auto-increment-offset=3
    --character-set-server=latin1 --collation-server=latin1_swedish_ci --default-time-zone=+05:30 --sql-mode=
    --transaction-isolation=SERIALIZABLE --innodb-rollback-on-timeout=ON --autocommit=0 --log-bin=odd --server-id=1";

async fn operators_work_in_whatever_session_they_have<S: Family>() {
    let (db, memory) = (fresh::<S>().await, Memory::new());
    let reject = memory.scripted(|_, _| Step::Reject(KEY.to_owned()));
    let handle = builder(&db).queue("q", Partitions::of(4)).leased(reject).start().await.unwrap();
    let outbox = handle.outbox();
    let messages: Vec<_> = (0..3).map(message).collect();
    outbox.enqueue_batch(&db.pool, "q", &messages).await.unwrap();
    for (place, session) in SESSIONS.into_iter().enumerate() {
        let everything = DeadLetterScope::default().key(KEY).reason_contains("ключ").queue("q");
        let filter = DeadLetterFilter::from(everything.clone());
        eventually("they are buried", async || {
            let pending = filter.clone().status(DeadLetterStatus::Pending);
            outbox.dead_letter_count(&db.pool, &pending).await.unwrap() == 3
        })
        .await;
        let mut conn = MySqlConnection::connect_with(&db.pool.connect_options()).await.unwrap();
        MySql::run(&mut conn, session).await.unwrap();
        let claims = outbox.dead_letter_replay(&mut conn, &everything, secs(60)).await.unwrap();
        assert_eq!(claims.len(), 3, "{session}");
        let again = format!("{KEY} {place}");
        outbox.dead_letter_reject(&mut conn, &claims, &again).await.unwrap();
        let letters = outbox.dead_letter_list(&mut conn, &filter).await.unwrap();
        assert_eq!(letters.len(), 3, "{session}");
        for letter in &letters {
            assert_eq!((letter.key.as_deref(), &letter.reason), (Some(KEY), &again), "{session}");
            assert_eq!(letter.headers[..], [("smile \u{1f600}".to_owned(), KEY.to_owned())], "{session}");
        }
        assert_eq!(outbox.dead_letter_redeliver(&mut conn, &everything).await.unwrap().len(), 3, "{session}");
        assert_eq!(outbox.dead_letter_cleanup(&mut conn, &everything).await.unwrap(), 3, "{session}");
        conn.close().await.unwrap();
    }
    eventually("the last ones are buried", async || {
        outbox.dead_letter_count(&db.pool, &DeadLetterFilter::default()).await.unwrap() == 3
    })
    .await;
    handle.stop().await;
    db.remove().await;
}

/// Ids that are far apart, other characters and times, no strictness, a lock for each id, every read a lock, nothing committed
/// by itself, and a log of all that is written.
async fn a_server_with_odd_settings_is_good_enough<S: Family>() {
    show_logs();
    // MariaDB lets no server say that of all sessions.
    let settings =
        if S::NAME == "mysql" { SETTINGS.to_owned() } else { SETTINGS.replace("--sql-safe-updates=1", "") };
    let (server, url) = OddServer::start(S::NAME, &settings);
    // sqlx sets these to something sensible unless told not to.
    let options = MySql::options(&url).timezone(None).pipes_as_concat(false).no_engine_substitution(false);
    let odd = MySqlPool::connect_with(options.clone()).await.unwrap();
    // The test itself looks on in peace.
    let sane = MySqlPoolOptions::new().after_connect(|conn, _| {
        let session = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET autocommit = 1, sql_safe_updates = 0";
        Box::pin(async move { MySql::run(conn, session).await })
    });
    let sane = sane.connect_with(options).await.unwrap();
    let oddities = "SELECT concat_ws(' ', @@innodb_autoinc_lock_mode, @@auto_increment_increment, @@character_set_server,
                                     @@time_zone, @@global.sql_mode, @@autocommit = 0)";
    let found = MySql::texts(&mut *odd.acquire().await.unwrap(), oddities).await.unwrap();
    assert_eq!(found, [Some("0 7 latin1 +05:30  1".to_owned())]);
    make_effects(&sane).await;
    let (leased, transactional) = (Memory::new(), Memory::new());
    let script = |_: usize, message: &OutboxMessage| {
        if message.payload == b"4" { Step::Reject(format!("no: {KEY}")) } else { Step::AckAfter(millis(1)) }
    };
    let lease = LeaseConfig { duration: secs(20), headroom: secs(2) };
    let handle = builder_on(odd.clone())
        .processor_tuning(quick_retries())
        .queue("leased", Partitions::of(4))
        .leased(leased.scripted(script))
        .lease(lease)
        .queue("transactional", Partitions::of(4))
        .transactional(transactional.scripted(script))
        .lease(lease)
        .start()
        .await
        .unwrap();
    let outbox = handle.outbox();
    let watcher = tokio::spawn({
        let pool = sane.clone();
        async move {
            let sql = "SELECT min(lease_until) - CAST(unix_timestamp(now(6)) * 1000000 AS SIGNED) FROM posthaste_cursor
                       WHERE lease_until IS NOT NULL AND epoch > 0";
            loop {
                let left: Option<i64> = sqlx::query_scalar(sql).fetch_one(&pool).await.unwrap();
                if let Some(left) = left {
                    return Duration::from_micros(left.try_into().expect("it ends in the future"));
                }
                tokio::time::sleep(millis(1)).await;
            }
        }
    });
    let producers: Vec<_> = (0..4)
        .map(|_| {
            let (outbox, odd) = (outbox.clone(), odd.clone());
            tokio::spawn(async move {
                let mut ids = Vec::new();
                for queue in ["leased", "transactional"].repeat(3) {
                    let batch: Vec<_> = (0..5).map(message).collect();
                    ids.extend(outbox.enqueue_batch(&odd, queue, &batch).await.unwrap());
                    ids.push(outbox.enqueue(&odd, queue, message(9)).await.unwrap());
                    let mut tx = odd.begin().await.unwrap();
                    ids.extend(outbox.enqueue_batch(&mut tx, queue, &batch).await.unwrap());
                    tx.commit().await.unwrap();
                    let mut tx = odd.begin().await.unwrap();
                    outbox.enqueue_batch(&mut tx, queue, &batch).await.unwrap();
                    tx.rollback().await.unwrap();
                    // A plain connection: here it does not commit by itself.
                    let mut conn = odd.acquire().await.unwrap();
                    ids.extend(outbox.enqueue_batch(&mut conn, queue, &batch).await.unwrap());
                    MySql::run(&mut conn, "COMMIT").await.unwrap();
                }
                ids
            })
        })
        .collect();
    let mut ids = Vec::new();
    for producer in producers {
        ids.extend(producer.await.unwrap().into_iter().map(|id| id.0));
    }
    assert!(ids.iter().all(|id| id % 7 == 3), "ids are as far apart as the server says");
    all_settled(&sane, i64::try_from(ids.len()).unwrap()).await;
    let left = watcher.await.unwrap();
    assert!(left > secs(10) && left <= secs(21), "a lease of 20 s ends in {left:?}");
    eventually("all is removed", async || count(&sane, "SELECT count(*) FROM posthaste_incoming").await == 0)
        .await;
    handle.stop().await;
    let mut seen = [leased.ids(), transactional.ids()].concat();
    seen.sort_unstable();
    ids.sort_unstable();
    assert_eq!(seen, ids, "each once");
    for seen in leased.all().iter().chain(&transactional.all()) {
        assert_whole(&seen.message, "on an odd server");
    }
    let dead = dead_letters(&sane).await;
    assert_eq!(dead.len(), 4 * 6 * 3);
    assert!(dead.iter().all(|dead| dead.reason == format!("no: {KEY}")), "{dead:?}");
    for what in ["count(*)", "count(DISTINCT id)"] {
        let effects = count(&sane, &format!("SELECT {what} FROM effects")).await;
        assert_eq!(effects, 4 * 3 * (16 - 3), "{what}: one effect each");
    }
    assert_consistent(&sane).await;
    // A second start finds what the first has made.
    let again = Outbox::connect(odd.clone()).await.unwrap();
    again.enqueue(&odd, "leased", message(1)).await.unwrap();
    assert_eq!(count(&sane, "SELECT count(*) FROM posthaste_pending").await, 1);
    odd.close().await;
    sane.close().await;
    drop(server);
}
