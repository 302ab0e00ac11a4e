//! Its settings for a load: the profile that its documentation names for it, and what was fastest of what was tried; docs/performance.md
//! has the numbers.

use std::time::Duration;

use anyhow::{Result, bail};
use harness::{Database, Load, Target};
use modkit_db::{
    Db,
    outbox::{Outbox, OutboxBuilder, OutboxProfile, WorkerTuning},
};

/// How many process, and how many only sequence; one more sequences and cleans up. On PostgreSQL this was the fastest, elsewhere it is
/// as by default.
const fn crew(database: Database) -> (usize, usize) {
    match database {
        Database::Postgres => (8, 1),
        Database::Mariadb | Database::Sqlite => (4, 2),
    }
}
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
    crew: (usize, usize),
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
        let crew = crew(target.database);
        Ok(Self { profile, crew, vacuums, connections: connections(target, crew)? })
    }

    pub fn builder(&self, db: &Db) -> OutboxBuilder {
        let (processors, sequencers) = self.crew;
        Outbox::builder(db.clone())
            .profile(self.profile.clone())
            .processors(processors)
            .maintenance(sequencers, 1)
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

fn connections(target: &Target, (processors, sequencers): (usize, usize)) -> Result<u32> {
    Ok(match target.database {
        // As in its own benchmark: of several, one that has read and wants to write finds the file busy.
        Database::Sqlite => 1,
        Database::Postgres | Database::Mariadb => {
            u32::try_from(processors + sequencers)? + 1 + target.load.producers + SPARE_CONNECTIONS
        }
    })
}
