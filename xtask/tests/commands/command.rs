//! `xtask` in a world of its own: its temporary files are in a folder that must be empty in the end.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nix::unistd::Pid;
use tempfile::TempDir;

pub struct World {
    folder: TempDir,
}

impl World {
    pub fn new() -> Self {
        // Servers run as another user, who must be able to pass through.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let folder = tempfile::Builder::new().permissions(open).tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("tmp")).expect("a folder");
        Self { folder }
    }

    pub fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    pub fn xtask(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(arguments).env("TMPDIR", self.tmp());
        for database in ["POSTGRES", "MARIADB", "MYSQL"] {
            command.env_remove(format!("POSTHASTE_TEST_{database}_URL"));
        }
        // The servers are counted, and a pooler would be one more.
        command.env("POSTHASTE_TEST_PGBOUNCER_URL", "postgres://nobody@127.0.0.1:1/none");
        command
    }

    /// A folder with a program that prints a version, and others that do nothing.
    pub fn fake_programs(&self, program: &str, says: &str, others: &[&str]) -> PathBuf {
        let bin = self.fake_program(program, &format!("echo '{says}'"));
        for other in others {
            write_script(&bin.join(other), "true");
        }
        bin
    }

    /// A folder with one program.
    pub fn fake_program(&self, program: &str, script: &str) -> PathBuf {
        let bin = self.folder.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        write_script(&bin.join(program), script);
        bin
    }

    /// What is left in the folder for temporary files.
    pub fn left_behind(&self) -> Vec<PathBuf> {
        std::fs::read_dir(self.tmp())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .collect()
    }

    /// The servers that run in this world: processes that were given a path of it. One that a server has just made has, for a moment,
    /// what the server was given.
    pub fn servers(&self) -> Vec<u32> {
        let here = self.tmp().into_os_string().into_encoded_bytes();
        let is_here = |pid: &u32| {
            let command_line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command_line.windows(here.len()).any(|window| window == here)
        };
        let processes = std::fs::read_dir("/proc").expect("a list of processes");
        let here: Vec<u32> = processes
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(is_here)
            .collect();
        here.iter().copied().filter(|pid| parent(*pid).is_none_or(|parent| !here.contains(&parent))).collect()
    }

    pub fn assert_nothing_is_left(&self) {
        assert_eq!(self.servers(), Vec::<u32>::new(), "no server is left");
        assert_eq!(self.left_behind(), Vec::<PathBuf>::new(), "no folder is left");
    }
}

/// A test that fails leaves no server behind either.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.xtask(&["servers", "down"]).output().ok();
        }
    }
}

/// The process that started this one, if it is still there.
fn parent(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether a process has ended. One that is about to end has no command line any more, but still runs.
pub fn has_ended(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, fields)| fields.starts_with('Z'))
}

fn write_script(path: &Path, body: &str) {
    std::fs::write(path, format!("#!/bin/sh\n{body}\n")).expect("a script");
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a script");
}

/// The exit code and the one line on standard error.
pub fn refusal(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("xtask runs");
    let stderr = String::from_utf8(stderr).expect("text");
    assert_eq!(stderr.lines().count(), 1, "one line, not {stderr:?}");
    (status.code(), stderr)
}
