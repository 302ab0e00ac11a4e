//! The second process, which is killed about every second and started anew.

use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::Instant,
};

use super::worker::{PREFIX_VARIABLE, READY, SCHEMA_VARIABLE, URL_VARIABLE};
use crate::failure::Failure;

/// How long it lives, if it has delivered anything by then: whose death nobody notices shows nothing …
const LIFE: Duration = Duration::from_secs(1);
/// … and in any case.
const LONGEST_LIFE: Duration = Duration::from_secs(3);
/// How long it may take to start, on a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where it works.
#[derive(Debug, Clone)]
pub struct Workplace {
    pub url: String,
    pub prefix: String,
    pub schema: Option<String>,
    pub ledger: PathBuf,
}

pub struct Second {
    workplace: Workplace,
    child: Child,
    /// It ends by itself when this is closed, so that it does not outlive us.
    _stdin: Option<ChildStdin>,
    began: Instant,
    /// How many deliveries those before it have made, and whether it has made any itself.
    before: u64,
    has_delivered: bool,
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
        let began = Instant::now();
        Ok(Self { workplace, child, _stdin: stdin, began, before: 0, has_delivered: false, kills: 0 })
    }

    /// Tells it how many deliveries there are by second processes, all of them together.
    pub const fn has_seen(&mut self, deliveries: u64) {
        self.has_delivered = deliveries > self.before;
    }

    /// Waits until it is time to kill it. It must not end before, unless somebody else has killed it. May be dropped and called
    /// again.
    pub async fn lives(&mut self) -> Result<(), Failure> {
        let dies = self.began + if self.has_delivered { LIFE } else { LONGEST_LIFE };
        tokio::select! {
            () = tokio::time::sleep_until(dies) => Ok(()),
            status = self.child.wait() => {
                if !was_killed(status?) {
                    return Err(ended(&mut self.child).await);
                }
                // What kills it at once would kill the next one, too.
                tokio::time::sleep_until(self.began + LIFE).await;
                Ok(())
            }
        }
    }

    /// Kills it, with no chance to do anything about it.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            None => {
                self.child.kill().await?;
                self.kills += 1;
            }
            Some(status) if was_killed(status) => {}
            Some(_) => return Err(ended(&mut self.child).await),
        }
        Ok(())
    }

    /// Starts another, and does not wait for it; given how many deliveries there are by those before it.
    pub fn replace(&mut self, before: u64) -> Result<(), Failure> {
        (self.child, self._stdin) = spawn(&self.workplace)?;
        (self.began, self.before, self.has_delivered) = (Instant::now(), before, false);
        Ok(())
    }
}

fn spawn(workplace: &Workplace) -> Result<(Child, Option<ChildStdin>), Failure> {
    let cannot = |error| Failure::Problem(format!("the second worker process cannot be started: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
    command.arg("demo-worker").arg(&workplace.ledger);
    command.env(URL_VARIABLE, &workplace.url).env(PREFIX_VARIABLE, &workplace.prefix);
    command.env(SCHEMA_VARIABLE, workplace.schema.as_deref().unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C in a terminal is meant for us alone.
    #[cfg(unix)]
    command.process_group(0);
    let mut child = command.spawn().map_err(cannot)?;
    let stdin = child.stdin.take();
    Ok((child, stdin))
}

/// Whether it ended by a signal, and so has nothing to say.
#[cfg(unix)]
fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status).is_some()
}

/// Whether it was ended by somebody else cannot be told.
#[cfg(not(unix))]
const fn was_killed(_status: ExitStatus) -> bool {
    false
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
