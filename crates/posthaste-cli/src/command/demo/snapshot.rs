//! How far it is, at one moment: what the views show.

use std::time::Duration;

use posthaste::{PartitionLag, WorkerId};

#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub elapsed: Duration,
    /// How much of the run is over, from 0 to 1.
    pub share: f64,
    pub phase: Phase,
    pub enqueued: u64,
    pub rolled_back: u64,
    pub delivered: u64,
    /// Deliveries a second, of late.
    pub rate: f64,
    pub dead_letters: u64,
    /// None if nobody is killed.
    pub kills: Option<u64>,
    pub partitions: Vec<Partition>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Phase {
    /// With how long it goes on: `of 12s`.
    Placing(String),
    #[default]
    Draining,
    Interrupted,
    Done,
}

#[derive(Debug, Clone, Copy)]
pub struct Partition {
    pub settled: u64,
    pub sequenced: u64,
    pub oldest: Option<Duration>,
    pub owner: Owner,
}

/// Whose lease it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    Nobody,
    Us,
    /// The second process, alive or not.
    Other,
}

impl Partition {
    pub fn of(lag: &PartitionLag, us: WorkerId) -> Self {
        let owner = match lag.owner {
            None => Owner::Nobody,
            Some(owner) if owner == us => Owner::Us,
            Some(_) => Owner::Other,
        };
        let seq = |seq: i64| u64::try_from(seq).unwrap_or_default();
        Self { settled: seq(lag.cursor_seq), sequenced: seq(lag.head_seq), oldest: lag.oldest, owner }
    }

    pub const fn depth(&self) -> u64 {
        self.sequenced.saturating_sub(self.settled)
    }
}

impl Snapshot {
    /// Messages that have their order and are not settled.
    pub fn lag(&self) -> u64 {
        self.partitions.iter().map(Partition::depth).sum()
    }

    /// The age of the oldest message that is not settled.
    pub fn oldest(&self) -> Option<Duration> {
        self.partitions.iter().filter_map(|partition| partition.oldest).max()
    }

    /// Whether the outbox says that nothing is left to do.
    pub fn is_settled(&self) -> bool {
        self.lag() == 0 && self.oldest().is_none()
    }

    /// What changes as long as anything happens.
    pub fn progress(&self) -> (u64, u64, u64) {
        let sum = |of: fn(&Partition) -> u64| self.partitions.iter().map(of).sum();
        (self.delivered, sum(|partition| partition.settled), sum(|partition| partition.sequenced))
    }
}
