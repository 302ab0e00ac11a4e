//! The second process, which is killed every second and started anew.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::Instant,
};

use super::worker::{PREFIX_VARIABLE, READY, URL_VARIABLE};
use crate::failure::Failure;

/// How long it lives.
const LIFE: Duration = Duration::from_secs(1);
/// How long it may take to start, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where it works.
#[derive(Debug, Clone)]
pub struct Workplace {
    pub url: String,
    pub prefix: String,
    pub ledger: PathBuf,
}

pub struct Second {
    workplace: Workplace,
    child: Child,
    /// It ends by itself when this is closed, so that it does not outlive us.
    _stdin: Option<ChildStdin>,
    dies: Instant,
    pub kills: u64,
}

impl Second {
    /// Starts it, and waits until it is at work.
    pub async fn start(workplace: Workplace) -> Result<Self, Failure> {
        let (mut child, stdin) = spawn(&workplace)?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            let mut stdout = BufReader::new(stdout);
            tokio::time::timeout(PATIENCE, stdout.read_line(&mut line)).await.unwrap_or(Ok(0))?;
        }
        if line.trim_end() != READY {
            child.start_kill().ok();
            return Err(ended(&mut child).await);
        }
        Ok(Self { workplace, child, _stdin: stdin, dies: Instant::now() + LIFE, kills: 0 })
    }

    /// Waits until it is time to kill it. It must not end before. May be dropped and called again.
    pub async fn lives(&mut self) -> Result<(), Failure> {
        tokio::select! {
            () = tokio::time::sleep_until(self.dies) => Ok(()),
            _ = self.child.wait() => Err(ended(&mut self.child).await),
        }
    }

    /// Kills it, with no chance to do anything about it.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        self.child.kill().await?;
        self.kills += 1;
        Ok(())
    }

    /// Starts another, and does not wait for it.
    pub fn replace(&mut self) -> Result<(), Failure> {
        (self.child, self._stdin) = spawn(&self.workplace)?;
        self.dies = Instant::now() + LIFE;
        Ok(())
    }
}

fn spawn(workplace: &Workplace) -> Result<(Child, Option<ChildStdin>), Failure> {
    let cannot = |error| Failure::Problem(format!("the second worker process cannot be started: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.arg("demo-worker").arg(&workplace.ledger);
    command.env(URL_VARIABLE, &workplace.url).env(PREFIX_VARIABLE, &workplace.prefix);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C in a terminal is meant for us alone.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.spawn().map_err(cannot)?;
    let stdin = child.stdin.take();
    Ok((child, stdin))
}

/// It ended before its time; it has said why.
async fn ended(child: &mut Child) -> Failure {
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        let reading = stderr.read_to_string(&mut said);
        tokio::time::timeout(LIFE, reading).await.ok();
    }
    let why = said.trim().lines().last().unwrap_or("it said nothing").trim_start_matches("posthaste: ");
    Failure::Problem(format!("the second worker process ended by itself: {why}"))
}
