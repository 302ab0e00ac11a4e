//! A run: a server, a proxy before it, and episode after episode until there was enough.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use sqlx::Pool;

use crate::{
    Options, System,
    clock::{now, seconds},
    database::Ground,
    disk::Disk,
    episode::{Episode, Stage},
    faketime::Clock,
    judge::{judge, silent_modes, without_excuse},
    proxy::Proxy,
    report::Report,
    schedule::{KILLS, Kind, Plan},
    server::Server,
};

/// If more than one message in so many came again because a process was slow, the outbox is.
const MOST_SELF_EXCUSED: u64 = 10;
/// How many things that processes could not do are told of an episode.
const MOST_COMPLAINTS: usize = 5;
/// Enough connections for the supervisor itself.
const CONNECTIONS: u32 = 4;

pub async fn run<DB: Ground>(options: &Options) -> Result<Report> {
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000));
    let (began, kinds) = (now(), options.kinds()?);
    // Whatever is wrong with what was asked for is said before anything is made.
    let plans = plans(options, seed, &kinds)?;
    let control = options.control()?;
    let scratch = tempfile::tempdir().context("cannot make a folder")?;
    let notes = Notes::open(&format!("{}-{seed}-", options.db.name()))?;
    let folder = notes.path();
    let folder = folder.as_path();
    let (system, db) = (options.system.name().to_owned(), options.db.name().to_owned());
    let mut report = Report { system, db, seed, ..Report::default() };

    // The server is run as another user, who must get there.
    std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755))?;
    let clock = Clock::new(scratch.path())?;
    let disk = match kinds.contains(&Kind::Disk) {
        true => Some(Disk::mount(scratch.path().join("disk"))?),
        false => None,
    };
    let place = disk.as_ref().map_or_else(|| scratch.path(), Disk::path);
    let server = match options.db.wire() {
        Some(_) => Some(Server::start(options.db.name(), place, &clock.file)?),
        None => None,
    };
    let (url, proxy) = match (&server, options.db.wire()) {
        (Some(server), Some(wire)) => {
            let (address, url) = (server.address()?, server.url());
            let proxy = Proxy::before(wire, address).await?;
            (url.replace(&address.to_string(), &proxy.address.to_string()), Some(proxy))
        }
        _ => (format!("sqlite://{}", place.join("torture.db").display()), None),
    };
    let pool = DB::pool(&server.as_ref().map_or_else(|| url.clone(), Server::url), CONNECTIONS).await?;
    let mut stage = Stage {
        pool: &pool,
        url: &url,
        server: server.as_ref(),
        proxy: proxy.as_ref(),
        clock: &clock,
        disk: disk.as_ref(),
        database: options.db.name(),
        control: control.as_deref(),
        folder,
        next_process: 1,
    };
    let deadline = options.seconds.map_or(u64::MAX, |limit| began + seconds(limit));
    for mut plan in plans {
        match options.replay {
            Some(_) => (stage.next_process, report.seed) = (plan.first_process, plan.seed),
            None => plan.first_process = stage.next_process,
        }
        std::fs::write(folder.join(format!("plan-{}.json", plan.number)), serde_json::to_vec_pretty(&plan)?)?;
        let mut episode = Episode::new(&mut stage, &plan)?;
        let played = episode.play(deadline).await;
        report.episodes += 1;
        report.counts.add(&episode.counts);
        report.kill_points.append(&mut episode.reached);
        report.oddities.append(&mut episode.oddities);
        let faults = match played {
            Ok(evidence) => {
                let verdict = judge(&evidence);
                if verdict.self_excused * MOST_SELF_EXCUSED > verdict.messages {
                    report.oddities.push(format!(
                        "{} of {} messages came again, and only the processes themselves know why",
                        verdict.self_excused, verdict.messages
                    ));
                }
                report.verdict.add(verdict);
                // One that the deadline cut short may not have come so far.
                let silent = if now() < deadline { silent_modes(&evidence) } else { Vec::new() };
                let silent = silent.into_iter().map(|mode| format!("nothing was delivered in {mode:?} mode"));
                report.oddities.extend(silent);
                report.oddities.extend(without_excuse(&evidence).take(MOST_COMPLAINTS).map(str::to_owned));
                evidence.faults
            }
            Err(error) => {
                report
                    .oddities
                    .push(format!("episode {} could not be played to its end: {error:#}", plan.number));
                let complaints = episode.complaints.into_iter().rev().take(MOST_COMPLAINTS);
                report.oddities.extend(complaints.map(|complaint| complaint.what));
                episode.faults
            }
        };
        report.seconds = (now() - began) / seconds(1);
        progress(&plan, &report);
        if report.is_good()
            && let Err(error) = episode_is_over::<DB>(&pool, &plan).await
        {
            report.oddities.push(format!("what is left of it could not be removed: {error:#}"));
        }
        if !report.is_good() {
            std::fs::write(folder.join("faults.json"), serde_json::to_vec_pretty(&faults)?)?;
            if let Err(error) = keep::<DB>(&pool, server.as_ref(), place, folder).await {
                report.oddities.push(format!("the database could not be kept: {error:#}"));
            }
            break;
        }
        std::fs::remove_dir_all(folder.join(format!("episode-{}", plan.number))).ok();
        if now() >= deadline {
            break;
        }
    }
    report.ok = report.is_good();
    pool.close().await;
    if !report.ok {
        report.kept = Some(notes.keep_in(&options.folder).display().to_string());
    }
    Ok(report)
}

