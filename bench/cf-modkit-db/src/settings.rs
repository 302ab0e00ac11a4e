//! Its settings for a load.

use std::time::Duration;

use anyhow::{Result, bail};
use harness::{Database, Target};
use modkit_db::{
    Db,
    outbox::{Outbox, OutboxBuilder, OutboxProfile, WorkerTuning},
};

fn env(name: &str) -> Option<u64> { std::env::var(name).ok().and_then(|v| v.parse().ok()) }

/// As in its own benchmark.
const PROCESSORS: u32 = 8;
const SEQUENCERS: u32 = 3;
const VACUUMS: u32 = 1;
const RECONCILERS: u32 = 1;
const SPARE_CONNECTIONS: u32 = 10;

pub struct Settings {
    profile: OutboxProfile,
    pub vacuum: bool,
    pub connections: u32,
    processors: usize,
}

impl Settings {
    pub fn of(target: &Target) -> Result<Self> {
        let load = &target.load;
        let mut profile = match std::env::var("CF_PROFILE").ok().as_deref() {
            Some("ll") => OutboxProfile::low_latency(),
            Some("ht") => OutboxProfile::high_throughput(),
            _ => match load.per_transaction { 1 => OutboxProfile::low_latency(), _ => OutboxProfile::high_throughput() },
        };
        if let Some(n) = env("CF_PB") { profile.processor.batch_size = n as u32; }
        if let Some(n) = env("CF_SB") { profile.sequencer.batch_size = n as u32; }
        if let Some(n) = env("CF_PA") { profile.processor.active_interval = Duration::from_millis(n); }
        if let Some(n) = env("CF_PM") { profile.processor.min_interval = Duration::from_millis(n); }
        if let Some(n) = env("CF_SA") { profile.sequencer.active_interval = Duration::from_millis(n); }
        if let Some(n) = env("CF_SM") { profile.sequencer.min_interval = Duration::from_millis(n); }
        let vacuum = match target.variant.as_deref() {
            None => false,
            Some("vacuum") => true,
            Some(other) => bail!("no variant {other:?}: vacuum, or none for its vacuum as it is by default"),
        };
        if vacuum {
            let i = Duration::from_millis(env("CF_VAC").unwrap_or(100));
            profile.vacuum = WorkerTuning::vacuum().min_interval(i).active_interval(i).idle_interval(i);
        }
        if load.worker_processes > 0 {
            let i = Duration::from_millis(env("CF_REC").unwrap_or(100));
            profile.reconciler = profile.reconciler.min_interval(i.min(Duration::from_secs(1))).active_interval(i.min(Duration::from_secs(1))).idle_interval(i);
            let i = Duration::from_millis(env("CF_PI").unwrap_or(100));
            profile.processor = profile.processor.idle_interval(i);
        }
        let processors = env("CF_P").unwrap_or(PROCESSORS.into());
        let connections = match target.database {
            Database::Sqlite => env("CF_C").unwrap_or(1) as u32,
            _ => processors as u32 + SEQUENCERS + VACUUMS + RECONCILERS + load.producers + SPARE_CONNECTIONS,
        };
        Ok(Self { profile, vacuum, connections, processors: processors as usize })
    }

    pub fn builder(&self, db: &Db) -> OutboxBuilder {
        Outbox::builder(db.clone()).profile(self.profile.clone()).processors(self.processors)
            .maintenance(env("CF_G").unwrap_or(2) as usize, 1)
    }
}
