//! The `posthaste` command: see, run and repair an outbox without writing Rust.
//!
//! [`args`] is what can be typed, [`command`] has a file for each of the commands; the rest is what they share.

mod args;
mod command;
mod database;
mod exit;
mod failure;
mod input;
mod interrupt;
mod message;
mod output;
mod overview;
mod payload;
mod queue;

use std::process::ExitCode;

use clap::Parser;

use crate::{
    args::{Command, CommandLine, Common, DeadLetters},
    failure::{Failure, Outcome},
    output::Output,
};

/// What every command is given.
pub struct Context {
    pub common: Common,
    pub out: Output,
}

#[tokio::main]
async fn main() -> ExitCode {
    let CommandLine { common, command } = CommandLine::parse();
    say_more(common.verbose);
    let context = Context { out: Output { json: common.json }, common };
    let outcome = if ends_well_when_interrupted(&command) {
        Box::pin(run(command, &context)).await
    } else {
        tokio::select! {
            outcome = Box::pin(run(command, &context)) => outcome,
            () = interrupt::asked() => Err(Failure::Interrupted),
        }
    };
    let code = outcome.unwrap_or_else(|failure| failure.report());
    ExitCode::from(code)
}

/// These go on until somebody has seen enough, have something to clear away, or have to say how far they got, and look after that themselves.
const fn ends_well_when_interrupted(command: &Command) -> bool {
    match command {
        Command::Bench(_) | Command::Demo(_) | Command::DemoWorker(_) | Command::Tail(_) => true,
        Command::Status(status) => status.watch.is_some(),
        Command::DeadLetters(verb) => {
            matches!(verb, DeadLetters::Redeliver(_) | DeadLetters::Discard(_) | DeadLetters::Cleanup(_))
        }
        _ => false,
    }
}

async fn run(command: Command, context: &Context) -> Outcome {
    match command {
        Command::Demo(options) => command::demo::run(&options, context).await,
        Command::DemoWorker(options) => command::demo::worker::run(&options, context).await,
        Command::Migrate(options) => command::migrate::run(&options, context).await,
        Command::Status(options) => command::status::run(&options, context).await,
        Command::Queues => command::queues::run(context).await,
        Command::Peek(options) => command::peek::run(&options, context).await,
        Command::Tail(options) => command::tail::run(&options, context).await,
        Command::Enqueue(options) => command::enqueue::run(options, context).await,
        Command::DeadLetters(verb) => command::dead_letters::run(verb, context).await,
        Command::Register(options) => command::register::run(&options, context).await,
        Command::Pause(name) => command::pause::run(&name.queue, true, context).await,
        Command::Resume(name) => command::pause::run(&name.queue, false, context).await,
        Command::Vacuum => command::vacuum::run(context).await,
        Command::Bench(options) => command::bench::run(&options, context).await,
        Command::Doctor(options) => command::doctor::run(&options, context).await,
        Command::Completions { shell } => command::completions::run(shell, context),
        Command::Man { to } => command::man::run(to.as_deref(), context),
    }
}

/// What the library logs, on standard error.
fn say_more(verbosity: u8) {
    let level = match verbosity {
        0 => return,
        1 => tracing::Level::INFO,
        _ => tracing::Level::DEBUG,
    };
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).init();
}
