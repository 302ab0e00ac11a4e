//! A server's process: started as an unprivileged user, awaited until it answers, stopped when dropped.

use std::{
    ffi::OsString,
    fs::{self, File},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::geteuid};

use super::{
    Engine, faketime,
    home::{Place, unprivileged_user},
    ports::{Port, is_free},
    registry::Record,
};
use crate::{
    failure::{Context, Failure, Result},
    interrupt,
};

const START_LIMIT: Duration = Duration::from_secs(90);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Somebody may take the port between our look and the server's start; then another one is tried.
const PORT_TRIES: u32 = 3;

/// How long a server lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    /// No longer than this process, however that ends.
    Mine,
    /// Until `cargo xtask servers down`.
    UntilDown,
}

/// A running server; dropping it stops it.
pub struct Server {
    pub record: Record,
    child: Option<Child>,
}

impl Server {
    /// Starts a server; `spawned` is told of each process before it is waited for.
    pub fn start(
        engine: &dyn Engine,
        place: &Place,
        port: Port,
        lifetime: Lifetime,
        spawned: &mut dyn FnMut(&Record) -> Result<()>,
    ) -> Result<Self> {
        let mut tries = 0;
        loop {
            tries += 1;
            let number = port.pick()?;
            let server = Self::spawn(engine, place, number, lifetime)?;
            spawned(&server.record)?;
            match server.wait_until_ready(engine, place) {
                Err(Failure::CannotRun(_))
                    if tries < PORT_TRIES && matches!(port, Port::Any) && !is_free(number) => {}
                done => return done,
            }
        }
    }

    fn spawn(engine: &dyn Engine, place: &Place, port: u16, lifetime: Lifetime) -> Result<Self> {
        interrupt::check()?;
        let database = engine.database();
        let (log, errors) = create_log(place)?;
        let death_signal = (lifetime == Lifetime::Mine).then(|| database.stop_signal());
        let child = unprivileged(&engine.command(place, port), death_signal)?
            .current_dir(&place.theirs)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Ctrl-C on the terminal is for us; we stop the server when the tests have ended.
            .process_group(0)
            .spawn()
            .or_cannot(|| format!("start {database}"))?;
        let record =
            Record::new(database, engine.version(), child.id(), port, engine.url(port), place.name());
        Ok(Self { record, child: Some(child) })
    }

    /// Its own log says when it is ready: what answers on its port may be somebody else's server.
    fn wait_until_ready(mut self, engine: &dyn Engine, place: &Place) -> Result<Self> {
        let (database, started) = (self.record.database, Instant::now());
        let log = || {
            fs::read(place.log())
                .map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned())
        };
        while !log().contains(engine.ready_line()) {
            interrupt::check()?;
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                return Err(Failure::CannotRun(format!(
                    "{database} did not start ({status}): {}",
                    complaint(&log())
                )));
            }
            if started.elapsed() > START_LIMIT {
                let why = complaint(&log());
                return Err(Failure::CannotRun(format!(
                    "{database} is not ready after {START_LIMIT:?}: {why}"
                )));
            }
            sleep(LOOK_AGAIN);
        }
        Ok(self)
    }

    /// Forgets the process, which then outlives this one.
    pub fn leave_running(mut self) {
        self.child = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            self.record.stop().ok();
            child.wait().ok();
        }
    }
}

fn create_log(place: &Place) -> Result<(File, File)> {
    let path = place.log();
    let log = File::create(&path).or_cannot(|| format!("make {}", path.display()))?;
    let clone = log.try_clone().or_cannot(|| format!("use {}", path.display()))?;
    Ok((log, clone))
}

/// The line of a log that tells most, for an error of one line: the first error, for the last is only "aborting".
fn complaint(log: &str) -> String {
    let telling = |line: &&str| ["ERROR", "FATAL", "error:"].iter().any(|word| line.contains(word));
    let line = log.lines().find(telling).or_else(|| log.lines().rfind(|line| !line.trim().is_empty()));
    line.unwrap_or("it said nothing").trim().to_owned()
}

/// A command that runs as the unprivileged user when we are root, and gets `death_signal` when we are gone.
fn unprivileged(command: &[OsString], death_signal: Option<Signal>) -> Result<Command> {
    let mut wrapped = Command::new("setpriv");
    if let Some(user) = unprivileged_user()? {
        wrapped
            .args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)])
            .arg("--clear-groups");
    }
    if let Some(signal) = death_signal {
        wrapped.arg("--pdeathsig").arg(signal.as_str().trim_start_matches("SIG"));
    } else if !geteuid().is_root() {
        // setpriv wants to be asked for something.
        wrapped.arg("--no-new-privs");
    }
    wrapped.arg("--").args(faketime::prefix()).args(command);
    // A server has no use for our variables, but for the zone that it is to be in, and some for a home it can read.
    let kept = std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "TZ");
    wrapped.env_clear().envs(kept).env("LC_ALL", "C").env("HOME", "/");
    Ok(wrapped)
}

/// An error unless the unprivileged user can get at `folder`.
pub fn check_reachable(folder: &Path) -> Result<()> {
    let command = ["test".into(), "-w".into(), folder.as_os_str().to_owned()];
    if interrupt::wait(&mut unprivileged(&command, Some(Signal::SIGKILL))?)?.success() {
        return Ok(());
    }
    Err(Failure::CannotRun(format!(
        "the user that servers run as cannot reach {}: set TMPDIR to a folder that everybody may pass through",
        folder.display()
    )))
}

/// Runs a preparing command as the unprivileged user; what it complained of is the error.
pub fn prepare(command: &[OsString], place: &Place, doing: &str) -> Result<()> {
    let (log, errors) = create_log(place)?;
    let mut command = unprivileged(command, Some(Signal::SIGKILL))?;
    let status =
        interrupt::wait(command.current_dir(&place.theirs).stdin(Stdio::null()).stdout(log).stderr(errors))?;
    if status.success() {
        return Ok(());
    }
    let log = fs::read(place.log()).unwrap_or_default();
    Err(Failure::CannotRun(format!(
        "cannot {doing} ({status}): {}",
        complaint(&String::from_utf8_lossy(&log))
    )))
}
