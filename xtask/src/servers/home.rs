//! The folder that servers live in, and the unprivileged user they live there as.

use std::{
    fs::{self, File},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
};

use nix::unistd::{User, geteuid};
use tempfile::TempDir;

use super::{process, registry};
use crate::{
    database::Database,
    failure::{Context, Failure, Result},
};

/// Others may pass through, so that the unprivileged user reaches its own folder, and see nothing.
const PASS_THROUGH: u32 = 0o711;
const TEMPORARY_PREFIX: &str = "posthaste-run-";
/// Where Linux keeps files in memory.
const MEMORY: &str = "/dev/shm";
/// The log of a server.
const LOG: &str = "log";

/// A folder for servers, with a place for each.
pub struct Home {
    path: PathBuf,
    /// Held as long as the folder is in use: by one `up` or `down` at a time, or by the run that made it.
    _locked: File,
    /// Removes the folder when dropped.
    temporary: Option<TempDir>,
    _memory_locked: Option<File>,
    /// A folder in memory beside it, where there is such a thing.
    in_memory: Option<TempDir>,
}

/// Where one server lives. Root writes only to `ours`: in `theirs` the unprivileged user could lead it astray.
pub struct Place {
    ours: PathBuf,
    pub theirs: PathBuf,
    log: &'static str,
}

impl Place {
    /// What it is called in its home.
    pub fn name(&self) -> String {
        self.ours.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub fn log(&self) -> PathBuf {
        self.ours.join(self.log)
    }

    /// The same one, for a program beside the server: that has a log of its own.
    pub fn beside(&self) -> Self {
        Self { ours: self.ours.clone(), theirs: self.theirs.clone(), log: "log-beside" }
    }

    pub fn start_file(&self) -> PathBuf {
        self.ours.join("start.sql")
    }

    pub fn data(&self) -> PathBuf {
        self.theirs.join("data")
    }
}

impl Home {
    /// One that is removed when dropped.
    pub fn temporary() -> Result<Self> {
        remove_abandoned(&std::env::temp_dir());
        remove_abandoned(Path::new(MEMORY));
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMPORARY_PREFIX).permissions(fs::Permissions::from_mode(PASS_THROUGH));
        let (folder, locked) = locked_folder(&builder, &std::env::temp_dir())?;
        let (in_memory, memory_locked) = locked_folder(&builder, Path::new(MEMORY)).ok().unzip();
        let path = folder.path().to_owned();
        Ok(Self { path, _locked: locked, temporary: Some(folder), _memory_locked: memory_locked, in_memory })
    }

    /// The one for `servers up`: one for each user of this machine, and it stays. One command at a time holds it.
    pub fn permanent() -> Result<Self> {
        let path = Self::permanent_path();
        make_own_folder(&path)?;
        Ok(Self { _locked: lock(&path)?, path, temporary: None, _memory_locked: None, in_memory: None })
    }

    pub fn permanent_path() -> PathBuf {
        std::env::temp_dir().join(format!("posthaste-servers-{}", geteuid()))
    }

    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path).or_cannot(|| format!("remove {}", self.path.display()))
    }

    /// A fresh place for a server.
    pub fn place(&self, database: Database) -> Result<Place> {
        self.clear(database.name())?;
        self.place_named(database.name())
    }

    /// The place of a server that has been there before, with its data.
    pub fn existing_place(&self, name: &str) -> Place {
        let ours = self.path.join(name);
        Place { theirs: ours.join("server"), ours, log: LOG }
    }

    pub fn place_named(&self, name: &str) -> Result<Place> {
        let ours = self.path.join(name);
        let theirs = ours.join("server");
        make_own_folder(&ours)?;
        fs::create_dir(&theirs).or_cannot(|| format!("make {}", theirs.display()))?;
        if let Some(user) = unprivileged_user()? {
            chown(&theirs, Some(user.uid.as_raw()), Some(user.gid.as_raw()))
                .or_cannot(|| format!("give {} to {}", theirs.display(), user.name))?;
        }
        process::check_reachable(&theirs)?;
        Ok(Place { ours, theirs, log: LOG })
    }

    /// Removes a server's place, if there is one.
    pub fn clear(&self, name: &str) -> Result<()> {
        let ours = self.path.join(name);
        match fs::remove_dir_all(&ours) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).or_cannot(|| format!("remove {}", ours.display()))
            }
            _ => Ok(()),
        }
    }

    /// A folder for databases that are files: they are thrown away, so the disk need not hear of them. What is measured on them
    /// then does not depend on what else is written to it.
    pub fn for_files(&self) -> Option<&Path> {
        self.in_memory.as_ref().map(TempDir::path)
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

impl Drop for Home {
    fn drop(&mut self) {
        if self.temporary.is_some() {
            // A command that was killed may have had servers of its own in there.
            registry::stop_all_below(&self.path.join("scratch"));
        }
    }
}

/// A new folder, locked. Until it is locked, another run that removes abandoned ones may take it for one of them: then it is made
/// again.
fn locked_folder(builder: &tempfile::Builder<'_, '_>, parent: &Path) -> Result<(TempDir, File)> {
    for _ in 0..10 {
        let folder =
            builder.tempdir_in(parent).or_cannot(|| format!("make a folder in {}", parent.display()))?;
        if let Ok(locked) = lock(folder.path())
            && folder.path().exists()
        {
            return Ok((folder, locked));
        }
    }
    Err(Failure::CannotRun(format!("cannot lock a new folder in {}: set TMPDIR", parent.display())))
}

fn lock(folder: &Path) -> Result<File> {
    let locked = File::open(folder).or_cannot(|| format!("open {}", folder.display()))?;
    locked.try_lock().map_err(|_| {
        Failure::CannotRun(
            "another `cargo xtask servers` command is under way: wait until it is done".to_owned(),
        )
    })?;
    Ok(locked)
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

/// Removes the folders of runs that were killed before they could: nobody holds their lock any more. Their servers
/// ended with them.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let is_run =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY_PREFIX));
        if is_run
            && check_own_folder(&path).is_ok()
            && let Ok(_locked) = lock(&path)
        {
            registry::stop_all_below(&path.join("scratch"));
            fs::remove_dir_all(&path).ok();
        }
    }
}
