//! `tail`.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStderr, ChildStdout},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::Partitions;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use crate::{
    ground::{AnyPool, Ground},
    handlers::Judge,
    snapshots::assert_shape,
};

on_every_database!(
    deliveries_are_shown_in_order_and_rejected_ones_are_marked,
    what_vacuum_removed_meanwhile_is_a_gap,
    the_last_ones_can_be_shown_at_first,
    it_ends_when_nobody_reads_it,
    it_outlives_its_connections,
);

/// A tail that has begun to follow.
struct Following {
    child: Child,
    out: BufReader<ChildStdout>,
    err: BufReader<ChildStderr>,
}

impl Following {
    fn start(ground: &Ground, arguments: &[&str]) -> Self {
        let mut child = ground.posthaste(&[&["tail", "orders"], arguments].concat()).start();
        let out = BufReader::new(child.stdout.take().unwrap());
        let err = BufReader::new(child.stderr.take().unwrap());
        let mut following = Self { child, out, err };
        assert_eq!(following.note(), "following orders: Ctrl-C ends it\n");
        following
    }

    fn note(&mut self) -> String {
        let mut line = String::new();
        self.err.read_line(&mut line).unwrap();
        line
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    fn json(&mut self) -> Value {
        let line = self.line();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    fn ends(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

fn cursor(ground: &Ground) -> Value {
    ground.posthaste(&["status", "orders", "--json"]).json()["queues"][0]["partitions"][0]["cursor_seq"]
        .clone()
}

async fn deliveries_are_shown_in_order_and_rejected_ones_are_marked(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(2), Judge::strict()).await;
    let mut json = Following::start(ground, &["--json"]);
    let mut text = Following::start(ground, &["--limit", "3"]);
    ground.enqueue_all("orders", ["{}", "bad\x07", "last"].map(str::to_owned).into_iter()).await;

    let shown = [(); 3].map(|()| json.json());
    assert_shape("tail", &shown[0]);
    assert_eq!(shown.each_ref().map(|message| &message["seq"]), [&json!(1), &json!(2), &json!(3)]);
    assert_eq!(
        shown.each_ref().map(|message| &message["payload"]),
        [&json!({}), &json!("bad\u{7}"), &json!("last")]
    );
    assert_eq!((&shown[0]["rejected"], &shown[2]["rejected"]), (&Value::Null, &Value::Null));
    assert_eq!(shown[1]["rejected"], "cannot read \u{1b}[2Jbad\u{7}");
    json.signal(Signal::SIGINT);
    assert_eq!(json.ends(), Some(0), "to have seen enough is no failure");

    assert!(text.line().starts_with("ENQUEUED   "));
    let lines = [(); 3].map(|()| text.line());
    assert!(lines[0].ends_with("  {}\n"), "{lines:?}");
    assert!(lines[1].ends_with("  bad\\u{7}  rejected: cannot read \\u{1b}[2Jbad\\u{7}\n"), "{lines:?}");
    assert_eq!(text.ends(), Some(0), "it ends after as many as were asked for");
    workers.stop().await;
}

async fn what_vacuum_removed_meanwhile_is_a_gap(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    let mut json = Following::start(ground, &["--json"]);
    let mut text = Following::start(ground, &[]);
    ground.enqueue("orders", 1).await;
    assert_eq!(json.json()["seq"], 1);
    assert!(text.line().starts_with("ENQUEUED") && text.line().ends_with("  0\n"));
    // While they look away, as somebody does who looks rarely.
    json.signal(Signal::SIGSTOP);
    text.signal(Signal::SIGSTOP);
    ground.enqueue("orders", 200).await;
    ground.eventually("all are delivered", || cursor(ground) == 201);
    workers.stop().await;
    ground.posthaste(&["vacuum"]).succeeds();
    assert_eq!(ground.count("posthaste_incoming").await, 0);
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    json.signal(Signal::SIGCONT);
    text.signal(Signal::SIGCONT);
    assert_eq!(json.json(), json!({ "gap": { "partition": 0, "from_seq": 2, "to_seq": 201 } }));
    assert_eq!(
        text.line(),
        "… 200 of partition 0 were delivered and removed before they could be shown (seq 2 to 201)\n"
    );
    ground.enqueue("orders", 1).await;
    assert_eq!(json.json()["seq"], 202);
    for following in [json, text] {
        following.signal(Signal::SIGTERM);
        assert_eq!(following.ends(), Some(0));
    }
    workers.stop().await;
}

async fn the_last_ones_can_be_shown_at_first(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    ground.enqueue("orders", 5).await;
    ground.eventually("all are delivered", || cursor(ground) == 5);
    workers.stop().await;
    // Some may be removed already: those are not missed.
    let kept = u64::try_from(ground.count("posthaste_incoming").await).unwrap();
    let mut following = Following::start(ground, &["--last", "1000", "--json", "--interval", "50ms"]);
    for n in 0..kept {
        assert_eq!(following.json()["seq"], 5 - kept + n + 1);
    }
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    ground.enqueue("orders", 1).await;
    assert_eq!(following.json()["seq"], 6);
    following.signal(Signal::SIGINT);
    assert_eq!(following.ends(), Some(0));
    workers.stop().await;
}

async fn it_ends_when_nobody_reads_it(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    let mut following = Following::start(ground, &["--json"]);
    ground.enqueue("orders", 1).await;
    assert_eq!(following.json()["seq"], 1);
    let Following { mut child, out, mut err } = following;
    drop(out);
    ground.enqueue("orders", 1).await;
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    std::io::Read::read_to_string(&mut err, &mut said).unwrap();
    assert_eq!(said, "", "it has nothing to complain about");
    workers.stop().await;
}

async fn it_outlives_its_connections(ground: &Ground) {
    let workers = ground.deliver("orders", Partitions::of(1), Judge::strict()).await;
    let mut following = Following::start(ground, &["--json"]);
    end_all_sessions(ground).await;
    ground.enqueue("orders", 1).await;
    assert_eq!(following.json()["seq"], 1);
    following.signal(Signal::SIGINT);
    assert_eq!(following.ends(), Some(0));
    workers.stop().await;
}

/// As a restart of the server does; SQLite has none.
async fn end_all_sessions(ground: &Ground) {
    match &ground.pool {
        AnyPool::Sqlite(_) => {}
        AnyPool::Postgres(pool) => {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                       WHERE datname = current_database() AND pid <> pg_backend_pid()";
            let ended: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.unwrap();
            assert!(ended > 0);
        }
        AnyPool::MySql(pool) => {
            // On MySQL, information_schema.processlist cannot be read while anybody's statement has bytes that are no text.
            let sql = "SELECT CAST(processlist_id AS SIGNED) FROM performance_schema.threads \
                       WHERE processlist_db = DATABASE() AND processlist_id <> CONNECTION_ID()";
            let mut conn = pool.acquire().await.unwrap();
            let sessions: Vec<i64> = sqlx::query_scalar(sql).fetch_all(&mut *conn).await.unwrap();
            assert!(!sessions.is_empty());
            for session in sessions {
                // It may have ended by itself.
                sqlx::raw_sql(AssertSqlSafe(format!("KILL {session}"))).execute(&mut *conn).await.ok();
            }
        }
    }
}
