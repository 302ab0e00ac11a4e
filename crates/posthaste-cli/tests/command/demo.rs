//! `demo`: the shop, its verdict, and what it leaves behind, which is nothing.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::Child,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    ground::{AnyPool, Ground, Server, eventually},
    posthaste::{Posthaste, Ran},
    screen::OnScreen,
    snapshots::assert_shape,
};

on_every_database!(
    empty:
    a_shop_is_judged_and_leaves_nothing,
    a_worker_that_is_killed_costs_nothing,
    what_does_not_fit_the_books_is_found,
);

/// The demo on a database that is named; its folder for temporary files is in the ground's.
fn demo(ground: &Ground, arguments: &[&str]) -> Posthaste {
    let arguments = [&["demo", "--database-url", &*ground.url], arguments].concat();
    Posthaste::new(&arguments).env("TMPDIR", &temporary(ground).display().to_string())
}

/// The demo on a file of its own, whatever the environment says.
fn own_demo(ground: &Ground, arguments: &[&str]) -> Posthaste {
    let arguments = [&["demo"], arguments].concat();
    let posthaste =
        Posthaste::new(&arguments).env("DATABASE_URL", "postgres://scott:tiger@nowhere.invalid/shop");
    posthaste.env("TMPDIR", &temporary(ground).display().to_string())
}

fn temporary(ground: &Ground) -> PathBuf {
    let folder = ground.folder.path().join("temporary");
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

fn assert_nothing_is_left(ground: &Ground) {
    let left: Vec<_> = temporary(ground).read_dir().expect("a folder").collect();
    assert!(left.is_empty(), "{left:?}");
}

async fn a_shop_is_judged_and_leaves_nothing(ground: &Ground) {
    // So many that some are rolled back and some declined, however long they take.
    let verdict = demo(ground, &["--messages", "80", "--json"]).json();
    assert_shape("demo", &verdict);
    assert_eq!(verdict["ok"], true, "{verdict}");
    let number = |field: &str| verdict[field].as_f64().expect("a number");
    for field in ["committed", "rolled_back", "delivered", "dead_letters", "per_s", "p50_ms", "p99_ms"] {
        assert!(number(field) > 0.0, "{field}: {verdict}");
    }
    for field in ["lost", "phantom", "out_of_order", "duplicates", "kills"] {
        assert_eq!(number(field), 0.0, "{field}: {verdict}");
    }
    assert_eq!(number("delivered") + number("dead_letters"), number("committed"), "{verdict}");
    assert_eq!(ground.tables().await, Vec::<String>::new());
    assert_nothing_is_left(ground);
}

async fn a_worker_that_is_killed_costs_nothing(ground: &Ground) {
    // It would say so if the second process had delivered nothing; whoever asks for JSON asks for silence besides. One that
    // delivers nothing is killed after three seconds, and the last one at the end.
    let verdict = demo(ground, &["--seconds", "4", "--kill", "--json"]).json();
    assert_eq!(verdict["ok"], true, "{verdict}");
    assert!(verdict["kills"].as_u64().expect("a number") >= 2, "{verdict}");
    assert_eq!(ground.tables().await, Vec::<String>::new());
    assert_nothing_is_left(ground);
}

async fn what_does_not_fit_the_books_is_found(ground: &Ground) {
    let running = demo(ground, &["--seconds", "5", "--json"]).start();
    let prefix = prefix(ground).await;
    // An order that nobody announced, and one that was announced and is not there.
    ground.sql(&format!("INSERT INTO {prefix}orders VALUES (1, 999999, 0)")).await;
    let delivered = |prefix: &str| format!("{prefix}orders WHERE card_is_declined = 0 AND number < 999999");
    let mut found = None;
    eventually("an order is committed", async || {
        found = first(ground, &delivered(&prefix)).await;
        found.is_some()
    })
    .await;
    let (customer, number) = found.unwrap();
    ground
        .sql(&format!("DELETE FROM {prefix}orders WHERE customer = {customer} AND number = {number}"))
        .await;
    let ran = ended(running);
    assert_eq!((ran.code, &*ran.err), (1, ""), "{ran:?}");
    let verdict: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(
        [&verdict["ok"], &verdict["lost"], &verdict["phantom"], &verdict["out_of_order"]],
        [&serde_json::json!(false), &2.into(), &1.into(), &0.into()],
        "{verdict}"
    );
    assert_eq!(ground.tables().await, Vec::<String>::new());
}

/// As a standby does that takes over before it has heard of everything.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_database_forgets_when_it_was_committed_is_lost_on_postgres() {
    let ground = Ground::empty(Server::Postgres).await;
    let running = demo(&ground, &["--seconds", "600", "--json"]).start();
    let prefix = prefix(&ground).await;
    let sql = format!(
        "CREATE TABLE forgotten (number bigint);
         CREATE FUNCTION forget() RETURNS trigger LANGUAGE plpgsql AS $$
         BEGIN
             DELETE FROM {prefix}orders WHERE customer = NEW.customer AND number = NEW.number;
             DELETE FROM {prefix}incoming WHERE xmin = pg_current_xact_id()::xid;
             INSERT INTO forgotten VALUES (NEW.number);
             RETURN NULL;
         END $$;
         CREATE CONSTRAINT TRIGGER forget AFTER INSERT ON {prefix}orders DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW WHEN (NEW.number % 2 = 0) EXECUTE FUNCTION forget()"
    );
    ground.sql(&sql).await;
    eventually("something is forgotten", async || ground.count("forgotten").await > 0).await;
    signal(&running, Signal::SIGINT);
    let ran = ended(running);
    let verdict: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let lost = ground.count("forgotten").await;
    assert_eq!(
        (ran.code, &verdict["ok"], &verdict["lost"], &verdict["phantom"]),
        (1, &false.into(), &lost.into(), &0.into()),
        "{verdict}"
    );
    ground.remove().await;
}

