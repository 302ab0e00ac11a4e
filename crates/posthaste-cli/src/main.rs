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
mod percentile;
mod queue;
mod table_names;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use clap::Parser;
use tracing_subscriber::{filter::filter_fn, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    args::{Command, CommandLine, Common, DeadLetters},
    failure::{Failure, Outcome, without_urls},
    output::Output,
};

/// Whoever has waited for so long wants to know what for.
const LONG: Duration = Duration::from_secs(3);

/// What every command is given.
pub struct Context {
    pub common: Common,
    pub out: Output,
}

#[tokio::main]
async fn main() -> ExitCode {
    let CommandLine { common, command } = match CommandLine::try_parse() {
        Ok(typed) => typed,
        Err(error) => return ExitCode::from(misread(&error)),
    };
    say_more(common.verbose);
    let context = Context { out: Output { json: common.json }, common };
    let outcome = if ends_well_when_interrupted(&command) {
        Box::pin(run(command, &context)).await
    } else {
        let is_noted = waits_for_the_database(&command) && std::io::stderr().is_terminal();
        tokio::select! {
            outcome = Box::pin(run(command, &context)) => outcome,
            () = interrupt::asked() => Err(Failure::Interrupted),
            () = note_that_it_takes_long(), if is_noted => Err(Failure::Interrupted),
        }
    };
    let code = outcome.unwrap_or_else(|failure| failure.report());
    ExitCode::from(code)
}

/// Says what is wrong with what was typed, as clap does, but without repeating a URL, which may have a password in it.
fn misread(error: &clap::Error) -> u8 {
    let text = error.render().to_string();
    if !error.use_stderr() || !text.contains("://") {
        error.exit();
    }
    output::note(without_urls(text.trim_end()));
    exit::USAGE
}

/// For whoever looks at it and wonders, once; it never ends.
async fn note_that_it_takes_long() {
    tokio::time::sleep(LONG).await;
    output::note("waiting for the database…");
    std::future::pending::<()>().await;
}

/// Whether it has nobody else to wait for.
fn waits_for_the_database(command: &Command) -> bool {
    match command {
        Command::Enqueue(message) => message.payload.as_ref().is_some_and(|payload| payload != "-"),
        Command::Completions { .. } | Command::Man { .. } => false,
        _ => true,
    }
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
    // Whoever reads a URL warns of parameters that it does not know, with their values: one may be a misspelt password.
    let is_harmless = |target: &str| {
        !["sqlx_postgres::options", "sqlx_mysql::options", "sqlx_sqlite::options"]
            .iter()
            .any(|reader| target.starts_with(reader))
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        // It would panic if standard error cannot be written.
        .log_internal_errors(false)
        .finish()
        .with(filter_fn(move |metadata| is_harmless(metadata.target())))
        .init();
}
