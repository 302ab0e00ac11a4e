//! The rounds: every entrant once, then every entrant again, so that what the machine does meanwhile happens to all of them.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use bench_harness::{Database, Report, Workload};

use crate::systems::Entrant;

/// What all runs have in common.
pub struct Course {
    pub database: Database,
    pub url: String,
    /// A transaction pooler before the server.
    pub pooler: Option<String>,
    pub server_pid: Option<u32>,
    pub workload: Workload,
    /// Where the adapters' programs are.
    pub adapters: PathBuf,
    /// Instead of the workload's own number.
    pub messages: Option<u64>,
    pub patience_s: u64,
}

/// An entrant's runs.
#[derive(Debug)]
pub struct Runs {
    pub entrant: Entrant,
    /// Those that count.
    pub reports: Vec<Report>,
    /// Why others did not.
    pub failures: Vec<String>,
    /// Of a run of its own, which is slower.
    pub round_trips: Option<f64>,
}

impl Course {
    /// Runs all of them `rounds` times.
    pub fn run(&self, entrants: Vec<Entrant>, rounds: u32, count_round_trips: bool) -> Vec<Runs> {
        let empty = |entrant| Runs { entrant, reports: Vec::new(), failures: Vec::new(), round_trips: None };
        let mut all: Vec<_> = entrants.into_iter().map(empty).collect();
        for round in 1..=rounds {
            for runs in &mut all {
                eprint!("round {round}/{rounds}  {:<28}", runs.entrant.name);
                match self.once(&runs.entrant, false).and_then(counts) {
                    Ok(report) => {
                        eprintln!("{}", in_short(&report));
                        runs.reports.push(report);
                    }
                    Err(why) => {
                        eprintln!("does not count: {why:#}");
                        runs.failures.push(format!("{why:#}"));
                    }
                }
            }
        }
        if count_round_trips {
            for runs in all.iter_mut().filter(|runs| !runs.reports.is_empty()) {
                eprint!("round trips  {:<26}", runs.entrant.name);
                let counted = self.once(&runs.entrant, true).and_then(counts);
                runs.round_trips = counted.as_ref().ok().and_then(|report| report.round_trips);
                match (runs.round_trips, counted) {
                    (Some(each), _) => eprintln!("{each:.3} a message"),
                    (None, Err(why)) => eprintln!("not counted: {why:#}"),
                    (None, Ok(_)) => eprintln!("there are none"),
                }
            }
        }
        all
    }

    fn once(&self, entrant: &Entrant, count_round_trips: bool) -> Result<Report> {
        let mut command = Command::new(self.adapters.join(entrant.program));
        let workload = entrant.workload.unwrap_or(self.workload).name();
        command.args(["--db", database_name(self.database), "--workload", &workload, "--url", &self.url]);
        command.args(["--patience", &self.patience_s.to_string()]);
        if let Some(pooler) = &self.pooler {
            command.args(["--pooler", pooler]);
        }
        if let Some(pid) = self.server_pid {
            command.args(["--server-pid", &pid.to_string()]);
        }
        if let Some(variant) = entrant.variant {
            command.args(["--variant", variant]);
        }
        if let Some(messages) = entrant.messages.or(self.messages) {
            command.args(["--messages", &messages.to_string()]);
        }
        if count_round_trips {
            command.arg("--count-round-trips");
        }
        let output = command
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot run {}", entrant.program))?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint = complaint.lines().rfind(|line| !line.is_empty()).unwrap_or("it said nothing");
        anyhow::ensure!(output.status.success(), "{}: {complaint}", output.status);
        let printed = String::from_utf8_lossy(&output.stdout);
        let line = printed.lines().rfind(|line| !line.is_empty()).context("no line of results")?;
        serde_json::from_str(line).context("a line that is no result")
    }
}

pub fn database_name(database: Database) -> &'static str {
    match database {
        Database::Postgres => "postgres",
        Database::Mariadb => "mariadb",
        Database::Sqlite => "sqlite",
    }
}

/// Only a run that delivered everything, once and in order.
fn counts(report: Report) -> Result<Report> {
    let Report { missing, duplicates, out_of_order, .. } = report;
    anyhow::ensure!(
        report.ok,
        "{missing} missing, {duplicates} twice, {out_of_order} out of order, or else effects that are not there once or tables that \
         were not clean in time: {}",
        in_short(&report).trim_start()
    );
    Ok(report)
}

fn in_short(report: &Report) -> String {
    let latency = match (report.p50_ms, report.p99_ms, report.max_ms) {
        (Some(p50), Some(p99), Some(max)) => format!("  p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.0} ms"),
        _ => String::new(),
    };
    let errors = match report.producer_errors {
        0 => String::new(),
        some => format!("  {some} transactions failed and were tried again"),
    };
    format!("{:>9.0}/s{latency}{errors}", report.per_s)
}
