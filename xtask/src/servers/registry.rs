//! What `servers up` started, written down so that `down` and `status` find it.

use std::{fs, io::ErrorKind, path::PathBuf, thread::sleep, time::Duration, time::Instant};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{
    Engine,
    home::{Home, check_own_folder},
};
use crate::{
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
};

const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A server that is or was running.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    pub database: Database,
    pub version: String,
    pub pid: u32,
    /// When the process started, in the kernel's count: a process id alone is given out again.
    started: u64,
    pub port: u16,
    pub url: String,
    stop_signal: i32,
}

impl Record {
    pub(super) fn of(engine: &dyn Engine, pid: u32, port: u16) -> Self {
        Self {
            database: engine.database(),
            version: engine.version().to_owned(),
            pid,
            started: start_time(pid).unwrap_or_default(),
            port,
            url: engine.url(port),
            stop_signal: engine.stop_signal() as i32,
        }
    }

    pub fn stop_signal(&self) -> Signal {
        Signal::try_from(self.stop_signal).unwrap_or(Signal::SIGKILL)
    }

    /// Whether the very process that was started is still running.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.started)
    }

    /// Ends the process, if it is still the one that was started.
    pub fn stop(&self) -> Result<()> {
        let asked = Instant::now();
        while self.is_alive() {
            let patient = asked.elapsed() < STOP_LIMIT;
            interrupt::send(self.pid, if patient { self.stop_signal() } else { Signal::SIGKILL });
            if asked.elapsed() > STOP_LIMIT * 2 {
                return Err(Failure::Failed(format!("{} (pid {}) does not end", self.database, self.pid)));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// When a process started; none if there is none, or only its remains.
fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the fields after it are state (3rd) … start time (22nd).
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    if fields.next()? == "Z" {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

fn path() -> PathBuf {
    Home::permanent_path().join("servers.json")
}

/// What `servers up` started and `down` has not yet stopped.
pub fn read() -> Result<Vec<Record>> {
    let path = path();
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.or_cannot(|| format!("read {}", path.display()))?,
    };
    check_own_folder(&Home::permanent_path())?;
    serde_json::from_str(&text).or_cannot(|| format!("understand {} (remove it)", path.display()))
}

pub fn write(records: &[Record]) -> Result<()> {
    let path = path();
    let text = serde_json::to_string_pretty(records).or_cannot(|| "write down the servers".to_owned())?;
    fs::write(&path, text).or_cannot(|| format!("write {}", path.display()))
}
