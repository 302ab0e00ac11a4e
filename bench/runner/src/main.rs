//! Runs the adapters side by side, round by round, and says how they compare. `cargo xtask bench` builds all of them, starts a
//! server and calls this.

mod bars;
mod chart;
mod circumstances;
mod rounds;
mod summary;
mod systems;
mod table;

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use bench_harness::{Database, Workload};
use clap::Parser;

use circumstances::Circumstances;
use rounds::Course;
use summary::Summary;

/// Run systems side by side, and compare them.
#[derive(Debug, Parser)]
struct Options {
    #[arg(long)]
    db: Database,
    #[arg(long)]
    workload: Workload,
    /// How often each system runs
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// End with one JSON object instead of tables. Its `ok` says that every run of posthaste and of the bare table counts,
    /// not that a bar is held
    #[arg(long)]
    json: bool,
    /// A small load on posthaste and the bare table, once, to see that all works; writes no files
    #[arg(long)]
    quick: bool,
    /// Only this system; may be repeated
    #[arg(long = "system", value_name = "NAME")]
    systems: Vec<String>,
    /// Give a run up when nothing has arrived for so many seconds
    #[arg(long, default_value = "120")]
    patience: u64,
    /// The server, and a database there that exists
    #[arg(long, default_value = "")]
    url: String,
    /// A transaction pooler before the server
    #[arg(long)]
    pooler: Option<String>,
    #[arg(long)]
    server_pid: Option<u32>,
    /// What the server is, for the results
    #[arg(long)]
    server: Option<String>,
    /// The folder of the adapters' programs
    #[arg(long)]
    adapters: PathBuf,
    /// The folder for the results
    #[arg(long)]
    results: PathBuf,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether all runs that we vouch for count.
fn run(options: &Options) -> Result<bool> {
    if options.workload == Workload::Held && options.db != Database::Postgres {
        bail!("a session pins the snapshot horizon on PostgreSQL only: `held` cannot be run elsewhere");
    }
    let mut entrants = systems::entrants(options.db, options.workload, options.quick);
    for name in &options.systems {
        if !entrants.iter().any(|entrant| entrant.name == *name) {
            let names: Vec<_> = entrants.iter().map(|entrant| entrant.name.as_str()).collect();
            bail!("no system {name:?} takes part here: choose from {}", names.join(", "));
        }
    }
    entrants.retain(|entrant| options.systems.is_empty() || options.systems.contains(&entrant.name));
    let load = options.workload.load();
    let course = Course {
        database: options.db,
        url: options.url.clone(),
        pooler: options.pooler.clone(),
        server_pid: options.server_pid,
        workload: options.workload,
        adapters: options.adapters.clone(),
        messages: options.quick.then_some(load.messages / 20),
        patience_s: options.patience,
    };
    let rounds = if options.quick { 1 } else { options.rounds };
    let has_round_trips = !options.quick
        && options.db != Database::Sqlite
        && !matches!(options.workload, Workload::Scale | Workload::Wake);
    let runs = course.run(entrants, rounds, has_round_trips);
    let summary = Summary::of(&course, rounds, Circumstances::of(options), &runs);
    if options.json {
        println!("{}", serde_json::to_string(&summary)?);
    } else {
        println!("{}", table::render(&summary));
    }
    if !options.quick {
        write(options, &summary)?;
    }
    Ok(summary.ok)
}

fn write(options: &Options, summary: &Summary) -> Result<()> {
    let folder = &options.results;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    // What only some took part in does not replace what all did.
    let some = if options.systems.is_empty() { "" } else { "-some" };
    let file = |ending: &str| folder.join(format!("{}-{}{some}.{ending}", summary.db, summary.workload));
    for (path, text) in
        [(file("json"), serde_json::to_string_pretty(summary)? + "\n"), (file("svg"), chart::svg(summary))]
    {
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