/// The first order in a table with a condition: its customer and its number.
async fn first(ground: &Ground, table: &str) -> Option<(i32, i64)> {
    let sql = format!("SELECT customer, number FROM {table} ORDER BY customer, number LIMIT 1");
    let sql = sqlx::AssertSqlSafe(sql);
    on!(&ground.pool, pool => sqlx::query_as(sql).fetch_optional(pool).await.expect("an answer"))
}

/// A server that is reached through this can be made to go away.
struct Proxy {
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    async fn to(server: String) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("a port").port();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut inner, _)) = listener.accept().await {
                let server = server.clone();
                connections.spawn(async move {
                    let mut outer = tokio::net::TcpStream::connect(server).await.expect("the server");
                    tokio::io::copy_bidirectional(&mut inner, &mut outer).await.ok();
                });
            }
        });
        Self { port, task }
    }
}

/// Tests for those databases that are servers.
mod going_away {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        a_server_that_goes_away_ends_it_with_a_sentence(Server::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mariadb() {
        a_server_that_goes_away_ends_it_with_a_sentence(Server::Mariadb).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mysql() {
        a_server_that_goes_away_ends_it_with_a_sentence(Server::Mysql).await;
    }
}

async fn a_server_that_goes_away_ends_it_with_a_sentence(server: Server) {
    let ground = Ground::empty(server).await;
    let (user, rest) = ground.url.split_once('@').expect("a URL with a user");
    let (address, database) = rest.split_once('/').expect("a URL with a database");
    let proxy = Proxy::to(address.to_owned()).await;
    let url = format!("{user}@127.0.0.1:{}/{database}", proxy.port);
    let arguments = ["demo", "--database-url", &url, "--connect-timeout", "3s"];
    let mut child =
        Posthaste::new(&arguments).env("TMPDIR", &temporary(&ground).display().to_string()).start();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("a line");
    proxy.task.abort();
    out.read_to_string(&mut String::new()).expect("its end");
    let ran = ended(child);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.starts_with("posthaste: the database is out of reach: "), "{ran:?}");
    assert!(
        ran.err.contains("; the tables demo_")
            && ran.err.contains("* could not be removed from the ")
            && ran.err.trim_end().ends_with(" removes them"),
        "{ran:?}"
    );
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    assert_nothing_is_left(&ground);
    ground.remove().await;
}

/// The prefix of the tables of a demo that runs.
async fn prefix(ground: &Ground) -> String {
    let mut prefix = None;
    eventually("the shop's table is there", async || {
        let tables = ground.tables().await;
        // The outbox's tables are there when its last one is.
        let is_whole = tables.iter().any(|table| table.ends_with("dead_letter"));
        prefix = tables.iter().find_map(|table| table.strip_suffix("orders").map(str::to_owned));
        is_whole && prefix.is_some()
    })
    .await;
    let prefix = prefix.expect("it was found");
    let queues = format!("{prefix}queue");
    eventually("its queue is registered", async || ground.count(&queues).await > 0).await;
    prefix
}

/// Waits for its end.
fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran {
        code: output.status.code().expect("it was not killed"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it is there");
}

async fn sqlite() -> Ground {
    Ground::empty(Server::Sqlite).await
}

#[tokio::test]
async fn without_a_terminal_it_says_a_line_a_second() {
    let ground = sqlite().await;
    let out = own_demo(&ground, &["--seconds", "2"]).succeeds();
    let lines: Vec<_> = out.lines().collect();
    // A look may take longer than a second, and then its line is left out; never is there more than one.
    let seconds = lines.iter().map_while(|line| {
        let (second, rest) = line.trim_start().split_once("s  ")?;
        assert!(rest.contains(" enqueued, ") && rest.contains("dead letters"), "{out}");
        second.parse::<u32>().ok()
    });
    let seconds: Vec<_> = seconds.collect();
    assert!(!seconds.is_empty() && seconds.is_sorted_by(|one, next| one < next), "{out}");
    assert!(out.contains("\n✓ ") && !out.contains('✗') && !out.contains('\x1b'), "{out}");
    assert!(out.contains(" 0 lost, 0 out of order, 0 duplicates\n"), "{out}");
    assert_eq!(lines.last(), Some(&"  the books are in order"), "{out}");
    assert_nothing_is_left(&ground);
}

#[tokio::test]
async fn one_order_is_enough_and_more_than_can_be_done_is_tried() {
    let ground = sqlite().await;
    let verdict = own_demo(&ground, &["--messages", "1", "--rate", "1", "--json"]).json();
    assert_eq!((&verdict["ok"], &verdict["committed"]), (&true.into(), &1.into()), "{verdict}");
    let verdict = own_demo(&ground, &["--messages", "500", "--rate", "100000", "--json"]).json();
    let placed = verdict["committed"].as_u64().unwrap() + verdict["rolled_back"].as_u64().unwrap();
    assert_eq!((&verdict["ok"], placed), (&true.into(), 500), "{verdict}");
    let words = own_demo(&ground, &["--seconds", "1", "--rate", "100000"]).succeeds();
    assert!(words.contains("the 100000 asked for are more than can be done here"), "{words}");
}

#[tokio::test]
async fn what_is_kept_can_be_looked_at() {
    let ground = sqlite().await;
    let out = own_demo(&ground, &["--messages", "40", "--keep"]).succeeds();
    let commands: Vec<_> = out.lines().filter_map(|line| line.trim().strip_prefix("posthaste ")).collect();
    assert_eq!(commands.len(), 2, "{out}");
    let status: Vec<_> = commands[0].split(' ').chain(["--json"]).collect();
    let status = Posthaste::new(&status).json();
    assert!(status.to_string().contains("orders"), "{status}");
    let queues: Vec<_> = ["queues", "--json"].into_iter().chain(commands[0].split(' ').skip(1)).collect();
    let queues = Posthaste::new(&queues).json();
    let queue = &queues["queues"][0];
    // One of forty orders has a card that is declined.
    assert_eq!([&queue["partitions"], &queue["depth"], &queue["dead_letters"]], [8, 0, 1], "{queues}");
    let letters = Posthaste::new(&commands[1].split(' ').collect::<Vec<_>>()).succeeds();
    assert!(letters.contains("card declined"), "{letters}");

    let out = demo(&ground, &["--messages", "1", "--keep"]).succeeds();
    assert!(out.contains(&format!("--table-prefix {}", prefix(&ground).await)), "{out}");
    assert!(!out.contains("--database-url sqlite"), "{out}");
}

#[tokio::test]
async fn a_file_that_it_made_is_removed_and_one_that_was_there_is_not() {
    let ground = sqlite().await;
    let file = ground.folder.path().join("made.db");
    let url = format!("sqlite:{}", file.display());
    let run = |more: &[&str]| {
        let arguments = [&["demo", "--database-url", &*url, "--messages", "5", "--json"], more].concat();
        Posthaste::new(&arguments).env("TMPDIR", &temporary(&ground).display().to_string()).run()
    };
    let of_it = || {
        let names = ground.folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("made.db")).collect::<Vec<_>>()
    };
    assert_eq!(run(&[]).code, 0);
    assert!(of_it().is_empty(), "{:?}", of_it());
    assert_eq!(run(&["--keep"]).code, 0);
    assert_eq!(of_it(), ["made.db"]);
    assert_eq!(run(&[]).code, 0);
    assert_eq!(of_it(), ["made.db"]);
}

/// Where there are schemas.
mod schemas {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn postgres() {
        tables_are_made_where_the_options_say(Server::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mariadb() {
        tables_are_made_where_the_options_say(Server::Mariadb).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn mysql() {
        tables_are_made_where_the_options_say(Server::Mysql).await;
    }
}

async fn tables_are_made_where_the_options_say(server: Server) {
    let ground = Ground::empty(server).await;
    // A word of SQL has to be quoted.
    let schema = match server {
        Server::Postgres => "order".to_owned(),
        _ => {
            let name = format!("demo_{}", std::process::id());
            ground.sql(&format!("DROP DATABASE IF EXISTS {name}")).await;
            name
        }
    };
    let sentence =
        demo(&ground, &["--schema", &schema]).fails(if server == Server::Postgres { 1 } else { 3 });
    assert!(sentence.contains(&schema), "{sentence}");
    let quote = if server == Server::Postgres { '"' } else { '`' };
    ground.sql(&format!("CREATE SCHEMA {quote}{schema}{quote}")).await;
    let options = ["--schema", &schema, "--messages", "30", "--kill", "--json"];
    let ran = demo(&ground, &[&options[..], &["--keep"]].concat()).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ground.tables().await, Vec::<String>::new(), "they are elsewhere");
    let command = ran.err.lines().find_map(|line| line.trim().strip_prefix("posthaste status ")).unwrap();
    let status: Vec<_> = ["status"].into_iter().chain(command.split(' ')).collect();
    ground.posthaste(&status).succeeds();
    ground
        .sql(&format!("DROP SCHEMA {quote}{schema}{quote}{}", if quote == '"' { " CASCADE" } else { "" }))
        .await;
    ground.remove().await;
}

#[tokio::test]
async fn ctrl_c_is_heard_while_the_rest_is_delivered() {
    let ground = sqlite().await;
    let mut child = demo(&ground, &["--seconds", "5"]).start();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    let prefix = prefix(&ground).await;
    // Nothing is delivered any more, so that the rest never is.
    ground.posthaste(&["pause", "orders", "--table-prefix", &prefix]).succeeds();
    // By then no more orders are placed. A line may be left out.
    let second = |line: &str| line.trim_start().split_once("s  ")?.0.parse::<u32>().ok();
    out.by_ref().find(|line| second(line.as_ref().unwrap()) >= Some(7)).unwrap().unwrap();
    signal(&child, Signal::SIGINT);
    out.by_ref().find(|line| line.as_ref().unwrap().starts_with("interrupted: ")).unwrap().unwrap();
    signal(&child, Signal::SIGINT);
    assert_eq!(ended(child).code, 130);
}

#[tokio::test]
async fn ctrl_c_ends_it_early_with_a_verdict() {
    for asked in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let ground = sqlite().await;
        let mut child = demo(&ground, &["--seconds", "600"]).start();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut String::new()).unwrap();
        signal(&child, asked);
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        let ran = ended(child);
        assert_eq!((ran.code, &*ran.err), (0, ""), "{asked}: {ran:?} {rest}");
        let words = "interrupted: no more orders were placed, and the rest was delivered\n✓ ";
        assert!(rest.contains(words) && rest.ends_with("  the books are in order\n"), "{asked}: {rest}");
        assert_eq!(ground.tables().await, Vec::<String>::new());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_is_heard_before_the_first_table_is_made_on_postgres() {
    let ground = Ground::empty(Server::Postgres).await;
    let AnyPool::Postgres(pool) = &ground.pool else { unreachable!() };
    // Nobody can make a table meanwhile.
    let mut lock = pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE pg_class IN EXCLUSIVE MODE").execute(&mut *lock).await.unwrap();
    let child = demo(&ground, &[]).start();
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                 AND wait_event_type = 'Lock' AND query LIKE 'CREATE TABLE%')";
    eventually("it waits", async || sqlx::query_scalar(waits).fetch_one(pool).await.unwrap()).await;
    signal(&child, Signal::SIGINT);
    let ran = ended(child);
    assert_eq!((ran.code, &*ran.out), (130, ""), "{ran:?}");
    lock.rollback().await.unwrap();
    let (_, removal) = ran.err.lines().next().unwrap().split_once(": DROP ").unwrap();
    ground.sql(&format!("DROP {}", removal.strip_suffix(" removes it").unwrap())).await;
    assert_nothing_is_left(&ground);
    ground.remove().await;
}

#[tokio::test]
async fn ctrl_c_twice_ends_it_at_once() {
    let ground = sqlite().await;
    let mut child = demo(&ground, &["--seconds", "600"]).start();
    let mut out = BufReader::new(child.stdout.take().unwrap()).lines();
    out.next().unwrap().unwrap();
    // Nothing is delivered any more, so that the rest never is.
    let prefix = prefix(&ground).await;
    ground.posthaste(&["pause", "orders", "--table-prefix", &prefix]).succeeds();
    out.next().unwrap().unwrap();
    signal(&child, Signal::SIGINT);
    out.by_ref().find(|line| line.as_ref().unwrap().starts_with("interrupted: ")).unwrap().unwrap();
    signal(&child, Signal::SIGINT);
    let ran = ended(child);
    assert_eq!(ran.code, 130, "{ran:?}");
    let remains = format!("the tables {prefix}* remain in the SQLite file ");
    assert!(
        ran.err.starts_with(&remains) && ran.err.ends_with("interrupted before it was done\n"),
        "{ran:?}"
    );
    let (_, removal) = ran.err.lines().next().unwrap().split_once("test.db: ").unwrap();
    ground.sql(removal.strip_suffix(" removes them").unwrap()).await;
    assert_eq!(ground.tables().await, Vec::<String>::new(), "what is advised helps");
    assert_nothing_is_left(&ground);
}

#[tokio::test]
async fn a_reader_who_has_seen_enough_ends_it_quietly_with_the_verdicts_code() {
    for (tampered, code) in [(false, 0), (true, 1)] {
        let ground = sqlite().await;
        let mut child = demo(&ground, &["--seconds", "600"]).start();
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut first).unwrap();
        if tampered {
            let prefix = prefix(&ground).await;
            ground.sql(&format!("INSERT INTO {prefix}orders VALUES (1, 999999, 0)")).await;
        }
        drop(out);
        let ran = ended(child);
        assert_eq!((ran.code, &*ran.err), (code, ""), "{ran:?}");
        assert_eq!(ground.tables().await, Vec::<String>::new());
        assert_nothing_is_left(&ground);
    }
}

#[tokio::test]
async fn the_second_process_ends_with_the_first_and_shows_no_secret() {
    let ground = sqlite().await;
    let mut child = demo(&ground, &["--seconds", "600", "--rate", "1", "--kill"]).start();
    // To the end: a demo that nobody reads would end by itself.
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let mut second = None;
    eventually("there is a second process", async || {
        second = worker_of(child.id());
        second.is_some()
    })
    .await;
    let (_, arguments) = second.unwrap();
    assert!(!arguments.contains("sqlite"), "{arguments}");
    // While it is stopped, the first one cannot kill the second; so it ends by itself, if it does. Where it is stopped between
    // the end of one and the start of the next, that is tried again.
    let mut second = None;
    eventually("the first process is stopped and has a second", async || {
        signal(&child, Signal::SIGSTOP);
        eventually("the first process stands still", async || state(child.id()) == Some('T')).await;
        second = worker_of(child.id());
        if second.is_none() {
            signal(&child, Signal::SIGCONT);
        }
        second.is_some()
    })
    .await;
    let (process, _) = second.unwrap();
    signal(&child, Signal::SIGKILL);
    child.wait().unwrap();
    eventually("the second process is gone", async || !is_alive(&process)).await;
}

/// What a process does: runs, sleeps, is stopped.
fn state(pid: u32) -> Option<char> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("State:\t"))?.chars().next()
}

