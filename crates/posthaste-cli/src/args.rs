//! The command line: every command, every option, and what the help says of them. It needs nothing but clap, so that the build
//! can make man pages and shell completions of it.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::exit;

/// See, run and repair a transactional outbox, on PostgreSQL, MySQL, MariaDB or SQLite.
#[derive(Debug, Parser)]
#[command(name = "posthaste", version, after_help = exit::HELP, max_term_width = 100)]
pub struct CommandLine {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Common options")]
pub struct Common {
    /// The database: postgres://, mysql://, mariadb:// or sqlite:. TLS is as its parameters say (sslmode, ssl-mode). A
    /// password is better kept in the variable, since others can see the arguments of a process
    /// [env: DATABASE_URL] [default: sqlite:posthaste.db]
    #[arg(long, global = true, value_name = "URL")]
    pub database_url: Option<String>,
    /// What the names of the outbox's tables begin with [default: posthaste_]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub table_prefix: Option<String>,
    /// The schema that the tables are in, or on MySQL the database [default: that of the connection]
    #[arg(long, global = true, value_name = "SCHEMA")]
    pub schema: Option<String>,
    /// How long the database may take to answer at first
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = patience)]
    pub connect_timeout: Duration,
    /// Print data as JSON: one object, or one a line for what goes on
    #[arg(long, global = true)]
    pub json: bool,
    /// Say more about what happens, on standard error; twice, much more
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// The database if none is named; the help has it too.
const DEFAULT_URL: &str = "sqlite:posthaste.db";
/// The prefix if none is named; the help has it too.
const DEFAULT_PREFIX: &str = "posthaste_";

impl Common {
    /// The prefix that is named, or the default.
    pub fn table_prefix(&self) -> &str {
        self.table_prefix.as_deref().unwrap_or(DEFAULT_PREFIX)
    }

    /// The database that is named, or the default. A name that cannot be read is not taken for none.
    pub fn url(&self) -> Result<String, String> {
        match self.named_url() {
            Some(url) => {
                url.into_string().map_err(|_| "DATABASE_URL is not UTF-8: it names no database".to_owned())
            }
            None => Ok(DEFAULT_URL.to_owned()),
        }
    }

    pub fn names_a_database(&self) -> bool {
        self.named_url().is_some()
    }

    fn named_url(&self) -> Option<OsString> {
        let variable = || std::env::var_os("DATABASE_URL").filter(|url| !url.is_empty());
        self.database_url.clone().map(OsString::from).or_else(variable)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch an outbox at work: a small shop, its orders, and what becomes of them
    Demo(Demo),
    /// Create the outbox's tables, or upgrade them
    Migrate(Migrate),
    /// How far every partition is, who works on it, and what stands still
    Status(Status),
    /// List the queues
    #[command(after_help = DEPTH)]
    Queues,
    /// Register a queue, so that messages can be enqueued before a process that delivers it is there
    Register(Register),
    /// Show the next messages of a queue, without taking them
    Peek(Peek),
    /// Follow what is delivered of a queue
    Tail(Tail),
    /// Enqueue a message
    Enqueue(Enqueue),
    /// Look at rejected messages, and decide what becomes of them
    #[command(subcommand)]
    DeadLetters(DeadLetters),
    /// Remove what is delivered, now
    Vacuum,
    /// Stop the delivery of a queue, everywhere; messages can still be enqueued
    Pause(QueueName),
    /// Deliver a queue again
    Resume(QueueName),
    /// Look for what is wrong with the database, or will be, and say what to do
    Doctor(Doctor),
    /// Measure throughput and latency of an outbox on this database, from this machine
    Bench(Bench),
    /// Print the completions for a shell
    #[command(
        after_help = "For bash: posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the man page, or write all of them
    Man {
        /// Write a page for each command into this folder
        #[arg(long, value_name = "FOLDER")]
        to: Option<PathBuf>,
    },
    /// Deliver the demo's orders until killed
    #[command(hide = true)]
    DemoWorker(DemoWorker),
}

#[derive(Debug, Args)]
#[command(after_help = "\
It runs on an SQLite file of its own, whatever DATABASE_URL says, or on the database that --database-url names; always in tables of \
its own, which it removes again. It ends with a verdict that is computed from the shop's own books: if anything was lost, made up \
or out of order, the exit code is 1. Ctrl-C ends it early, with a verdict; once more, at once.")]
pub struct Demo {
    /// End after so many orders, rolled back ones included
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub messages: Option<u64>,
    /// Orders a second, of all customers together
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Place orders for so long [default: 12, or until there are as many as --messages says]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Start a second worker process, and kill it every second
    #[arg(long)]
    pub kill: bool,
    /// Keep the tables, to look at them with the other commands
    #[arg(long)]
    pub keep: bool,
}

/// What the demo tells the process that it is going to kill.
#[derive(Debug, Args)]
pub struct DemoWorker {
    /// Where it writes down what it delivers
    pub ledger: PathBuf,
}

#[derive(Debug, Args)]
pub struct Migrate {
    /// Print the SQL instead, for the database that the URL names, and touch nothing
    #[arg(long)]
    pub print: bool,
}

#[derive(Debug, Args)]
#[command(after_help = format!("{DEPTH}\nThe exit code is 1 if something stands still."))]
pub struct Status {
    /// Only this queue
    pub queue: Option<String>,
    /// Look again and again, until interrupted
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = interval)]
    pub watch: Option<Duration>,
}