/// Those that were written down; or as many as it takes, drawn from the seed.
fn plans(options: &Options, seed: u64, kinds: &[Kind]) -> Result<Box<dyn Iterator<Item = Plan>>> {
    let is_plain = options.system != System::Posthaste;
    if let Some(file) = &options.replay {
        let text = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        let plan: Plan =
            serde_json::from_slice(&text).with_context(|| format!("{} is no plan", file.display()))?;
        if is_plain && (!plan.shape.is_plain || plan.points) {
            bail!(
                "{} is a plan for posthaste, and asks for what {} does not have",
                file.display(),
                options.system.name()
            );
        }
        plan.check().with_context(|| format!("{} cannot be played", file.display()))?;
        let kinds = plan.steps.iter().map(|step| step.deed.kind());
        if let Some(kind) = kinds.into_iter().find(|kind| !options.db.can_have(*kind)) {
            bail!(
                "{} is a plan for another database: {} cannot have {}",
                file.display(),
                options.db.name(),
                kind.name()
            );
        }
        return Ok(Box::new(std::iter::once(plan)));
    }
    let (modes, kinds) = (options.modes(), kinds.to_vec());
    let count = match options.kills {
        // Every mode has a turn.
        kills if options.seconds.is_none() => {
            kills.unwrap_or_default().div_ceil(u32::try_from(KILLS)?).max(u32::try_from(modes.len())?)
        }
        _ => u32::MAX,
    };
    Ok(Box::new((0..count).map(move |number| {
        let mut plan = Plan::draw(seed, number, &modes, &kinds);
        plan.shape.is_plain = is_plain;
        plan
    })))
}

/// Nothing is left of it that would make the next one longer.
async fn episode_is_over<DB: Ground>(pool: &Pool<DB>, plan: &Plan) -> Result<()> {
    // Another outbox has no tables of its own for each.
    if !plan.shape.is_plain {
        posthaste::drop_tables(pool, &plan.tables()?).await?;
    }
    DB::flush(pool).await
}

fn progress(plan: &Plan, report: &Report) {
    let modes: Vec<_> =
        plan.shape.queues.iter().map(|(mode, partitions)| format!("{mode:?} of {partitions}")).collect();
    let (counts, verdict) = (&report.counts, &report.verdict);
    eprintln!(
        "torture: {} s, episode {} ({}): {} messages, {} kills, {} crashes, {} cuts, {} pauses; {}",
        report.seconds,
        plan.number,
        modes.join(", ").to_lowercase(),
        verdict.messages,
        counts.kills,
        counts.crashes,
        counts.cuts,
        counts.pauses,
        if report.is_good() { "all well" } else { "something is wrong" },
    );
}

/// Where plans and histories are written, in memory if there is a place for it: they are synced all the time, and no power fails here.
struct Notes(tempfile::TempDir);

impl Notes {
    fn open(prefix: &str) -> Result<Self> {
        let folder =
            std::env::var_os("POSTHASTE_TEST_SQLITE_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from);
        let made = tempfile::Builder::new().prefix(prefix).tempdir_in(&folder);
        Ok(Self(made.with_context(|| format!("cannot make a folder in {}", folder.display()))?))
    }

    fn path(&self) -> PathBuf {
        self.0.path().to_owned()
    }

    /// Keeps them there; or where they are, if that cannot be. Returns where.
    fn keep_in(self, folder: &Path) -> PathBuf {
        let kept = std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))
            .and_then(|()| copy(self.0.path(), folder));
        match kept {
            Ok(()) => folder.join(self.0.path().file_name().unwrap_or_default()),
            Err(error) => {
                eprintln!("torture: {error:#}");
                self.0.keep()
            }
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if !std::process::Command::new("cp").arg("-a").arg(from).arg(to).status()?.success() {
        bail!("{} could not be copied to {}", from.display(), to.display());
    }
    Ok(())
}

/// Keeps the database beside the histories. A server is stopped first: the files of one that runs make no sense.
async fn keep<DB: Ground>(
    pool: &Pool<DB>,
    server: Option<&Server>,
    place: &Path,
    folder: &Path,
) -> Result<()> {
    match server {
        Some(server) => server.stop().await?,
        None => DB::flush(pool).await.unwrap_or_default(),
    }
    let from: PathBuf = server.map_or_else(|| place.to_owned(), |server| server.folder.clone());
    copy(&from, &folder.join("database"))
}