#[tokio::test]
async fn a_second_process_that_somebody_else_kills_is_replaced() {
    let ground = sqlite().await;
    let mut child = demo(&ground, &["--seconds", "600", "--rate", "20", "--kill"]).start();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    // Between the look for it and the kill, it may be killed as usual.
    for _ in 0..3 {
        let mut killed = None;
        eventually("there is a second process", async || {
            killed = worker_of(child.id()).map(|(process, _)| process);
            killed.is_some()
        })
        .await;
        let pid = killed.as_ref().and_then(|process| process.file_name()).unwrap().to_str().unwrap();
        kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGKILL).ok();
        eventually("it is replaced", async || {
            worker_of(child.id()).is_some_and(|(process, _)| Some(process) != killed)
        })
        .await;
    }
    signal(&child, Signal::SIGINT);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let ran = ended(child);
    assert_eq!((ran.code, &*ran.err), (0, ""), "{ran:?} {rest}");
    assert!(rest.ends_with("  the books are in order\n"), "{rest}");
}

/// The process that a demo has started, and its arguments.
fn worker_of(parent: u32) -> Option<(PathBuf, String)> {
    let processes = Path::new("/proc").read_dir().expect("processes").flatten();
    processes.map(|entry| entry.path()).find_map(|process| {
        let arguments = std::fs::read_to_string(process.join("cmdline")).ok()?;
        let status = std::fs::read_to_string(process.join("status")).ok()?;
        let is_child = status.lines().any(|line| line == format!("PPid:\t{parent}"));
        (is_child && arguments.contains("demo-worker")).then_some((process, arguments))
    })
}

