//! Torture, as much of it as a test suite has the time for: each kill point on each database in each mode, random kills, crashes and
//! cuts. Longer campaigns are for `cargo xtask torture` itself.

use serde_json::Value;

use crate::command::World;

/// A run whose report is good.
fn torture(arguments: &[&str]) -> Value {
    let report = report(arguments);
    assert_eq!(report["ok"], true, "{report:#}");
    report
}

/// The report of a run, good or not.
fn report(arguments: &[&str]) -> Value {
    let world = World::new();
    let mut command = world.xtask(&["torture", "--json"]);
    let output = command.args(arguments).output().expect("xtask runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("one object and nothing else: {complaint}"));
    assert_eq!(output.status.success(), report["ok"] == true, "{report:#}\n{complaint}");
    world.assert_nothing_is_left();
    report
}

/// A full disk needs root, and is left to longer runs.
const ANYWHERE: &str = "kill,point,producer,pause,stop,starters,handler,clock";
const OF_SERVERS: &str = "crash,session,cut,network";
/// What is found without a clock. How soon partitions recover is measured where the machine is otherwise idle.
const BROKEN: [&str; 7] = [
    "lost",
    "phantom",
    "transactional_duplicates",
    "unexplained_duplicates",
    "reordered",
    "cross_wired",
    "stale_settles",
];

fn assert_tortured(database: &str, kill_points: usize, faults: &[&str]) -> Value {
    let (has_server, faults) = (faults.contains(&OF_SERVERS), faults.join(","));
    let report = torture(&["--db", database, "--kills", "20", "--seed", "7", "--faults", &faults]);
    let count = |name: &str| report[name].as_u64().expect("a count");
    for broken in BROKEN.into_iter().chain(["stalls"]) {
        assert_eq!(count(broken), 0, "{broken}: {report:#}");
    }
    assert!(count("messages") > 1000, "{report:#}");
    // Besides those at kill points.
    assert!(count("kills") >= 20 + count("point_kills") / 2, "{report:#}");
    assert_eq!(report["kill_points"].as_array().map(Vec::len), Some(kill_points), "{report:#}");
    assert!(count("pauses") >= 2 && count("clock_jumps") >= 2, "{report:#}");
    if has_server {
        assert!(count("crashes") >= 2 && count("cuts") >= 50, "{report:#}");
    }
    report
}

/// Those that PostgreSQL has not are between a statement and its commit.
#[test]
fn every_promise_is_kept_on_postgres() {
    let report = assert_tortured("postgres", 23, &[ANYWHERE, OF_SERVERS, "promote"]);
    assert!(report["promotions"].as_u64() >= Some(1), "{report:#}");
}

#[test]
fn every_promise_is_kept_on_mariadb() {
    assert_tortured("mariadb", 27, &[ANYWHERE, OF_SERVERS]);
}

#[test]
fn every_promise_is_kept_on_sqlite() {
    assert_tortured("sqlite", 27, &[ANYWHERE]);
}

#[test]
fn a_plan_can_be_played_again() {
    let world = World::new();
    let plan = world.tmp().parent().expect("a folder").join("plan.json");
    let text = r#"{"number": 3, "seed": 5, "first_process": 40, "shape": {"seed": 1, "queues": [["leased", 2]]}, "workers": 2, "producers": 1, "misbehaves": false,
        "points": false, "steps": [{"after": 500, "deed": {"kill": {"worker": 1}}, "rest": 100}]}"#;
    std::fs::write(&plan, text).expect("a file");
    let report = report(&["--db", "sqlite", "--replay", plan.to_str().expect("a path")]);
    for broken in BROKEN {
        assert_eq!(report[broken], 0, "{broken}: {report:#}");
    }
    assert_eq!((&report["kills"], &report["episodes"]), (&1.into(), &1.into()), "{report:#}");
    assert_eq!(report["seed"], 5, "{report:#}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    for (arguments, why) in [
        (&["--db", "sqlite", "--faults", "crash"][..], "--faults crash: sqlite cannot have"),
        (&["--db", "mariadb", "--faults", "kill,promote"], "--faults promote: mariadb cannot have"),
        (&["--db", "sqlite", "--faults", "flood"], "invalid value"),
        (&["--db", "sqlite", "--kills", "1", "--seconds", "1"], "cannot be used with"),
        (&["--db", "oracle"], "invalid value"),
        (&["--db", "sqlite", "--kills", "9", "--faults", "pause"], "--kills: there are none"),
        (&["--db", "sqlite", "--replay", "plan.json", "--seed", "3"], "cannot be used with"),
        (&["--db", "sqlite", "--replay", "/nowhere/plan.json"], "/nowhere/plan.json"),
    ] {
        let output = world.xtask(&["torture"]).args(arguments).output().expect("xtask runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.contains(why), "{complaint}");
    }
    world.assert_nothing_is_left();
}
