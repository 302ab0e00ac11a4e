//! Installing what is missing, or saying how.

use std::{
    fs::{File, TryLockError},
    path::Path,
    process::{Command, Stdio},
    thread::sleep,
    time::Duration,
};

use nix::unistd::geteuid;

use crate::{
    failure::{Context, Failure, Result},
    interrupt,
};

/// Installs Debian packages when we are root, after saying so; otherwise the error says what to type.
pub fn install(what: &str, packages: &[&str], else_variable: &str) -> Result<()> {
    let list = packages.join(" ");
    let by_hand = format!("install it with `apt-get install {list}`, or name a server in {else_variable}");
    if !geteuid().is_root() || !has_apt() {
        return Err(Failure::CannotRun(format!("{what} is not installed here: {by_hand}")));
    }
    eprintln!("xtask: {what} is not installed here; installing {list} with apt-get");
    let _turn = wait_for_turn()?;
    for arguments in [&["update"][..], &["install", "--yes", "--no-install-recommends"]] {
        let mut command = Command::new("apt-get");
        // Programs that are not ours may use apt at the same time.
        command
            .args(["--quiet=2", "--option", "DPkg::Lock::Timeout=300"])
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive");
        if arguments[0] == "install" {
            command.args(packages);
        }
        // Its chatter is not what the command was asked for; its errors are.
        let status = interrupt::wait(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        if !status.success() {
            return Err(Failure::CannotRun(format!("apt-get {} failed for {what}: {by_hand}", arguments[0])));
        }
    }
    Ok(())
}

/// Waits for other processes of ours that install something: apt-get fails at once if another one is updating its lists.
/// The turn lasts until the file is dropped.
fn wait_for_turn() -> Result<File> {
    let path = Path::new("/run/lock/posthaste-xtask-apt");
    let cannot = || format!("lock {}", path.display());
    let file = File::options().create(true).append(true).open(path).or_cannot(cannot)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => sleep(Duration::from_millis(100)),
            Err(TryLockError::Error(error)) => return Err(error).or_cannot(cannot),
        }
        interrupt::check()?;
    }
}

pub fn has_apt() -> bool {
    Command::new("apt-get").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
