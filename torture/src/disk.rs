//! A disk that can be full: a small file system in memory, and a file that takes all that is left of it.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// Enough for a server, its standby, and what an episode leaves behind.
const OPTIONS: &str = "size=1g,mode=755";

pub struct Disk {
    path: PathBuf,
}

impl Disk {
    /// Only root can.
    pub fn mount(path: PathBuf) -> Result<Self> {
        std::fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(OPTIONS)).with_context(|| {
            format!("cannot mount a file system in {}: leave out the fault `disk`", path.display())
        })?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes all that is left, until what it returns is dropped.
    pub async fn fill(&self) -> Result<Ballast> {
        let path = self.path.join("ballast");
        tokio::task::spawn_blocking(move || Ballast::write(path)).await?
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Whoever still has a file open there may keep it; nobody finds it any more.
        umount2(&self.path, MntFlags::MNT_DETACH).ok();
    }
}

/// What fills a disk; dropped, it leaves room again.
pub struct Ballast {
    path: PathBuf,
}

impl Ballast {
    fn write(path: PathBuf) -> Result<Self> {
        let ballast = Ballast { path: path.clone() };
        let mut file = File::create(path)?;
        for size in [1 << 20, 4096] {
            let piece = vec![0; size];
            loop {
                match file.write_all(&piece) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error).context("cannot fill the disk"),
                }
            }
        }
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        std::fs::remove_file(&self.path).ok();
    }
}