fn is_alive(process: &Path) -> bool {
    std::fs::read_to_string(process.join("status")).is_ok_and(|status| !status.contains("State:\tZ"))
}

#[tokio::test]
async fn what_cannot_be_is_refused() {
    let ground = sqlite().await;
    for arguments in [["--seconds", "0"], ["--messages", "0"], ["--rate", "0"], ["--rate", "100001"]] {
        assert_eq!(own_demo(&ground, &arguments).run().code, 2, "{arguments:?}");
    }
    for option in [["--table-prefix", "shop_"], ["--schema", "shop"]] {
        let sentence = own_demo(&ground, &option).fails(2);
        assert!(sentence.ends_with(&format!(": leave out {}", option[0])), "{sentence}");
    }
    let sentence = Posthaste::new(&["demo", "--database-url", "sqlite::memory:"]).fails(2);
    assert!(sentence.ends_with("name a file"), "{sentence}");
    let sentence =
        Posthaste::new(&["demo", "--database-url", "postgres://scott:tiger@127.0.0.1:1/shop"]).fails(3);
    assert!(
        sentence.starts_with("the database is out of reach: ") && !sentence.contains("tiger"),
        "{sentence}"
    );
    let sentence = Posthaste::new(&["demo"]).env("TMPDIR", "/nowhere").fails(1);
    assert!(sentence.starts_with("cannot make a folder in /nowhere: "), "{sentence}");
    let sentence = Posthaste::new(&["demo-worker", "ledger"]).fails(2);
    assert!(sentence.ends_with("`posthaste demo --kill` starts this command"), "{sentence}");
    assert_nothing_is_left(&ground);
}

