//! Programs of this workspace, built with the features of `cargo xtask test`, so that a run of it compiles nothing twice.

use std::path::{Path, PathBuf};

use crate::{
    failure::{Failure, Result},
    interrupt,
    test::cargo,
};

/// The folder of this workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."))
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Builds these programs and all examples, unoptimised, and returns the folder of the programs.
pub fn programs(names: &[&str]) -> Result<PathBuf> {
    let mut command = cargo(&["build", "--quiet", "--locked", "--manifest-path"]);
    command.arg(root().join("Cargo.toml")).arg("--target-dir").arg(target());
    // Cargo takes the features of dev-dependencies into account only if an example or a test is among the targets.
    command.args(["--workspace", "--all-features", "--examples"]);
    command.args(names.iter().flat_map(|name| ["--bin", name]));
    if interrupt::wait(&mut command)?.success() {
        return Ok(target().join("debug"));
    }
    Err(Failure::Failed("the programs could not be built".to_owned()))
}
