//! The clock of the database, which is ours to set: libfaketime reads it from a file. SQLite has the clock of whoever asks.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

/// A clock, as a file that says how far it is ahead.
pub struct Clock {
    pub file: PathBuf,
    library: OsString,
}

impl Clock {
    pub fn new(folder: &Path) -> Result<Self> {
        let library = std::env::var_os("POSTHASTE_FAKETIME")
            .context("run `cargo xtask torture`, which finds libfaketime")?;
        let clock = Self { file: folder.join("clock"), library };
        clock.set(0)?;
        Ok(clock)
    }

    /// Sets it so many seconds ahead of the machine's.
    pub fn set(&self, ahead: i64) -> Result<()> {
        // In one go: whoever reads it meanwhile must not find it empty.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{ahead:+}\n"))
            .with_context(|| format!("cannot write {}", next.display()))?;
        std::fs::rename(&next, &self.file).context("cannot set the clock")
    }

    /// What a process is started with to have it.
    pub fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.clone().into_os_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }
}

/// Removes what the library leaves in shared memory for a process that is killed.
pub fn clear_away_after(process: u32) {
    for kind in ["faketime_shm", "sem.faketime_sem"] {
        // Not there if it ended well.
        std::fs::remove_file(format!("/dev/shm/{kind}_{process}")).ok();
    }
}
