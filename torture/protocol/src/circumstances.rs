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
    /// About how many milliseconds each stays open after it enqueued; if none, few of them do.
    pub open_ms: u64,
    /// Whether some of them stay open for longer than anybody may have to wait for others.
    pub stays_open_for_long: bool,
    /// About how many milliseconds it rests after each.
    pub rest_ms: u64,
}

/// From how many waiting messages on producers add nothing.
pub const BACKLOG: u32 = 8000;

const PROFILES: [&str; 5] = ["default", "low-latency", "high-throughput", "auto", "relaxed"];

impl Setup {
    /// Transactions of producers overlap all the time if they can: where there is one writer at a time, they could only wait for each other.
    pub fn draw(rng: &mut Rng, misbehaves: bool, overlaps: bool) -> Self {
        // Long ones are short more often than not: whoever waits for the end of one does nothing else.
        let long = 1000 + rng.u64(..=29_000) * rng.u64(..=100) / 100 * rng.u64(..=100) / 100;
        let lease_ms = if rng.u32(..10) == 0 { long } else { rng.u64(500..=1000) };
        // Like a service that has much else to do in its transactions: at every moment, some of them are open.
        let is_busy = overlaps && rng.u32(..3) == 0;
        let transactions = if is_busy { rng.u32(4..=8) } else { rng.u32(1..=4) };
        Self {
            seed: rng.u64(..),
            profile: PROFILES[rng.usize(..PROFILES.len())].to_owned(),
            batch_size: [1, 10, 100, 1000][rng.usize(..4)].min(rng.u32(1..=1000)),
            lease_ms,
            processors: rng.usize(2..=16),
            pool: if is_busy { rng.u32(transactions + 1..=16) } else { rng.u32(2..=16) },
            isolation: Isolation::ALL[rng.usize(..3)],
            whole_batches: rng.bool(),
            misbehaves: misbehaves && rng.u32(..3) == 0,
            transactions,
            stays_open_for_long: overlaps && rng.u32(..4) == 0,
            open_ms: if is_busy { rng.u64(150..=400) } else { 0 },
            rest_ms: if is_busy { rng.u64(2..=10) } else { rng.u64(20..=60) },
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
            open_ms: 0,
            stays_open_for_long: false,
            rest_ms: 10,
        }
    }

    /// Up to whole seconds, for outboxes whose leases are counted in them.
    pub const fn round_lease(&mut self) {
        self.lease_ms = self.lease_ms.next_multiple_of(1000);
    }

    /// How long a producer's transaction stays open after it enqueued. Others overtake it meanwhile.
    pub fn stays_open(&self, rng: &mut Rng) -> Duration {
        if self.stays_open_for_long && rng.u32(..40) == 0 {
            return Duration::from_millis(rng.u64(6000..=8000));
        }
        Duration::from_millis(match self.open_ms {
            0 if rng.u32(..8) == 0 => rng.u64(1..=60),
            0 => 0,
            about => rng.u64(about / 2..=about + about / 2),
        })
    }

    /// How long a producer rests after a transaction.
    pub fn rests(&self, rng: &mut Rng) -> Duration {
        Duration::from_millis(rng.u64(0..=2 * self.rest_ms))
    }

    pub const fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_overlap_where_they_can() {
        let drawn =
            |overlaps| (0..100).map(move |seed| Setup::draw(&mut Rng::with_seed(seed), true, overlaps));
        assert!(drawn(false).all(|setup| setup.open_ms == 0));
        let busy: Vec<Setup> = drawn(true).filter(|setup| setup.open_ms > 0).collect();
        assert!((20..50).contains(&busy.len()), "{} of 100 are busy", busy.len());
        for setup in busy {
            assert!(setup.transactions >= 4 && setup.pool > setup.transactions);
            let open = setup.stays_open(&mut Rng::with_seed(setup.seed));
            assert!(
                open >= setup.rests(&mut Rng::with_seed(setup.seed)),
                "it rests for longer than it works"
            );
        }
    }
}
