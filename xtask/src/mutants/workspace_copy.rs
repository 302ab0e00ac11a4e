//! A copy of the working tree, in which code may be broken: the user's own is only read.
//!
//! It is kept between runs, and only files that differ are written: cargo goes by their times, so little is built again.

use std::{
    collections::BTreeSet,
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
    process::Command,
};

use super::catalogue::Mutant;
use crate::failure::{Context, Failure, Result};

pub struct WorkspaceCopy {
    /// The tree, what is built of it, and what was said when it was tested.
    home: PathBuf,
    /// Two runs at once would break each other's tree.
    _lock: File,
}

impl WorkspaceCopy {
    /// Makes the copy, or makes it equal again to the tree as it is now: what is tracked, changed or not, and what is new and not
    /// ignored.
    pub fn refresh(root: &Path, home: &Path) -> Result<Self> {
        create_folder(home)?;
        let copy = Self { home: home.to_owned(), _lock: lock(&home.join("lock"))? };
        let tree = copy.tree();
        let files = files_of(root)?;
        for file in &files {
            let (from, to) = (root.join(file), tree.join(file));
            let text = fs::read(&from).or_cannot(|| format!("read {}", from.display()))?;
            if fs::read(&to).is_ok_and(|copied| copied == text) {
                continue;
            }
            create_folder(to.parent().unwrap_or(&tree))?;
            fs::write(&to, text).or_cannot(|| format!("write {}", to.display()))?;
        }
        remove_others(&tree, Path::new(""), &files)?;
        Ok(copy)
    }

    pub fn tree(&self) -> PathBuf {
        self.home.join("tree")
    }

    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Breaks the copy, until what is returned is dropped. Whatever keeps that from happening, the next refresh undoes it.
    pub fn mutate(&self, mutant: &Mutant) -> Result<Mutated> {
        let file = self.tree().join(mutant.file);
        let original = fs::read_to_string(&file).or_cannot(|| format!("read {}", file.display()))?;
        let mutated = mutant.applied_to(&original).map_err(Failure::Failed)?;
        fs::write(&file, mutated).or_cannot(|| format!("write {}", file.display()))?;
        Ok(Mutated { file, original })
    }
}

pub struct Mutated {
    file: PathBuf,
    original: String,
}

impl Drop for Mutated {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.file, &self.original) {
            eprintln!("xtask: cannot undo a mutant in {}: {error}", self.file.display());
        }
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).or_cannot(|| format!("write {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::CannotRun(
            "another `cargo xtask mutants` is at work with the same target folder: wait for its end"
                .to_owned(),
        )),
        Err(TryLockError::Error(error)) => {
            Err(Failure::CannotRun(format!("cannot lock {}: {error}", path.display())))
        }
    }
}

/// The files of a working tree, by their paths in it.
fn files_of(root: &Path) -> Result<BTreeSet<PathBuf>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let listed = listed.or_cannot(|| "run git, which says which files there are".to_owned())?;
    if !listed.status.success() {
        let why = String::from_utf8_lossy(&listed.stderr);
        return Err(Failure::CannotRun(format!("git does not say which files there are: {}", why.trim())));
    }
    let names = String::from_utf8_lossy(&listed.stdout);
    // What is tracked may have been removed.
    Ok(names.split_terminator('\0').map(PathBuf::from).filter(|file| root.join(file).is_file()).collect())
}

/// Removes what the tree does not have any more.
fn remove_others(tree: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> Result<()> {
    let here = tree.join(folder);
    for entry in fs::read_dir(&here).or_cannot(|| format!("read {}", here.display()))? {
        let entry = entry.or_cannot(|| format!("read {}", here.display()))?;
        let path = folder.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_others(tree, &path, files)?;
        } else if !files.contains(&path) {
            fs::remove_file(entry.path()).or_cannot(|| format!("remove {}", entry.path().display()))?;
        }
    }
    Ok(())
}

fn create_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).or_cannot(|| format!("create {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(root: &Path, arguments: &[&str]) {
        assert!(Command::new("git").arg("-C").arg(root).args(arguments).status().unwrap().success());
    }

    #[test]
    fn the_copy_is_the_working_tree_and_what_is_equal_is_not_written_again() {
        let (root, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
        git(root.path(), &["init", "--quiet"]);
        fs::create_dir(root.path().join("src")).unwrap();
        for (name, text) in [(".gitignore", "ignored"), ("ignored", "x"), ("src/kept", "same"), ("gone", "x")]
        {
            write(name, text);
        }
        git(root.path(), &["add", "."]);
        write("new", "not tracked yet");
        drop(WorkspaceCopy::refresh(root.path(), home.path()).unwrap());
        let tree = home.path().join("tree");
        let copied = |name: &str| fs::read_to_string(tree.join(name)).ok();
        let time = || fs::metadata(tree.join("src/kept")).unwrap().modified().unwrap();
        assert_eq!(copied("new").as_deref(), Some("not tracked yet"));
        assert_eq!((copied("gone").as_deref(), copied("ignored")), (Some("x"), None));

        let before = time();
        fs::remove_file(root.path().join("gone")).unwrap();
        write("new", "changed");
        drop(WorkspaceCopy::refresh(root.path(), home.path()).unwrap());
        assert_eq!((copied("gone"), copied("new").as_deref()), (None, Some("changed")));
        assert_eq!(time(), before);

        // A mutant that was never undone.
        fs::write(tree.join("src/kept"), "broken").unwrap();
        let copy = WorkspaceCopy::refresh(root.path(), home.path()).unwrap();
        assert_eq!(copied("src/kept").as_deref(), Some("same"));
        let second = WorkspaceCopy::refresh(root.path(), home.path());
        assert!(matches!(second, Err(Failure::CannotRun(why)) if why.contains("another")));
        drop(copy);
    }
}
