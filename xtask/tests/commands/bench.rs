//! The benchmark with a small load: that all of it runs and counts, not how fast.

use serde_json::Value;

use crate::command::World;

/// What a run of one system comes to, whatever the database.
const MEASURED: [&str; 9] = [
    "per_s",
    "p50_ms",
    "p99_ms",
    "wal_bytes",
    "statements",
    "commits",
    "server_cpu_us",
    "client_cpu_us",
    "peak_mb",
];

fn quick(database: &str, workload: &str) -> Value {
    let world = World::new();
    let output = world
        .xtask(&["bench", "--quick", "--json", "--db", database, "--workload", workload])
        .output()
        .expect("xtask runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    assert_eq!(world.left_behind(), Vec::<std::path::PathBuf>::new());
    let summary: Value = serde_json::from_slice(&output.stdout).expect("one object and nothing else");
    assert_eq!(
        (&summary["db"], &summary["workload"], &summary["rounds"]),
        (&database.into(), &workload.into(), &1.into())
    );
    assert_eq!(summary["ok"], true, "{summary}");
    summary
}

fn assert_compared_with_bare(summary: &Value) {
    for system in ["posthaste", "bare"] {
        let measured = summary["systems"][system].as_object().expect("it was run");
        for name in MEASURED {
            assert!(measured.contains_key(name), "{system} has no {name}");
        }
        for name in ["per_s", "wal_bytes", "client_cpu_us", "peak_mb"] {
            assert!(
                measured[name].as_f64().is_some_and(|value| value > 0.0),
                "{name} of {system}: {}",
                measured[name]
            );
        }
    }
    let number = |system: &str, name: &str| summary["systems"][system][name].as_f64().expect("a number");
    for name in ["per_s", "wal_bytes"] {
        let ratio = summary["ratios"]["bare"][name].as_f64().expect("a number");
        assert!(
            (ratio - number("posthaste", name) / number("bare", name)).abs() < 1e-9,
            "{name}: ours over theirs"
        );
    }
    // As a second reader of the log would see it: each payload is in it once at least.
    assert!(number("bare", "wal_bytes") >= 200.0, "{summary}");
}

fn assert_server_counted(summary: &Value) {
    for system in ["posthaste", "bare"] {
        for name in ["statements", "commits", "server_cpu_us"] {
            let value = &summary["systems"][system][name];
            assert!(value.as_f64().is_some_and(|value| value > 0.0), "{name} of {system}: {value}");
        }
    }
}

mod postgres {
    use super::*;

    #[test]
    fn a_quick_look_compares_with_the_bare_table() {
        let summary = quick("postgres", "batch");
        assert_compared_with_bare(&summary);
        assert_server_counted(&summary);
        // BEGIN, INSERT, COMMIT for a hundred messages: a count that is off by much would be seen here.
        let statements = summary["systems"]["bare"]["statements"].as_f64().expect("a number");
        assert!((0.03..0.04).contains(&statements), "{statements}");
    }

    #[test]
    fn every_other_workload_runs_and_counts() {
        for workload in
            ["single", "latency", "backlog", "transactional", "held", "processes", "scale", "payload"]
        {
            quick("postgres", workload);
        }
        assert_wakes_measured("postgres");
    }
}

mod mariadb {
    use super::*;

    #[test]
    fn a_quick_look_compares_with_the_bare_table() {
        let summary = quick("mariadb", "batch");
        assert_compared_with_bare(&summary);
        assert_server_counted(&summary);
        quick("mariadb", "transactional");
        assert_wakes_measured("mariadb");
    }
}

mod sqlite {
    use super::*;

    #[test]
    fn a_quick_look_compares_with_the_bare_table() {
        assert_compared_with_bare(&quick("sqlite", "batch"));
        quick("sqlite", "transactional");
        assert_wakes_measured("sqlite");
    }
}

/// Each kind is measured and has its bar. Whether a bar is held on a busy machine says nothing, so it is not asked.
fn assert_wakes_measured(database: &str) {
    let summary = quick(database, "wake");
    let mut kinds = vec!["posthaste-same-process", "posthaste-open-transaction", "posthaste-other-process"];
    if database == "postgres" {
        kinds.push("posthaste-pooler");
    }
    for kind in &kinds {
        for name in ["p50_ms", "p99_ms"] {
            let value = &summary["systems"][*kind][name];
            assert!(value.is_f64(), "{name} of {kind}: {value}");
        }
    }
    let bars = summary["bars"].as_array().expect("a list");
    let judged: Vec<_> = bars.iter().filter(|bar| bar["held"].is_boolean()).collect();
    assert_eq!(judged.len(), kinds.len(), "{summary}");
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_is_measured() {
    let refused = |arguments: &[&str]| {
        let output =
            World::new().xtask(&[&["bench", "--quick", "--db", "sqlite"], arguments].concat()).output();
        let output = output.expect("xtask runs");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
        String::from_utf8(output.stderr).expect("text")
    };
    let nobody = refused(&["--system", "nobody"]);
    assert!(nobody.contains("no system \"nobody\" takes part here: choose from posthaste, bare"), "{nobody}");
    let held = refused(&["--workload", "held"]);
    assert!(held.contains("on PostgreSQL only"), "{held}");
}
