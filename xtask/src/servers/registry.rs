//! What `servers up` started, written down so that `down` and `status` find it.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::{
    faketime,
    home::{Home, check_own_folder},
};
use crate::{
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
};

const STOP_LIMIT: Duration = Duration::from_secs(10);
const FILE: &str = "servers.json";
/// How deep below a folder for temporary files a test may have put the folder of its `servers up`.
const SEARCH_DEPTH: u32 = 4;

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
    /// The name of its place in the servers' home.
    pub place: String,
}

impl Record {
    pub fn new(database: Database, version: &str, pid: u32, port: u16, url: String, place: String) -> Self {
        let started = start_time(pid).unwrap_or_default();
        Self { database, version: version.to_owned(), pid, started, port, url, place }
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
            interrupt::send(self.pid, if patient { self.database.stop_signal() } else { Signal::SIGKILL });
            if asked.elapsed() > STOP_LIMIT * 2 {
                return Err(Failure::Failed(format!("{} (pid {}) does not end", self.database, self.pid)));
            }
            sleep(Duration::from_millis(20));
        }
        faketime::clear_away_after(self.pid);
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

/// What `servers up` started and `down` has not yet stopped.
pub fn read() -> Result<Vec<Record>> {
    read_in(&Home::permanent_path())
}

fn read_in(folder: &Path) -> Result<Vec<Record>> {
    let path = folder.join(FILE);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.or_cannot(|| format!("read {}", path.display()))?,
    };
    check_own_folder(folder)?;
    serde_json::from_str(&text).or_cannot(|| format!("understand {} (remove it)", path.display()))
}

pub fn write(records: &[Record]) -> Result<()> {
    let path = Home::permanent_path().join(FILE);
    let draft = path.with_extension("draft");
    let text = serde_json::to_string_pretty(records).or_cannot(|| "write down the servers".to_owned())?;
    // Whole or not at all: whoever is killed in the middle must not leave half a file.
    fs::write(&draft, text).or_cannot(|| format!("write {}", draft.display()))?;
    fs::rename(&draft, &path).or_cannot(|| format!("write {}", path.display()))
}

/// Stops every server that was written down anywhere below `folder`.
pub fn stop_all_below(folder: &Path) {
    let mut folders: Vec<(PathBuf, u32)> = vec![(folder.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for record in read_in(&folder).unwrap_or_default() {
            record.stop().ok();
        }
        if depth < SEARCH_DEPTH {
            let below = fs::read_dir(&folder).into_iter().flatten().flatten();
            let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
            folders.extend(below.filter(is_folder).map(|entry| (entry.path(), depth + 1)));
        }
    }
}
