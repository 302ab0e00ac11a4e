//! `cargo xtask bench`: posthaste beside other systems and beside the bare table, on a private server.
//!
//! The systems and the workloads are in `bench/`, the adapters of other systems in `bench/peers/`, a workspace of its own. This
//! builds the programs, starts the server, and calls the runner.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Args, ValueEnum};

use crate::{
    build,
    database::Database,
    failure::{Failure, Result},
    interrupt,
    servers::Measured,
    test::cargo,
};

#[derive(Args)]
pub struct BenchOptions {
    /// The database that they run on
    #[arg(long, value_enum, default_value = "postgres")]
    db: BenchDatabase,
    /// What is sent, and what becomes of it
    #[arg(long, value_enum, default_value = "batch")]
    workload: BenchWorkload,
    /// How often each system runs; they take turns
    #[arg(long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// End with one JSON object instead of tables. Its `ok` says that every run of posthaste and of the bare table counts, not
    /// that a bar is held
    #[arg(long)]
    json: bool,
    /// A small load on posthaste and the bare table only, to see that all works: not for measuring
    #[arg(long)]
    quick: bool,
    /// Only this system, as the results name it; may be repeated
    #[arg(long = "system", value_name = "NAME")]
    systems: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchDatabase {
    Postgres,
    Mariadb,
    Sqlite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum BenchWorkload {
    /// 8 producers, 100 messages a transaction, 100k messages, delivered meanwhile
    Batch,
    /// 16 producers, one message a transaction, 30k messages, delivered meanwhile
    Single,
    /// 200 transactions a second: how long from commit to handler
    Latency,
    /// 200k messages that wait, then drained
    Backlog,
    /// As backlog, through handlers that insert a row in the transaction that settles
    Transactional,
    /// As batch, while a session pins the snapshot horizon (PostgreSQL)
    Held,
    /// As batch, with the workers in four processes
    Processes,
    /// As backlog, from 10k to 3M messages
    Scale,
    /// As batch, with payloads of 16 KiB
    Payload,
    /// One message at a time in an idle system: how long from commit to handler, beside what is promised
    Wake,
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub fn run(options: &BenchOptions) -> Result<()> {
    let root = build::root();
    let programs = build_systems(root, options)?;
    let mut server = match options.db {
        BenchDatabase::Postgres => Some(Measured::start(Database::Postgres)?),
        BenchDatabase::Mariadb => Some(Measured::start(Database::Mariadb)?),
        BenchDatabase::Sqlite => None,
    };
    let mut command = Command::new(programs.join("bench-runner"));
    command.args(["--db", &name_of(&options.db), "--workload", &name_of(&options.workload)]);
    command.args(["--rounds", &options.rounds.to_string()]);
    command.arg("--adapters").arg(&programs).arg("--results").arg(root.join("bench/results"));
    if let Some(server) = &mut server {
        if options.db == BenchDatabase::Postgres && options.workload == BenchWorkload::Wake {
            command.args(["--pooler", &server.put_pooler_before_it()?]);
        }
        let record = server.record();
        eprintln!("xtask: {} is {}", record.database, record.version);
        command.args(["--url", &record.url, "--server-pid", &record.pid.to_string()]);
        command.args(["--server", &record.version]);
    }
    command.args(options.json.then_some("--json")).args(options.quick.then_some("--quick"));
    command.args(options.systems.iter().flat_map(|name| ["--system", name]));
    match interrupt::wait(&mut command)?.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::CannotRun("the benchmark could not be run, as said above".to_owned())),
        _ => Err(Failure::Failed("runs of the benchmark failed, as said above".to_owned())),
    }
}

/// What takes part without the peers' workspace: the runner, and the systems whose names in the results start as `OURS` says.
const PROGRAMS: [&str; 3] = ["bench-runner", "bench-posthaste", "bench-bare"];
const OURS: [&str; 2] = ["posthaste", "bare"];

/// Builds the runner and the adapters, and returns the folder of the programs.
fn build_systems(root: &Path, options: &BenchOptions) -> Result<PathBuf> {
    if options.quick {
        return build::programs(&PROGRAMS);
    }
    let target = build::target();
    let mut ours = cargo(&["build", "--quiet", "--locked", "--manifest-path"]);
    ours.arg(root.join("Cargo.toml")).arg("--target-dir").arg(&target);
    ours.arg("--release").args(PROGRAMS.iter().flat_map(|name| ["--package", name]));
    let folder = built(&mut ours, target.join("release"))?;
    if !needs_peers(options) {
        return Ok(folder);
    }
    eprintln!("xtask: building the systems to compare; the first time this takes minutes");
    let mut peers = cargo(&["build", "--quiet", "--locked", "--release", "--workspace", "--manifest-path"]);
    // Into the same folder, so that the runner finds all adapters and shared dependencies are built once.
    peers.arg(root.join("bench/peers/Cargo.toml")).arg("--target-dir").arg(&target);
    built(&mut peers, folder)
}

fn built(command: &mut Command, folder: PathBuf) -> Result<PathBuf> {
    if interrupt::wait(command)?.success() {
        return Ok(folder);
    }
    Err(Failure::Failed("the benchmark could not be built".to_owned()))
}

/// Whether a system of the peers' workspace takes part.
fn needs_peers(options: &BenchOptions) -> bool {
    let is_ours = |name: &String| OURS.iter().any(|ours| name.starts_with(ours));
    let only_ours = !options.systems.is_empty() && options.systems.iter().all(is_ours);
    !only_ours && !matches!(options.workload, BenchWorkload::Scale | BenchWorkload::Wake)
}
