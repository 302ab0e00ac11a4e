//! `cargo xtask torture`: the worst day of an outbox, over and over, on a private server.
//!
//! What is done and how it is judged is in `torture/`. This builds that program, gives it a folder, and lends it `xtask servers`. If it is
//! a control that is tortured, this builds that, too: nobody else waits for what it depends on.

use std::{collections::BTreeMap, ffi::OsString, path::Path, process::Command};

use clap::Args;

use crate::{
    build,
    failure::{Failure, Result},
    interrupt,
    servers::{Fleet, faketime},
    test::cargo,
};

/// The package of the control, and where the program that tortures it finds it.
const CONTROL: &str = "control-cf-modkit-db";
const CONTROL_VARIABLE: &str = "POSTHASTE_CONTROL";

#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct TortureOptions {
    /// What to do, as `cargo xtask torture --help` says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(options: &TortureOptions) -> Result<()> {
    let (root, target) = (build::root(), build::target());
    // More happens in the same time; either way, what checks itself at every step finds more.
    let programs = if options.arguments.iter().any(|argument| argument == "--fast") {
        build_package(&root.join("Cargo.toml"), "posthaste-torture", &target, "torture")?;
        target.join("torture")
    } else {
        build::programs(&["torture"])?
    };
    // No servers: it starts its own, to crash them. But a folder that goes when they are gone.
    let fleet = Fleet::gather(&[], &BTreeMap::new(), &[])?;
    let mut command = Command::new(programs.join("torture"));
    command.env(faketime::LIBRARY_VARIABLE, faketime::locate()?);
    command.args(&options.arguments).arg("--folder").arg(target.join("tortured")).envs(fleet.environment()?);
    if names_the_control(&options.arguments) {
        eprintln!("building {CONTROL}, with all that it depends on: this takes minutes the first time");
        build_package(&root.join("bench/peers/Cargo.toml"), CONTROL, &target, "dev")?;
        command.env(CONTROL_VARIABLE, target.join("debug").join(CONTROL));
    }
    match interrupt::wait(&mut command)?.code() {
        Some(0) => Ok(()),
        Some(2) => {
            Err(Failure::CannotRun("it could not be run, or not as planned, as said above".to_owned()))
        }
        Some(1) => Err(Failure::Failed("promises were broken, as said above".to_owned())),
        _ => Err(Failure::CannotRun("it did not come to its end, as said above".to_owned())),
    }
}

/// Whether `--system` is the control.
fn names_the_control(arguments: &[OsString]) -> bool {
    let pairs = arguments.windows(2).any(|pair| pair[0] == "--system" && pair[1] == "cf-modkit-db");
    pairs || arguments.iter().any(|argument| argument == "--system=cf-modkit-db")
}

fn build_package(manifest: &Path, package: &str, target: &Path, profile: &str) -> Result<()> {
    let mut command = cargo(&["build", "--quiet", "--locked", "--package", package, "--manifest-path"]);
    command.arg(manifest).arg("--target-dir").arg(target).args(["--profile", profile]);
    if interrupt::wait(&mut command)?.success() {
        return Ok(());
    }
    Err(Failure::Failed("the program could not be built".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_is_built_only_if_it_is_asked_for() {
        let names = |line: &str| {
            let arguments: Vec<_> = line.split(' ').map(OsString::from).collect();
            names_the_control(&arguments)
        };
        assert!(names("--db postgres --system cf-modkit-db --json"));
        assert!(names("--system=cf-modkit-db"));
        assert!(!names("--db postgres --system posthaste"));
        assert!(!names("--json"));
    }
}
