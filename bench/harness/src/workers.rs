//! Worker processes: this program again, delivering only. What their handlers get comes back through their standard output.

use std::{
    io::{Stdout, Write},
    process::Stdio,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncReadExt, BufReader},
    process::{Child, ChildStdout, Command},
    task::JoinHandle,
};

use crate::{judge::Arrival, message::Origin};

/// An arrival in bytes: producer, number, partition, time.
const RECORD: usize = 4 + 8 + 4 + 8;
/// Written first, when the workers have started.
const READY: u8 = b'!';

/// A worker process's way to tell what its handlers got.
pub struct Pipe(Mutex<Stdout>);

impl Pipe {
    pub fn to_parent() -> Self {
        Self(Mutex::new(std::io::stdout()))
    }

    pub fn ready(&self) -> Result<()> {
        self.bytes(&[READY])
    }

    pub fn write(&self, arrival: Arrival) -> Result<()> {
        let mut record = Vec::with_capacity(RECORD);
        record.extend(arrival.origin.producer.to_be_bytes());
        record.extend(arrival.origin.number.to_be_bytes());
        record.extend(arrival.partition.to_be_bytes());
        record.extend(u64::try_from(arrival.at.as_nanos()).unwrap_or(u64::MAX).to_be_bytes());
        self.bytes(&record)
    }

    fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }
}

/// A worker process.
pub struct WorkerProcess {
    child: Child,
    arrivals: JoinHandle<Result<Vec<Arrival>>>,
}

impl WorkerProcess {
    /// Starts this program again with these arguments; returns when its workers have started. `count` is called at each arrival.
    pub async fn start(arguments: &[String], count: impl Fn() + Send + 'static) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program")?;
        let mut child = Command::new(program)
            .args(arguments)
            // Open for as long as this process is there: its end ends them too.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a worker process")?;
        let mut output = BufReader::new(child.stdout.take().context("a worker process without output")?);
        anyhow::ensure!(output.read_u8().await.ok() == Some(READY), "a worker process did not start");
        Ok(Self { child, arrivals: tokio::spawn(read(output, count)) })
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Asks it to stop, and returns all that it has delivered.
    pub async fn stop(mut self) -> Result<Vec<Arrival>> {
        if let Some(id) = self.child.id() {
            kill(Pid::from_raw(id.try_into()?), Signal::SIGTERM)?;
        }
        let ended = self.child.wait().await?;
        anyhow::ensure!(ended.success(), "a worker process ended with {ended}");
        self.arrivals.await?
    }
}

async fn read(mut output: BufReader<ChildStdout>, count: impl Fn()) -> Result<Vec<Arrival>> {
    let mut arrivals = Vec::new();
    // A record at a time, until there is none: the process has ended.
    while let Ok(producer) = output.read_u32().await {
        let number = output.read_u64().await?;
        let partition = output.read_u32().await?;
        let at = Duration::from_nanos(output.read_u64().await?);
        arrivals.push(Arrival { origin: Origin { producer, number }, partition, at });
        count();
    }
    Ok(arrivals)
}