/// What the columns of a queue count.
const DEPTH: &str = "\
DEPTH counts the messages that have their order and are not settled. Those that no sequencer has
seen yet are not in it; how long the oldest of all has waited is under OLDEST.";

/// How payloads are shown.
#[derive(Debug, Clone, Args)]
pub struct Shown {
    /// Payload as text, as JSON, as hexadecimal digits, or as what it looks like
    #[arg(long, value_enum, default_value_t = Format::Auto)]
    pub format: Format,
    /// Cut payloads to so many bytes; 0: do not
    #[arg(long, value_name = "BYTES", default_value_t = 200)]
    pub cut: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Auto,
    Text,
    Json,
    Hex,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each partition is delivered in its own order, which is kept; among the partitions, the oldest
message comes first. Those that have no place in their partition yet come last, with - for their
seq. It stops at 16 MiB of payloads. --format and --cut are for people: with --json payloads are whole.")]
pub struct Peek {
    /// The queue
    pub queue: String,
    /// Only this partition
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// At most so many messages, of all partitions together
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It looks at the tables and disturbs nobody. What vacuum removed before it looked is shown as a gap;
what became a dead letter is marked as rejected. It goes on until interrupted; if the database goes
away, until it is back.")]
pub struct Tail {
    /// The queue
    pub queue: String,
    /// Only this partition
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// Begin with the last messages of each partition that were delivered already, so many if they are still there
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub last: u32,
    /// End after so many messages
    #[arg(long, short = 'n', value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// How often to look
    #[arg(long, value_name = "INTERVAL", default_value = "250ms", value_parser = interval)]
    pub interval: Duration,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without a payload it is read from standard input. It is taken byte for byte, up to 1 MiB. A key
decides the partition; without one it is 0, unless --partition says otherwise.")]
pub struct Enqueue {
    /// The queue
    pub queue: String,
    /// The payload; - for standard input
    #[arg(conflicts_with = "file")]
    pub payload: Option<OsString>,
    /// Read the payload from this file; - for standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Messages with the same key are delivered in order
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The partition, if there is no key
    #[arg(long, value_name = "N", conflicts_with = "key")]
    pub partition: Option<u32>,
    /// What the payload is
    #[arg(long = "type", value_name = "TYPE", default_value = "application/octet-stream")]
    pub payload_type: String,
    /// A header; may be repeated
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Subcommand)]
pub enum DeadLetters {
    /// List dead letters, oldest first
    List(ListDeadLetters),
    /// Show one of them, whole
    Show {
        /// Its id
        #[arg(allow_negative_numbers = true)]
        id: i64,
        /// Payload as text, as JSON, as hexadecimal digits, or as what it looks like
        #[arg(long, value_enum, default_value_t = Format::Auto)]
        format: Format,
    },
    /// Put pending ones back, at the end of their queues, as new messages
    Redeliver(ChangeDeadLetters),
    /// Decide that nothing more becomes of pending ones
    Discard(ChangeDeadLetters),
    /// Delete those that are resolved or discarded, for good
    Cleanup(ChangeDeadLetters),
}

/// Which dead letters are meant: all that fit everything that is said.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Which")]
pub struct Which {
    /// Just this one; may be repeated
    #[arg(long = "id", value_name = "ID", allow_negative_numbers = true)]
    pub ids: Vec<i64>,
    /// Of this queue
    #[arg(long, value_name = "QUEUE")]
    pub queue: Option<String>,
    /// Of this partition
    #[arg(long, value_name = "N")]
    pub partition: Option<u32>,
    /// With this key
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// With this type of payload
    #[arg(long = "type", value_name = "TYPE")]
    pub payload_type: Option<String>,
    /// In this state
    #[arg(long, value_enum)]
    pub status: Option<LetterStatus>,
    /// Rejected longer ago than this, such as 2h or 30days
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// In the same state for longer than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub unchanged_for: Option<Duration>,
    /// With this text in its reason
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LetterStatus {
    Pending,
    Reprocessing,
    Resolved,
    Discarded,
}

#[derive(Debug, Args)]
#[command(after_help = "With --json the payloads are there too, and a page ends at 16 MiB.")]
pub struct ListDeadLetters {
    #[command(flatten)]
    pub which: Which,
    /// Only those behind this one, to turn pages
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    pub after: Option<i64>,
    /// At most so many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It takes those that fit everything that is said and were there when it began, oldest first, a
hundred at a time. If it is interrupted, what was done stays done, and it can be run again. Those
that are named by their ids are all taken, or none.")]
pub struct ChangeDeadLetters {
    #[command(flatten)]
    pub which: Which,
    /// All there are, if nothing else is said
    #[arg(long)]
    pub all: bool,
    /// At most so many, oldest first
    #[arg(long, short = 'n', value_name = "N", conflicts_with = "ids", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Only say which it would be
    #[arg(long)]
    pub dry_run: bool,
    /// Do not ask, as it does before it discards or deletes
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A process with workers for a queue registers it by itself when it starts. The number of partitions cannot be changed afterwards: it
must be the one that such a process asks for.")]
pub struct Register {
    /// The queue
    pub queue: String,
    /// How many partitions it has: 1, 2, 4, 8, 16, 32 or 64
    #[arg(long, value_name = "N", value_parser = partitions)]
    pub partitions: u32,
}

#[derive(Debug, Args)]
pub struct QueueName {
    /// The queue
    pub queue: String,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It changes nothing, reads no messages, and waits for nobody's locks; what it may not see is said.
The exit code is 1 if there is a warning or a problem; a notice does not count.")]
pub struct Doctor {
    /// Transactions that are open for longer than this are a finding
    #[arg(long, value_name = "DURATION", default_value = "5min", value_parser = duration)]
    pub long_transaction: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
It makes tables of its own, and removes them again. It puts load on the database while it runs.")]
pub struct Bench {
    /// How long to measure throughput, and again how long latency
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub seconds: u64,
    /// Transactions at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub producers: u32,
    /// Messages a transaction
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Partitions of the queue: 1, 2, 4, 8, 16, 32 or 64
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = partitions)]
    pub partitions: u32,
    /// Bytes a message
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(0..=1_048_576))]
    pub payload: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    Pwsh,
    Zsh,
}

fn duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|error| format!("{error}; write it like 250ms, 90s, 2h or 30days"))
}

/// How long to wait: not so long that clocks could not count it.
fn patience(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(86_400);
    match duration(text)? {
        long if long > MOST => Err("more than a day".to_owned()),
        patience => Ok(patience),
    }
}

/// How often to look: not so often that it would be a load.
fn interval(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_millis(50);
    const MOST: Duration = Duration::from_secs(3600);
    match duration(text)? {
        short if short < LEAST => Err(format!("less than {LEAST:?}")),
        long if long > MOST => Err("more than an hour".to_owned()),
        interval => Ok(interval),
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

fn partitions(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(number @ 1..=64) if u32::is_power_of_two(number) => Ok(number),
        _ => Err("use 1, 2, 4, 8, 16, 32 or 64".to_owned()),
    }
}
