//! `cargo xtask torture`: the worst day of an outbox, over and over, on a private server.
//!
//! What is done and how it is judged is in `torture/`. This builds that program, gives it a folder, and lends it `xtask servers`.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
};

use clap::Args;

use crate::{
    failure::{Failure, Result},
    interrupt,
    servers::{Fleet, faketime},
};

#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct TortureOptions {
    /// What to do, as `cargo xtask torture --help` says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(options: &TortureOptions) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    // More happens in the same time; either way, what checks itself at every step finds more.
    let (profile, folder) = if options.arguments.iter().any(|argument| argument == "--fast") {
        ("torture", "torture")
    } else {
        ("dev", "debug")
    };
    build(root, &target, profile)?;
    // No servers: it starts its own, to crash them. But a folder that goes when they are gone.
    let fleet = Fleet::gather(&[], &BTreeMap::new(), &[])?;
    let mut command = Command::new(target.join(folder).join("torture"));
    command.env(faketime::LIBRARY_VARIABLE, faketime::locate()?);
    command.args(&options.arguments).arg("--folder").arg(target.join("tortured")).envs(fleet.environment()?);
    match interrupt::wait(&mut command)?.code() {
        Some(0) => Ok(()),
        Some(2) => Err(Failure::CannotRun("it could not be run, as said above".to_owned())),
        _ => Err(Failure::Failed("promises were broken, as said above".to_owned())),
    }
}

fn build(root: &Path, target: &Path, profile: &str) -> Result<()> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(["build", "--quiet", "--locked", "--package", "posthaste-torture", "--manifest-path"]);
    command.arg(root.join("Cargo.toml")).arg("--target-dir").arg(target).args(["--profile", profile]);
    if interrupt::wait(&mut command)?.success() {
        return Ok(());
    }
    Err(Failure::Failed("the program could not be built".to_owned()))
}
