//! The worst day of an outbox, over and over: producers and workers in processes of their own, a nemesis that kills, pauses, cuts and
//! crashes by a plan that follows from a seed, and a judge of what was delivered. `cargo xtask torture` starts it.

mod database;
mod disk;
mod episode;
mod evidence;
mod faketime;
mod judge;
mod kill;
mod points;
mod process;
mod producer;
mod proxy;
mod report;
mod run;
mod schedule;
mod server;
mod slow;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use posthaste::LeaseConfig;
use posthaste_torture_protocol::{
    AS_PROCESS, FAILED, circumstances, clock, content, history, ongoing::Ongoing,
};
use sqlx::{MySql, Postgres, Sqlite};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    circumstances::{Circumstances, Role},
    content::Mode,
    database::Ground,
    history::{Line, Pen},
    proxy::Wire,
    report::Report,
    schedule::Kind,
    slow::SlowBatches,
};

/// The worst day of an outbox, over and over, and a judge of what it made of it.
#[derive(Debug, Parser)]
#[command(
    name = "torture",
    bin_name = "cargo xtask torture",
    after_help = "Exit codes: 0 all promises were kept; 1 some were broken; 2 it could not be run, or did not go as planned."
)]
struct Options {
    /// The database that it runs on
    #[arg(long, value_enum)]
    db: Database,
    /// What is tortured; anything but posthaste is a control, in which the judge must find something
    #[arg(long, value_enum, default_value = "posthaste")]
    system: System,
    /// Go on for so long
    #[arg(long, conflicts_with = "kills")]
    seconds: Option<u64>,
    /// Go on until so many workers were killed; without this or --seconds, until each mode had a turn
    #[arg(long)]
    kills: Option<u32>,
    /// What everything is drawn from; any, if none is given
    #[arg(long)]
    seed: Option<u64>,
    /// Only these faults
    #[arg(long, value_enum, value_delimiter = ',')]
    faults: Vec<Kind>,
    /// How messages are delivered
    #[arg(long, value_enum, default_value = "both")]
    mode: ModeOption,
    /// Play one plan, as it was written down
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kills", "seconds", "seed", "mode", "faults"])]
    replay: Option<PathBuf>,
    /// Build it with optimisations first, which takes minutes: for long runs
    #[arg(long)]
    fast: bool,
    /// End with one JSON object
    #[arg(long)]
    json: bool,
    /// Where plans and histories are kept if something is found
    #[arg(long, default_value = "target/tortured", hide = true, overrides_with = "folder")]
    folder: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Database {
    Postgres,
    Mariadb,
    Mysql,
    Sqlite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum System {
    Posthaste,
    /// cf-modkit-db 0.7.2, on PostgreSQL
    CfModkitDb,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeOption {
    Leased,
    Transactional,
    Both,
}

impl Database {
    const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    const fn wire(self) -> Option<Wire> {
        match self {
            Self::Postgres => Some(Wire::Postgres),
            Self::Mariadb | Self::Mysql => Some(Wire::Mysql),
            Self::Sqlite => None,
        }
    }

    fn can_have(self, kind: Kind) -> bool {
        match kind {
            Kind::Promote => matches!(self, Self::Postgres),
            _ => self.wire().is_some() || !kind.needs_server(),
        }
    }
}

impl System {
    const fn name(self) -> &'static str {
        match self {
            Self::Posthaste => "posthaste",
            Self::CfModkitDb => "cf-modkit-db",
        }
    }
}

impl Options {
    /// The program that the processes of a control are; posthaste's are this one.
    fn control(&self) -> Result<Option<PathBuf>> {
        if self.system == System::Posthaste {
            return Ok(None);
        }
        if !matches!(self.db, Database::Postgres) {
            bail!("--system {}: this control runs on PostgreSQL only", self.system.name());
        }
        let program = std::env::var_os("POSTHASTE_CONTROL")
            .context("run `cargo xtask torture`, which builds the control")?;
        Ok(Some(program.into()))
    }

    fn modes(&self) -> Vec<Mode> {
        match self.mode {
            ModeOption::Leased => vec![Mode::Leased],
            ModeOption::Transactional => vec![Mode::Transactional],
            ModeOption::Both => Mode::ALL.to_vec(),
        }
    }

    /// Those that were asked for, or all that the database can have.
    fn kinds(&self) -> Result<Vec<Kind>> {
        if let Some(kind) = self.faults.iter().find(|kind| !self.db.can_have(**kind)) {
            bail!("--faults {}: {} cannot have this one; leave it out", kind.name(), self.db.name());
        }
        if self.kills.is_some() && !self.faults.is_empty() && !self.faults.contains(&Kind::Kill) {
            bail!("--kills: there are none without the fault `kill`; add it, or say --seconds");
        }
        let is_control = self.system != System::Posthaste;
        if self.faults.contains(&Kind::Point) && is_control {
            bail!("--faults point: {} has no kill points", self.system.name());
        }
        let is_root = nix::unistd::geteuid().is_root();
        if self.faults.contains(&Kind::Disk) && !is_root {
            bail!("--faults disk: only root can mount the file system that is filled");
        }
        let fits = |kind: &Kind| {
            self.db.can_have(*kind)
                && (is_root || *kind != Kind::Disk)
                && !(is_control && *kind == Kind::Point)
        };
        let all = if self.faults.is_empty() { Kind::value_variants().to_vec() } else { self.faults.clone() };
        Ok(all.into_iter().filter(fits).collect())
    }
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(AS_PROCESS) {
        return on_runtime(be_a_process(), || ExitCode::from(FAILED));
    }
    on_runtime(supervise(Options::parse()), || ExitCode::from(2))
}

fn on_runtime(work: impl Future<Output = Result<ExitCode>>, failed: impl FnOnce() -> ExitCode) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let ended = runtime.context("there is no runtime").and_then(|runtime| runtime.block_on(work));
    ended.unwrap_or_else(|error| {
        eprintln!("torture: {error:#}");
        failed()
    })
}

async fn supervise(options: Options) -> Result<ExitCode> {
    let (mut terminate, mut hang_up) = (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    let running = async {
        match options.db {
            Database::Postgres => run::run::<Postgres>(&options).await,
            Database::Mariadb | Database::Mysql => run::run::<MySql>(&options).await,
            Database::Sqlite => run::run::<Sqlite>(&options).await,
        }
    };
    // What was started and mounted goes with what is dropped here.
    let report = tokio::select! {
        report = running => report?,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("interrupted"),
        _ = hang_up.recv() => bail!("interrupted"),
    };
    print(&report, options.json)?;
    Ok(match (report.ok, report.verdict.is_good()) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(2),
        (false, false) => ExitCode::FAILURE,
    })
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string(report)?);
    } else {
        report.print();
    }
    Ok(())
}

