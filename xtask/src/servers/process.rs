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
    Engine,
    home::unprivileged_user,
    ports::{Port, is_free},
    registry::Record,
};
use crate::{
    failure::{Context, Failure, Result},
    interrupt,
};

const START_LIMIT: Duration = Duration::from_secs(90);
const STOP_LIMIT: Duration = Duration::from_secs(10);
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
    pub fn start(engine: &dyn Engine, folder: &Path, port: Port, lifetime: Lifetime) -> Result<Self> {
        for _ in 1..PORT_TRIES {
            let number = port.pick()?;
            match Self::start_on(engine, folder, number, lifetime) {
                Err(Failure::CannotRun(_)) if matches!(port, Port::Any) && !is_free(number) => {}
                done => return done,
            }
        }
        Self::start_on(engine, folder, port.pick()?, lifetime)
    }

    fn start_on(engine: &dyn Engine, folder: &Path, port: u16, lifetime: Lifetime) -> Result<Self> {
        interrupt::check()?;
        let database = engine.database();
        let log_path = folder.join("server.log");
        let log = File::create(&log_path).or_cannot(|| format!("make {}", log_path.display()))?;
        let errors = log.try_clone().or_cannot(|| format!("use {}", log_path.display()))?;
        let death_signal = (lifetime == Lifetime::Mine).then(|| engine.stop_signal());
        let child = unprivileged(&engine.command(folder, port), death_signal)?
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            // Ctrl-C on the terminal is for us; we stop the server when the tests have ended.
            .process_group(0)
            .spawn()
            .or_cannot(|| format!("start {database}"))?;
        let record = Record::of(engine, child.id(), port);
        let mut server = Self { record, child: Some(child) };
        server.wait_until_ready(engine, folder, &log_path)?;
        Ok(server)
    }

    fn wait_until_ready(&mut self, engine: &dyn Engine, folder: &Path, log: &Path) -> Result<()> {
        let (database, started) = (self.record.database, Instant::now());
        while !engine.is_ready(folder, self.record.port) {
            interrupt::check()?;
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                let why = last_line(log);
                return Err(Failure::CannotRun(format!("{database} did not start ({status}): {why}")));
            }
            if started.elapsed() > START_LIMIT {
                let why = last_line(log);
                return Err(Failure::CannotRun(format!(
                    "{database} does not answer after {START_LIMIT:?}: {why}"
                )));
            }
            sleep(LOOK_AGAIN);
        }
        // What answered may be somebody else's server on the same port, ours having given up.
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        ended.map_or(Ok(()), |status| {
            Err(Failure::CannotRun(format!("{database} did not stay up ({status})")))
        })
    }

    /// Forgets the process, which then outlives this one.
    pub fn leave_running(mut self) {
        self.child = None;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        interrupt::send(child.id(), self.record.stop_signal());
        let asked = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if asked.elapsed() > STOP_LIMIT {
                child.kill().ok();
            }
            sleep(LOOK_AGAIN);
        }
    }
}

/// The last line of a log that says something, for an error of one line.
fn last_line(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let telling = |line: &&str| line.contains("ERROR") || line.contains("FATAL");
    let line =
        text.lines().rev().find(telling).or_else(|| text.lines().rfind(|line| !line.trim().is_empty()));
    line.unwrap_or("it said nothing").trim().to_owned()
}

/// A command that runs as the unprivileged user when we are root, and gets `death_signal` when we are gone.
pub fn unprivileged(command: &[OsString], death_signal: Option<Signal>) -> Result<Command> {
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
    wrapped.arg("--").args(command);
    // A server has no use for our variables, and some for a home it can read.
    wrapped
        .env_clear()
        .envs(std::env::vars_os().filter(|(name, _)| name == "PATH"))
        .env("LC_ALL", "C")
        .env("HOME", "/");
    Ok(wrapped)
}

/// Runs a preparing command as the unprivileged user; its last words are the error.
pub fn prepare(command: &[OsString], folder: &Path, doing: &str) -> Result<()> {
    let log_path = folder.join("prepare.log");
    let log = File::create(&log_path).or_cannot(|| format!("make {}", log_path.display()))?;
    let errors = log.try_clone().or_cannot(|| format!("use {}", log_path.display()))?;
    let mut command = unprivileged(command, Some(Signal::SIGKILL))?;
    command.current_dir(folder).stdin(Stdio::null()).stdout(log).stderr(errors);
    let status = interrupt::wait(&mut command)?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::CannotRun(format!("cannot {doing} ({status}): {}", last_line(&log_path))))
}
