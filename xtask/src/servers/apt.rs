//! Installing what is missing, or saying how.

use std::process::{Command, Stdio};

use nix::unistd::geteuid;

use crate::{
    failure::{Failure, Result},
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
    for arguments in [&["update"][..], &["install", "--yes", "--no-install-recommends"]] {
        let mut command = Command::new("apt-get");
        command.arg("--quiet=2").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
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

pub fn has_apt() -> bool {
    Command::new("apt-get").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}