async fn be_a_process() -> Result<ExitCode> {
    let (circumstances, stop) = Circumstances::hear().await?;
    let budget = LeaseConfig::of(circumstances.setup.lease()).handler_budget().as_micros().try_into()?;
    let pen = Pen::open(&circumstances.history)?;
    let slow = SlowBatches(Ongoing::watch(circumstances.process, budget, Line::Slow, pen));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    tracing_subscriber::registry().with(LevelFilter::INFO).with(log).with(slow).init();
    let scheme = circumstances.url.split(':').next().unwrap_or_default();
    match scheme {
        "postgres" => be::<Postgres>(circumstances, stop).await?,
        "mysql" => be::<MySql>(circumstances, stop).await?,
        _ => be::<Sqlite>(circumstances, stop).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn be<DB: Ground>(circumstances: Circumstances, stop: impl Future<Output = ()>) -> Result<()>
where
    for<'c> &'c mut DB::Connection: sqlx::Executor<'c, Database = DB>,
{
    match circumstances.role {
        Role::Producer => producer::run::<DB>(circumstances, stop).await,
        Role::Worker => worker::run::<DB>(circumstances, stop).await,
        Role::Starter => worker::start_and_stop::<DB>(circumstances).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_is_asked_for_what_it_has() {
        let options = |line: &str| Options::parse_from(["torture"].into_iter().chain(line.split(' ')));
        assert!(options("--db sqlite --seconds 1").control().is_ok_and(|control| control.is_none()));
        let refused = options("--db mariadb --system cf-modkit-db").control().unwrap_err().to_string();
        assert_eq!(refused, "--system cf-modkit-db: this control runs on PostgreSQL only");
        let points = options("--db postgres --system cf-modkit-db --faults kill,point").kinds();
        assert_eq!(points.unwrap_err().to_string(), "--faults point: cf-modkit-db has no kill points");
        let kinds = |line| options(line).kinds().unwrap();
        assert!(kinds("--db postgres").contains(&Kind::Point));
        assert!(!kinds("--db postgres --system cf-modkit-db").contains(&Kind::Point));
    }
}
