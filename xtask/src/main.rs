//! `cargo xtask`: what a person types to work on posthaste.

mod bench;
mod build;
mod database;
mod failure;
mod interrupt;
mod mutants;
mod output;
mod picture;
mod servers;
mod test;
mod torture;

use std::{ffi::OsString, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use servers::ServerOptions;

/// What a person types to work on posthaste.
///
/// Exit codes: 0 done, 1 a test or a command failed, 2 it could not be run (the message says what to do),
/// 130 interrupted.
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the whole test suite, on every database unless told otherwise
    Test(test::TestOptions),
    /// Compare posthaste with other systems and with bare INSERTs: speed, latency, costs
    Bench(bench::BenchOptions),
    /// Kill, pause, cut and crash everything, over and over, and judge what was delivered
    Torture(torture::TortureOptions),
    /// Break promises of the library one by one, and see that a test notices each
    Mutants(mutants::MutantsOptions),
    /// Run the demo, and make the README's picture of its screen
    Picture(picture::PictureOptions),
    /// Start, list and stop private throw-away database servers
    #[command(subcommand)]
    Servers(ServersCommand),
}

#[derive(Subcommand)]
enum ServersCommand {
    /// Start servers that stay up, and print their URLs; `cargo xtask test` then uses them
    Up(ServerOptions),
    /// Stop the servers that `up` started, and remove their folder
    Down {
        /// Leave the folder with their data
        #[arg(long)]
        keep: bool,
    },
    /// Stop the servers that `up` started as a crash would, and start them again with their data
    Restart,
    /// Give the PostgreSQL that `up` started a synchronous standby, end it as a crash would, let the standby take over, and print its URL
    Promote {
        /// How many milliseconds both run before that
        #[arg(long, value_name = "MS", default_value = "0")]
        both_for: u64,
    },
    /// List the servers that `up` started; exit code 1 if one of them is gone
    Status,
    /// Start servers for one command, with their URLs in its environment, and stop them when it ends
    Run {
        #[command(flatten)]
        options: ServerOptions,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = interrupt::listen().and_then(|()| match cli.command {
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Torture(options) => torture::run(&options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Picture(options) => picture::run(&options),
        Command::Servers(ServersCommand::Up(options)) => servers::up(&options),
        Command::Servers(ServersCommand::Down { keep }) => servers::down(keep),
        Command::Servers(ServersCommand::Restart) => servers::restart(),
        Command::Servers(ServersCommand::Promote { both_for }) => {
            servers::promote(Duration::from_millis(both_for))
        }
        Command::Servers(ServersCommand::Status) => servers::status(),
        Command::Servers(ServersCommand::Run { options, command }) => servers::run(&options, &command),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}
