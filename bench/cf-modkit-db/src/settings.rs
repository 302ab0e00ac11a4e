//! Its settings for a load: the profile that its documentation names for it, and the batch size that was fastest here.

use std::time::Duration;

use anyhow::{Result, bail};
use harness::{Database, Load, Target};
use modkit_db::{
    Db,
    outbox::{Outbox, OutboxBuilder, OutboxProfile, WorkerTuning},
};

const PROCESSORS: u32 = 4;
/// Two that only sequence, and one that also cleans up.
const SEQUENCERS: u32 = 3;
/// The vacuum, the reconciler, and as many as its own benchmark adds.
const SPARE_CONNECTIONS: u32 = 2 + 10;

const LARGE_BATCH: u32 = 1000;
const SMALL_BATCH: u32 = 100;

/// How long the vacuum may sleep where it is made to run all the time.
const VACUUM_SLEEP: Duration = Duration::from_millis(100);
/// An enqueue wakes nobody in another process: how long they may sleep there. By default that is one minute and ten.
const RECONCILER_SLEEP: Duration = Duration::from_millis(100);
const PROCESSOR_SLEEP: Duration = Duration::from_millis(100);

pub struct Settings {
    profile: OutboxProfile,
    /// Whether what was delivered is removed soon.
    pub vacuums: bool,
    pub connections: u32,
}

impl Settings {
    pub fn of(target: &Target) -> Result<Self> {
        let vacuums = match target.variant.as_deref() {
            None => false,
            Some("vacuum") => true,
            Some(other) => bail!("no variant {other:?}: vacuum, or none for its vacuum as it is by default"),
        };
        let mut profile = profile(&target.load);
        if vacuums {
            profile.vacuum = awake(WorkerTuning::vacuum(), VACUUM_SLEEP);
        }
        if target.load.worker_processes > 0 {
            profile.reconciler = awake(profile.reconciler, RECONCILER_SLEEP);
            profile.processor = profile.processor.idle_interval(PROCESSOR_SLEEP);
        }
        Ok(Self { profile, vacuums, connections: connections(target) })
    }

    pub fn builder(&self, db: &Db) -> OutboxBuilder {
        Outbox::builder(db.clone()).profile(self.profile.clone())
    }
}

fn profile(load: &Load) -> OutboxProfile {
    let (mut profile, batch) = match load.per_transaction {
        1 => (OutboxProfile::low_latency(), SMALL_BATCH),
        _ => (OutboxProfile::high_throughput(), LARGE_BATCH),
    };
    profile.processor = profile.processor.batch_size(batch);
    profile
}

/// Never asleep for longer than this.
fn awake(worker: WorkerTuning, sleep: Duration) -> WorkerTuning {
    worker.min_interval(sleep).active_interval(sleep).idle_interval(sleep)
}

fn connections(target: &Target) -> u32 {
    match target.database {
        // As in its own benchmark: of several, one that has read and wants to write finds the file busy.
        Database::Sqlite => 1,
        Database::Postgres | Database::Mariadb => {
            PROCESSORS + SEQUENCERS + target.load.producers + SPARE_CONNECTIONS
        }
    }
}
