//! The processes of an episode: this program again, in another role; or a control, which runs another outbox.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste_torture_protocol::{AS_PROCESS, FAILED};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin, Command},
};

use crate::{
    circumstances::Circumstances,
    clock::now,
    faketime::{self, Clock},
    history::{self, Line},
};

pub struct Process {
    pub circumstances: Circumstances,
    child: Child,
    /// Its id, if its clock is ours.
    faked: Option<u32>,
    stdin: Option<ChildStdin>,
    pub started: u64,
    /// When it was last seen alive.
    pub seen: u64,
    pub is_paused: bool,
    has_begun: bool,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// As it was told to.
    Well,
    /// By SIGKILL.
    Killed,
    /// It could not do what it was for, and said so: the database was away.
    Failed,
    /// Otherwise, which nothing that is done to it explains.
    Otherwise(ExitStatus),
}

impl Process {
    /// Starts one, which is this program unless it is a control's; with a clock, if the database has that of whoever asks.
    pub async fn start(
        circumstances: Circumstances,
        control: Option<&Path>,
        clock: Option<&Clock>,
    ) -> Result<Self> {
        let program = match control {
            Some(control) => control.to_owned(),
            None => std::env::current_exe()?,
        };
        let errors = errors_of(&circumstances.history);
        let log =
            std::fs::File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        let mut child = Command::new(program)
            .arg(AS_PROCESS)
            // Handlers panic on purpose.
            .env("RUST_BACKTRACE", "0")
            .envs(clock.into_iter().flat_map(Clock::environment))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process")?;
        let mut stdin = child.stdin.take().context("it has no standard input")?;
        let mut line = serde_json::to_vec(&circumstances)?;
        line.push(b'\n');
        stdin.write_all(&line).await.context("the process did not listen")?;
        Ok(Self {
            circumstances,
            faked: clock.and(child.id()),
            child,
            stdin: Some(stdin),
            started: now(),
            seen: now(),
            is_paused: false,
            has_begun: false,
        })
    }

    pub fn number(&self) -> u32 {
        self.circumstances.process
    }

    /// The lease that it may leave behind.
    pub fn lease(&self) -> u64 {
        self.circumstances.setup.lease_ms * 1000
    }

    fn signal(&self, signal: Signal) {
        if let Some(id) = self.child.id().and_then(|id| i32::try_from(id).ok()) {
            kill(Pid::from_raw(id), signal).ok();
        }
    }

    pub fn pause(&mut self) {
        self.signal(Signal::SIGSTOP);
        self.is_paused = true;
    }

    pub fn resume(&mut self) {
        self.signal(Signal::SIGCONT);
        self.is_paused = false;
    }

    pub async fn kill(&mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill a process")
    }

    /// Tells it to stop, which is done when it has ended.
    pub fn ask_to_stop(&mut self) {
        self.stdin = None;
    }

    /// Whether it has started to do what it is for.
    pub fn is_ready(&mut self) -> Result<bool> {
        self.has_begun = self.has_begun || history::read(&self.circumstances.history)?.contains(&Line::Ready);
        Ok(self.has_begun)
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<End>> {
        let status = self.child.try_wait()?;
        if status.is_none() {
            self.seen = now();
        }
        Ok(status.map(end))
    }

    pub async fn wait(&mut self) -> Result<End> {
        Ok(end(self.child.wait().await?))
    }

    /// The kill point at which it killed itself, if it did.
    pub fn killed_at(&self) -> Result<Option<String>> {
        let lines = history::read(&self.circumstances.history)?;
        Ok(lines
            .into_iter()
            .find_map(|line| if let Line::KilledAt(point) = line { Some(point) } else { None }))
    }

    /// What it complained of last.
    pub fn complaint(&self) -> String {
        let errors = std::fs::read_to_string(errors_of(&self.circumstances.history)).unwrap_or_default();
        errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(id) = self.faked {
            self.signal(Signal::SIGKILL);
            faketime::clear_away_after(id);
        }
    }
}

fn end(status: ExitStatus) -> End {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(0), _) => End::Well,
        (Some(code), _) if code == i32::from(FAILED) => End::Failed,
        (_, Some(9)) => End::Killed,
        _ => End::Otherwise(status),
    }
}

fn errors_of(history: &Path) -> PathBuf {
    history.with_extension("errors")
}
