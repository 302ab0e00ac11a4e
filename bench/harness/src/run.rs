//! One run of one system, from an empty database to the line of results.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use tokio::{
    io::AsyncReadExt,
    signal::unix::{SignalKind, signal},
};

use crate::{
    clock,
    ground::{Ground, pin_horizon},
    judge::{Arrival, Judge},
    meter::{self, Meter, Reading, Statements},
    produce::{Observed, produce, producers},
    proxy::Proxy,
    report::{Report, percentile},
    system::{Database, Destination, Inbox, System, Target},
    tally::Tally,
    workers::{Pipe, WorkerProcess},
    workload::{Load, Workload},
};

/// How long what was delivered may stay in the tables before nobody waits for it any more.
const CLEAN_LIMIT: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Run one system once, in a database of the run's own, and print a line of JSON.
#[derive(Debug, Parser)]
struct Options {
    #[arg(long)]
    db: Database,
    /// The server, and a database there that exists; not for SQLite
    #[arg(long, default_value = "", hide_default_value = true)]
    url: String,
    /// A transaction pooler before the server, for workloads behind one
    #[arg(long)]
    pooler: Option<String>,
    /// The server's process, to count its processor time
    #[arg(long)]
    server_pid: Option<u32>,
    #[arg(long)]
    workload: Workload,
    /// Send this many messages instead of the workload's own number
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    messages: Option<u64>,
    /// One of the system's ways to be run
    #[arg(long)]
    variant: Option<String>,
    /// Give up when nothing has arrived for so many seconds
    #[arg(long, default_value = "120")]
    patience: u64,
    /// Give up when it has taken so many seconds in all
    #[arg(long, default_value = "900")]
    limit: u64,
    /// Count round trips, through a proxy: slower, so take no times from such a run
    #[arg(long)]
    count_round_trips: bool,
    /// Deliver only, in the database of this URL, and tell the process that started this one
    #[arg(long, hide = true)]
    deliver_in: Option<String>,
}

impl Options {
    fn load(&self) -> Load {
        let load = self.workload.load();
        Load { messages: self.messages.unwrap_or(load.messages), ..load }
    }

    fn target(&self, url: &str) -> Target {
        Target { database: self.db, url: url.to_owned(), load: self.load(), variant: self.variant.clone() }
    }

    /// The command line of a process that delivers for this one.
    fn worker_arguments(&self, target: &Target) -> Vec<String> {
        let given: Vec<_> = std::env::args().skip(1).collect();
        [given, vec!["--deliver-in".to_owned(), target.url.clone()]].concat()
    }
}

