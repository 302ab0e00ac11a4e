//! `cargo xtask bench`: posthaste beside other systems and beside the bare table, on a private server.
//!
//! The systems and what is measured are in `bench/`, a workspace of its own. This builds its programs, starts the server, and
//! calls its runner.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use clap::{Args, ValueEnum};

use crate::{
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

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BenchDatabase {
    Postgres,
    Mariadb,
    Sqlite,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
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
}

fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub fn run(options: &BenchOptions) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    let programs = build(root, options.quick)?;
    let server = match options.db {
        BenchDatabase::Postgres => Some(Measured::start(Database::Postgres)?),
        BenchDatabase::Mariadb => Some(Measured::start(Database::Mariadb)?),
        BenchDatabase::Sqlite => None,
    };
    let mut command = Command::new(programs.join("runner"));
    command.args(["--db", &name_of(&options.db), "--workload", &name_of(&options.workload)]);
    command.args(["--rounds", &options.rounds.to_string()]);
    command.arg("--adapters").arg(&programs).arg("--results").arg(root.join("bench/results"));
    if let Some(server) = &server {
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

/// Builds the runner and the adapters, and returns the folder of the programs.
fn build(root: &Path, quick: bool) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let mut command = cargo(&["build", "--quiet", "--locked", "--manifest-path"]);
    command.arg(root.join("bench/Cargo.toml"));
    // Beside our own, so that what both depend on is built once.
    command.arg("--target-dir").arg(&target);
    let folder = if quick {
        // Nothing is measured, so nothing needs to be fast but the build.
        command.args(["--package=runner", "--package=bench-posthaste", "--package=bench-bare"]);
        "debug"
    } else {
        eprintln!("xtask: building the systems to compare; the first time this takes minutes");
        command.args(["--workspace", "--release"]);
        "release"
    };
    if interrupt::wait(&mut command)?.success() {
        return Ok(target.join(folder));
    }
    Err(Failure::Failed("the benchmark could not be built".to_owned()))
}
