//! SQLite's databases are files, which are copied.

use std::path::PathBuf;

use tempfile::TempDir;

/// Where the files are: in memory, if `cargo xtask test` found a place for that.
#[must_use]
pub fn folder() -> PathBuf {
    std::env::var_os("POSTHASTE_TEST_SQLITE_FOLDER").map_or_else(std::env::temp_dir, PathBuf::from)
}

pub fn url(folder: &TempDir) -> String {
    format!("sqlite://{}", folder.path().join("test.db").display())
}

/// A folder for a file, which the first connection creates.
pub fn empty() -> TempDir {
    tempfile::tempdir_in(folder()).expect("a folder")
}

pub async fn copy_of(template: &str, prepare: impl AsyncFnOnce(&str)) -> TempDir {
    let file = folder().join(format!("{template}.db"));
    let copy = empty();
    if !file.exists() {
        // Several tests may prepare it at the same time. Each file is complete, and the last one stays.
        let draft = empty();
        prepare(&url(&draft)).await;
        std::fs::rename(draft.path().join("test.db"), &file).expect("the template gets its name");
    }
    std::fs::copy(&file, copy.path().join("test.db")).expect("the template is copied");
    copy
}
