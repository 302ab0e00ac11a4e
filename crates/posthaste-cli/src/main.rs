//! The `posthaste` command.

mod demo;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A transactional outbox: see it work.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch a background worker start, speed up, rest, fail, recover and stop
    Demo(demo::DemoOptions),
}

#[tokio::main]
async fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(options) => demo::run(options).await,
    }
}