/// Whether the last of the bars is there, and some of it is settled.
fn shows_bars(text: &str) -> bool {
    text.contains(" 7 █")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_numbers_bars_and_the_verdict() {
    let ground = sqlite().await;
    let terminal = OnScreen::start(own_demo(&ground, &["--seconds", "3"]), 80, 24);
    let running = terminal.see("bars that grow", |text| text.contains(" of 3.0s") && shows_bars(text));
    let (rows, text) = (rows(&running), text(&running));
    assert_eq!(rows[0], "posthaste demo on an SQLite file of its own", "{text}");
    let numbers = rows[3..5].join(" ");
    for name in ["enqueued", "delivered", "a second", "rolled back", "lag", "oldest", "dead letters"] {
        assert!(numbers.contains(name), "{name}: {text}");
    }
    for (number, row) in rows[6..14].iter().enumerate() {
        assert!(row.starts_with(&format!(" {number} ")) && row.contains('░'), "{text}");
    }

    let (code, screen) = terminal.end();
    let (rows, text) = (self::rows(&screen), self::text(&screen));
    assert_eq!(code, 0, "{text}");
    // What was shown last stays, and the verdict is below it.
    assert_eq!(rows[0], "posthaste demo on an SQLite file of its own", "{text}");
    assert!(rows[1].starts_with("done in "), "{text}");
    assert!(rows[6].starts_with(" 0 █") && rows[13].starts_with(" 7 █"), "{text}");
    assert!(rows[14].is_empty() && rows[15].starts_with("✓ "), "{text}");
    assert!(text.ends_with("the books are in order"), "{text}");
    assert_eq!(text.matches("posthaste demo").count(), 1, "{text}");
    let (bar, verdict) = (screen.cell(6, 3).unwrap(), screen.cell(15, 0).unwrap());
    assert_eq!([bar.fgcolor(), verdict.fgcolor()], [vt100::Color::Idx(2); 2], "{text}");
}

fn rows(screen: &vt100::Screen) -> Vec<String> {
    screen.rows(0, screen.size().1).map(|row| row.trim_end().to_owned()).collect()
}

fn text(screen: &vt100::Screen) -> String {
    rows(screen).join("\n").trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrow_terminal_is_not_garbled() {
    let ground = sqlite().await;
    let terminal = OnScreen::start(own_demo(&ground, &["--seconds", "2"]), 34, 44);
    let running = terminal.see("bars that grow", |text| text.contains(" of 2.0s") && shows_bars(text));
    let (code, ended) = terminal.end();
    assert_eq!(code, 0, "{}", text(&ended));
    for screen in [running, ended] {
        let (rows, text) = (rows(&screen), text(&screen));
        assert_eq!(rows[0], "posthaste demo on an SQLite file…", "{text}");
        assert!(rows[3].ends_with(" enqueued") && rows[9].ends_with(" dead letters"), "{text}");
        for (number, row) in rows[11..19].iter().enumerate() {
            assert!(row.starts_with(&format!(" {number} ")), "{text}");
        }
        assert_eq!(text.matches("posthaste demo").count(), 1, "{text}");
    }
}
