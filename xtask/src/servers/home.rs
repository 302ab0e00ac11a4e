//! The folder that servers live in, and the unprivileged user they live there as.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use crate::failure::{Context, Failure, Result};

/// Others may pass through, so that the unprivileged user reaches its own folder, and see nothing.
const PASS_THROUGH: u32 = 0o711;

/// A temporary one's name says which process owns it, so that what a killed one left behind can be told apart.
const TEMPORARY_PREFIX: &str = "posthaste-run-";

/// A folder for servers, with one folder each.
pub struct Home {
    path: PathBuf,
    // Removes the folder when dropped.
    _temporary: Option<TempDir>,
    // Keeps another `up` or `down` away until dropped.
    _locked: Option<File>,
}

impl Home {
    /// One that is removed when dropped.
    pub fn temporary() -> Result<Self> {
        remove_abandoned();
        let folder = tempfile::Builder::new()
            .prefix(&format!("{TEMPORARY_PREFIX}{}-", std::process::id()))
            .permissions(fs::Permissions::from_mode(PASS_THROUGH))
            .tempdir()
            .or_cannot(|| format!("make a folder in {}", std::env::temp_dir().display()))?;
        Ok(Self { path: folder.path().to_owned(), _temporary: Some(folder), _locked: None })
    }

    /// The one for `servers up`: one for each user of this machine, and it stays. One command at a time holds it.
    pub fn permanent() -> Result<Self> {
        let path = Self::permanent_path();
        make_own_folder(&path)?;
        let locked = File::open(&path).or_cannot(|| format!("open {}", path.display()))?;
        locked.try_lock().map_err(|_| {
            Failure::CannotRun(
                "another `cargo xtask servers` command is under way: wait until it is done".to_owned(),
            )
        })?;
        Ok(Self { path, _temporary: None, _locked: Some(locked) })
    }

    pub fn permanent_path() -> PathBuf {
        std::env::temp_dir().join(format!("posthaste-servers-{}", geteuid()))
    }

    pub fn remove_permanent() -> Result<()> {
        let path = Self::permanent_path();
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).or_cannot(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// A fresh folder that belongs to the unprivileged user.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.path.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).or_cannot(|| format!("remove {}", folder.display()))?;
        }
        fs::create_dir(&folder).or_cannot(|| format!("make {}", folder.display()))?;
        if let Some(user) = unprivileged_user()? {
            chown(&folder, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .or_cannot(|| format!("give {} to {}", folder.display(), user.name))?;
        }
        Ok(folder)
    }

    /// A folder for the temporary files of whoever uses the servers.
    pub fn scratch(&self) -> Result<PathBuf> {
        let folder = self.path.join("scratch");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(PASS_THROUGH)
            .create(&folder)
            .or_cannot(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }
}

/// Makes a folder that only we can write to, or accepts one that is there already if it is just that: its name can
/// be guessed and the folder above it is everybody's.
pub fn make_own_folder(path: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(PASS_THROUGH).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => check_own_folder(path),
        Err(error) => Err(error).or_cannot(|| format!("make {}", path.display())),
    }
}

pub fn check_own_folder(path: &Path) -> Result<()> {
    let found = fs::symlink_metadata(path).or_cannot(|| format!("look at {}", path.display()))?;
    if found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(Failure::CannotRun(format!(
        "{} is not a folder of yours alone; remove it, or set TMPDIR",
        path.display()
    )))
}

/// The user that servers run as when we are root; none when we are not, for then they run as us.
pub fn unprivileged_user() -> Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let nobody = User::from_name("nobody").or_cannot(|| "look up the user nobody".to_owned())?;
    nobody
        .map(Some)
        .ok_or_else(|| Failure::CannotRun("there is no user nobody here to run servers as".to_owned()))
}

/// Removes the folders of processes that were killed before they could. Their servers ended with them.
fn remove_abandoned() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(TEMPORARY_PREFIX)?.split('-').next()?.parse().ok());
        let ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if owner.is_some_and(|pid: u32| ours && !Path::new(&format!("/proc/{pid}")).exists()) {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}
