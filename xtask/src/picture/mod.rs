//! `cargo xtask picture`: the demo's screen, from a real run, for the README.

mod svg;

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use nix::pty::{OpenptyResult, Winsize, openpty};
use vt100::Parser;

use crate::{
    failure::{Context, Failure, Result},
    interrupt,
    output::say,
    test::cargo,
};

const COLUMNS: u16 = 86;
const ROWS: u16 = 30;

#[derive(Args)]
pub struct PictureOptions {
    /// Where to write it [default: docs/demo.svg]
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
    /// Options of the demo, such as --kill
    #[arg(last = true)]
    options: Vec<String>,
}

pub fn run(options: &PictureOptions) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut build = cargo(&["build", "--release", "--package", "posthaste-cli", "--bin", "posthaste"]);
    if !interrupt::wait(build.current_dir(&root))?.success() {
        return Err(Failure::Failed("the command cannot be built".to_owned()));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let screen = film(&target.join("release/posthaste"), &options.options)?;
    let file = options.to.clone().unwrap_or_else(|| root.join("docs/demo.svg"));
    let title =
        "The screen of posthaste demo after a run: numbers, a bar for each partition, and the verdict";
    fs::write(&file, svg::picture(&screen, title)).or_cannot(|| format!("write {}", file.display()))?;
    say!("the picture is in {}", file.display());
    Ok(())
}

/// Runs the demo on a terminal of its own; the screen that it leaves, below the line that starts it.
fn film(posthaste: &Path, options: &[String]) -> Result<vt100::Screen> {
    let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } =
        openpty(&size, None).or_cannot(|| "open a pseudo-terminal".to_owned())?;
    let mut command = Command::new(posthaste);
    command.arg("demo").args(options);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("CLICOLOR");
    let end = || slave.try_clone().map(Stdio::from).or_cannot(|| "use a pseudo-terminal".to_owned());
    command.stdin(end()?).stdout(end()?).stderr(end()?);
    let mut child = command.spawn().or_cannot(|| format!("run {}", posthaste.display()))?;
    // Nobody but the demo has the other end, so that reading ends when it does.
    drop((command, slave));

    let mut parser = Parser::new(ROWS, COLUMNS, 0);
    let line = ["posthaste demo".to_owned()].into_iter().chain(options.iter().cloned()).collect::<Vec<_>>();
    parser.process(format!("\x1b[2m$\x1b[0m {}\r\n\r\n", line.join(" ")).as_bytes());
    let (mut master, mut buffer) = (File::from(master), [0; 4096]);
    while let Ok(read @ 1..) = master.read(&mut buffer) {
        parser.process(&buffer[..read]);
    }
    let status = child.wait().or_cannot(|| "wait for the demo".to_owned())?;
    interrupt::check()?;
    if !status.success() {
        return Err(Failure::Failed(format!("the demo did not end well:\n{}", parser.screen().contents())));
    }
    Ok(parser.screen().clone())
}
