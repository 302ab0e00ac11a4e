//! How a process of an episode is set up. All of it is drawn anew each time that one is started.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::content::Shape;

/// What a process of an episode is told on its standard input, as one line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Circumstances {
    pub role: Role,
    /// Its number in the run, which no other process has.
    pub process: u32,
    pub url: String,
    /// Of the outbox's tables, or of its queues: no other episode has it.
    pub prefix: String,
    pub shape: Shape,
    pub history: PathBuf,
    /// Where it kills itself, and the how manieth time that it is there.
    pub kill_at: Option<(String, u32)>,
    pub setup: Setup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Producer,
    Worker,
    /// Makes the tables if they are not there, starts workers, and stops them.
    Starter,
}

/// What a producer's transaction is begun with.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    ReadCommitted,
    RepeatableRead,
    Serializable,
}

impl Isolation {
    const ALL: [Self; 3] = [Self::ReadCommitted, Self::RepeatableRead, Self::Serializable];
}

impl Circumstances {
    /// Hears on standard input what to be, and returns with it what ends when it is time to stop.
    pub async fn hear() -> Result<(Self, impl Future<Output = ()>)> {
        let mut stdin = BufReader::new(tokio::io::stdin());
        let mut line = String::new();
        stdin.read_line(&mut line).await?;
        let circumstances = serde_json::from_str(&line).context("nobody said what to be")?;
        let stop = async move {
            stdin.read_to_end(&mut Vec::new()).await.ok();
        };
        Ok((circumstances, stop))
    }
}

/// What is drawn.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Setup {
    pub seed: u64,
    pub profile: String,
    pub batch_size: u32,
    pub lease_ms: u64,
    /// The most batches at once.
    pub processors: usize,
    /// Connections of the business pool.
    pub pool: u32,
    pub isolation: Isolation,
    /// Whether handlers take a batch in one call.
    pub whole_batches: bool,
    /// Whether handlers panic, hang, block and talk nonsense now and then.
    pub misbehaves: bool,
    /// How many transactions a producer has under way at once.
    pub transactions: u32,
    /// About how many milliseconds it rests after each.
    pub rest_ms: u64,
}

const PROFILES: [&str; 5] = ["default", "low-latency", "high-throughput", "auto", "relaxed"];

impl Setup {
    pub fn draw(rng: &mut Rng, misbehaves: bool) -> Self {
        // Long ones are short more often than not: whoever waits for the end of one does nothing else.
        let long = 1000 + rng.u64(..=29_000) * rng.u64(..=100) / 100 * rng.u64(..=100) / 100;
        let lease_ms = if rng.u32(..10) == 0 { long } else { rng.u64(500..=1000) };
        Self {
            seed: rng.u64(..),
            profile: PROFILES[rng.usize(..PROFILES.len())].to_owned(),
            batch_size: [1, 10, 100, 1000][rng.usize(..4)].min(rng.u32(1..=1000)),
            lease_ms,
            processors: rng.usize(2..=16),
            pool: rng.u32(2..=16),
            isolation: Isolation::ALL[rng.usize(..3)],
            whole_batches: rng.bool(),
            misbehaves: misbehaves && rng.u32(..3) == 0,
            transactions: rng.u32(1..=4),
            rest_ms: rng.u64(20..=60),
        }
    }

    /// In which what is left is delivered soon.
    pub fn plain() -> Self {
        Self {
            seed: 0,
            profile: "auto".to_owned(),
            batch_size: 1000,
            lease_ms: 1000,
            processors: 8,
            pool: 4,
            isolation: Isolation::ReadCommitted,
            whole_batches: false,
            misbehaves: false,
            transactions: 1,
            rest_ms: 10,
        }
    }

    pub const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}
