//! libfaketime, by which a server's clock can be set while it runs: from the distribution's package.

use std::{ffi::OsString, path::PathBuf};

use super::apt;
use crate::failure::{Failure, Result};

/// Names the file that says how far a server's clock is ahead, to those who start one.
pub const CLOCK_VARIABLE: &str = "POSTHASTE_SERVER_CLOCK";
/// Names the library.
pub const LIBRARY_VARIABLE: &str = "POSTHASTE_FAKETIME";
/// For programs with threads. Debian keeps it in a folder of each architecture.
const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

fn installed() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    folders.map(|folder| folder.join(LIBRARY)).find(|library| library.is_file())
}

/// The library, installed first if it is missing and can be.
pub fn locate() -> Result<PathBuf> {
    if let Some(library) = std::env::var_os(LIBRARY_VARIABLE) {
        return Ok(library.into());
    }
    if let Some(library) = installed() {
        return Ok(library);
    }
    apt::install("libfaketime", &["libfaketime"], LIBRARY_VARIABLE)?;
    installed().ok_or_else(|| {
        Failure::CannotRun(format!("apt-get installed libfaketime, but there is no {LIBRARY}"))
    })
}

/// What a server is started through if its clock is to be ours. Whoever becomes another user must not have the library loaded before:
/// what it shares with its children would not be theirs.
pub fn prefix() -> Vec<OsString> {
    let (Some(clock), Some(library)) = (std::env::var_os(CLOCK_VARIABLE), std::env::var_os(LIBRARY_VARIABLE))
    else {
        return Vec::new();
    };
    let set = |name: &str, value: OsString| {
        let mut set = OsString::from(format!("{name}="));
        set.push(value);
        set
    };
    vec![
        "env".into(),
        set("LD_PRELOAD", library),
        set("FAKETIME_TIMESTAMP_FILE", clock),
        "FAKETIME_NO_CACHE=1".into(),
        "DONT_FAKE_MONOTONIC=1".into(),
    ]
}

/// Removes what the library leaves in shared memory for a server that was killed.
pub fn clear_away_after(pid: u32) {
    for kind in ["faketime_shm", "sem.faketime_sem"] {
        // Not there if it ended well, or with the clock of everybody.
        std::fs::remove_file(format!("/dev/shm/{kind}_{pid}")).ok();
    }
}