/// What an adapter's `main` calls.
pub fn main<S: System>() -> ExitCode {
    let options = Options::parse();
    let done = tokio::runtime::Runtime::new().context("no runtime").and_then(|runtime| {
        runtime.block_on(async {
            match &options.deliver_in {
                Some(url) => deliver_for_parent::<S>(&options.target(url)).await,
                None => run::<S>(&options).await.and_then(|report| {
                    println!("{}", serde_json::to_string(&report)?);
                    Ok(())
                }),
            }
        })
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn deliver_for_parent<S: System>(target: &Target) -> Result<()> {
    let mut end = signal(SignalKind::terminate())?;
    let pipe = Arc::new(Pipe::to_parent());
    let system = S::open(target).await?;
    let workers = system.deliver(Inbox(Destination::Pipe(Arc::clone(&pipe)))).await?;
    pipe.ready()?;
    // Who started this process asks it to end, or is gone, and with it the other end of this input.
    let (mut input, mut nothing) = (tokio::io::stdin(), [0]);
    tokio::select! {
        _ = end.recv() => {}
        _ = input.read(&mut nothing) => {}
    }
    system.stop(workers.context("a system without workers has no worker processes")?).await
}

async fn run<S: System>(options: &Options) -> Result<Report> {
    let ground = Ground::make(options.db, &options.url).await.context("no database for this run")?;
    let url = match (options.load().pooled, &options.pooler) {
        (false, _) => ground.url.clone(),
        (true, Some(pooler)) => ground.url_behind(pooler)?,
        (true, None) => anyhow::bail!("this workload needs a pooler: --pooler names one"),
    };
    let proxy = match options.count_round_trips && options.db != Database::Sqlite {
        true => Some(Proxy::before(&url).await?),
        false => None,
    };
    let target = options.target(proxy.as_ref().map_or(&url, |proxy| &proxy.url));
    let measuring = Box::pin(measure::<S>(options, &target, &ground.url, proxy.as_ref()));
    let measured = tokio::time::timeout(Duration::from_secs(options.limit), measuring).await;
    ground.remove().await?;
    measured.unwrap_or_else(|_| anyhow::bail!("it was not done within {} s", options.limit))
}

/// The workers: in this process, or in others.
enum Delivery<S: System> {
    Here(S::Workers),
    Processes { processes: Vec<WorkerProcess>, tally: Arc<Tally> },
    Nobody,
}

impl<S: System> Delivery<S> {
    async fn start(system: &S, options: &Options, target: &Target, judge: &Arc<Judge>) -> Result<Self> {
        if target.load.worker_processes == 0 {
            let inbox = Inbox(Destination::Judge(Arc::clone(judge)));
            return Ok(system.deliver(inbox).await?.map_or(Self::Nobody, Self::Here));
        }
        let tally = Arc::new(Tally::of(target.load.messages));
        let mut processes = Vec::new();
        for _ in 0..target.load.worker_processes {
            let heard = Arc::clone(&tally);
            processes
                .push(WorkerProcess::start(&options.worker_arguments(target), move || heard.add()).await?);
        }
        Ok(Self::Processes { processes, tally })
    }

    async fn complete(&self, judge: &Judge, patience: Duration) {
        let tally = if let Self::Processes { tally, .. } = self { tally } else { &judge.tally };
        tally.complete(patience).await;
    }

    /// Of this process and those that deliver.
    fn peak_bytes(&self) -> Result<u64> {
        let others = if let Self::Processes { processes, .. } = self { processes.as_slice() } else { &[] };
        let ids = others.iter().filter_map(WorkerProcess::id).chain([std::process::id()]);
        ids.map(meter::peak_bytes).sum()
    }

    async fn stop(self, system: &S, judge: &Judge) -> Result<()> {
        match self {
            Self::Nobody => Ok(()),
            Self::Here(workers) => system.stop(workers).await,
            Self::Processes { processes, .. } => {
                let mut arrivals: Vec<Arrival> = Vec::new();
                for process in processes {
                    arrivals.extend(process.stop().await?);
                }
                // What different processes got is put in order by the time they got it.
                arrivals.sort_by_key(|arrival| arrival.at);
                arrivals.into_iter().for_each(|arrival| judge.arrived(arrival));
                Ok(())
            }
        }
    }
}

async fn measure<S: System>(
    options: &Options,
    target: &Target,
    direct_url: &str,
    proxy: Option<&Proxy>,
) -> Result<Report> {
    let load = &target.load;
    let judge = Arc::new(Judge::of(load));
    let mut producer_errors = 0;
    let meter_target = Target { url: direct_url.to_owned(), ..target.clone() };
    let mut meter = Meter::attach(&meter_target, &options.url, options.server_pid).await?;
    let system = S::open(target).await?;
    system.prepare().await?;
    if load.waiting {
        let ready = producers(&system, load).await?;
        producer_errors += produce(ready, load, &judge, Observed::Committed).await?;
    }
    // Opened anew: the counts of a session are complete when it has ended, and what it was prepared with is no cost of messages.
    drop(system);
    let statements_before = meter.statements().await?;
    let system = S::open(target).await?;
    let pinned = if load.horizon_pinned { Some(pin_horizon(direct_url).await?) } else { None };

    meter::reset_peak()?;
    let round_trips_before = proxy.map_or(0, Proxy::round_trips);
    let (before, began, delivery);
    if load.waiting {
        (before, began) = (meter.read().await?, clock::now());
        delivery = Delivery::<S>::start(&system, options, target, &judge).await?;
    } else {
        delivery = Delivery::<S>::start(&system, options, target, &judge).await?;
        let ready = producers(&system, load).await?;
        (before, began) = (meter.read().await?, clock::now());
        let nobody_reads = matches!(delivery, Delivery::Nobody);
        let observed = if nobody_reads { Observed::Arrived } else { Observed::Committed };
        producer_errors += produce(ready, load, &judge, observed).await?;
    }
    delivery.complete(&judge, Duration::from_secs(options.patience)).await;
    let arrived = clock::now();
    let cleaned = clean(&system, arrived).await?;
    let nobody_reads = matches!(delivery, Delivery::Nobody);
    let after = meter.read().await?;
    let peak_bytes = delivery.peak_bytes()?;
    delivery.stop(&system, &judge).await?;
    let round_trips = proxy.map(|proxy| proxy.round_trips() - round_trips_before);
    let effects = if load.transactional || nobody_reads { Some(system.effects().await?) } else { None };
    drop((system, pinned));
    let statements = meter.statements().await?;
    Ok(Measured {
        judge: &judge,
        began,
        before,
        after,
        statements: statements_before.zip(statements),
        round_trips,
        has_server: options.server_pid.is_some(),
        peak_bytes,
        producer_errors,
        effects,
        cleaned,
    }
    .report(options, load))
}

/// When what was delivered was gone from the tables.
enum Cleaned {
    /// So long after the last arrival.
    After(Duration),
    /// The system leaves it there.
    Never,
    /// Nobody waited any longer.
    TooLate,
}

async fn clean<S: System>(system: &S, arrived: Duration) -> Result<Cleaned> {
    loop {
        let asked = clock::now();
        let answer = system.is_clean().await?;
        let waited = clock::now().saturating_sub(arrived);
        match answer {
            None => return Ok(Cleaned::Never),
            Some(true) => return Ok(Cleaned::After(waited)),
            Some(false) if waited > CLEAN_LIMIT => return Ok(Cleaned::TooLate),
            Some(false) => {}
        }
        // Questions are no cost of the system's: a slow one is asked rarely.
        tokio::time::sleep(LOOK_AGAIN.max(clock::now().saturating_sub(asked) * 10)).await;
    }
}

struct Measured<'a> {
    judge: &'a Judge,
    began: Duration,
    before: Reading,
    after: Reading,
    statements: Option<(Statements, Statements)>,
    round_trips: Option<u64>,
    has_server: bool,
    peak_bytes: u64,
    producer_errors: u64,
    effects: Option<(u64, u64)>,
    cleaned: Cleaned,
}

impl Measured<'_> {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    fn report(&self, options: &Options, load: &Load) -> Report {
        let verdict = self.judge.verdict();
        let each = |count: u64| count as f64 / load.messages as f64;
        let latencies = self.judge.latencies();
        let took = self.judge.last_arrival().saturating_sub(self.began).as_secs_f64();
        let arrived = load.messages - verdict.missing;
        let rate = |seconds: f64| if seconds > 0.0 { arrived as f64 / seconds } else { 0.0 };
        let clean_after = match self.cleaned {
            Cleaned::After(after) => Some(after.as_secs_f64()),
            Cleaned::Never | Cleaned::TooLate => None,
        };
        // Each message has had its effect once.
        let effects_ok = self.effects.is_none_or(|effects| effects == (load.messages, load.messages));
        let Reading { log_bytes, server_cpu_us, client_cpu_us } = self.after;
        Report {
            workload: options.workload.name(),
            variant: options.variant.clone(),
            messages: load.messages,
            ok: verdict.is_good(load) && effects_ok && !matches!(self.cleaned, Cleaned::TooLate),
            missing: verdict.missing,
            duplicates: verdict.duplicates,
            out_of_order: verdict.out_of_order,
            producer_errors: self.producer_errors,
            per_s: rate(took),
            per_s_clean: clean_after.map(|after| rate(took + after)),
            p50_ms: percentile(&latencies, 50),
            p99_ms: percentile(&latencies, 99),
            max_ms: percentile(&latencies, 100),
            wal_bytes: each(log_bytes - self.before.log_bytes),
            statements: self.statements.map(|(before, after)| each(after.statements - before.statements)),
            commits: self.statements.map(|(before, after)| each(after.commits - before.commits)),
            round_trips: self.round_trips.map(each),
            server_cpu_us: self.has_server.then(|| each(server_cpu_us - self.before.server_cpu_us)),
            client_cpu_us: each(client_cpu_us - self.before.client_cpu_us),
            peak_mb: self.peak_bytes as f64 / f64::from(1 << 20),
            clean_after_s: clean_after,
        }
    }
}
