//! Its settings, from what was drawn for the process.

use std::time::Duration;

use modkit_db::{
    Db,
    outbox::{LeaseConfig, Outbox, OutboxBuilder, OutboxProfile, WorkerTuning},
};
use posthaste_torture_protocol::circumstances::Setup;

/// An enqueue wakes nobody in another process: how long workers may sleep. By default that is one minute and ten.
const SLEEP: Duration = Duration::from_millis(100);

/// Sequencers that do nothing else, and those that clean up, too: as by default.
const MAINTENANCE: (usize, usize) = (2, 1);
/// What its documentation asks for besides, and a few.
const SPARE_CONNECTIONS: u32 = 4;

/// Its documentation asks for a connection for each of them.
pub fn connections(setup: &Setup) -> u32 {
    let (guaranteed, shared) = MAINTENANCE;
    u32::try_from(setup.processors + guaranteed + shared).unwrap_or(u32::MAX).max(setup.transactions)
        + SPARE_CONNECTIONS
}

pub fn builder(db: &Db, setup: &Setup) -> OutboxBuilder {
    let (guaranteed, shared) = MAINTENANCE;
    Outbox::builder(db.clone())
        .profile(profile(setup))
        .processors(setup.processors)
        .maintenance(guaranteed, shared)
        .stats_interval(Duration::ZERO)
}

/// One of the two that do not rest between batches, with the batches that were drawn, and little patience after failures: there are many.
fn profile(setup: &Setup) -> OutboxProfile {
    let mut profile = match setup.profile.as_str() {
        "low-latency" | "default" => OutboxProfile::low_latency(),
        _ => OutboxProfile::high_throughput(),
    };
    profile.reconciler = awake(profile.reconciler);
    profile.processor = profile
        .processor
        .batch_size(setup.batch_size)
        .idle_interval(SLEEP)
        .retry_base(Duration::from_millis(50))
        .retry_max(Duration::from_millis(400));
    profile
}

fn awake(worker: WorkerTuning) -> WorkerTuning {
    worker.min_interval(SLEEP).active_interval(SLEEP).idle_interval(SLEEP)
}

/// With the same part of it for settling as posthaste leaves.
pub fn lease(setup: &Setup) -> LeaseConfig {
    let duration = setup.lease();
    LeaseConfig { duration, headroom: (duration / 4).min(Duration::from_secs(2)) }
}

/// How long a handler has, of a lease.
pub fn budget(setup: &Setup) -> Duration {
    let LeaseConfig { duration, headroom } = lease(setup);
    duration - headroom
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    #[test]
    fn whatever_is_drawn_it_can_be_set_to() {
        for seed in 0..100 {
            let mut setup = Setup::draw(&mut Rng::with_seed(seed), true, true);
            setup.round_lease();
            // It cuts off what is less than a second.
            assert!(setup.lease_ms >= 1000 && setup.lease_ms.is_multiple_of(1000));
            assert!(budget(&setup) < setup.lease());
            let needed = setup.processors.max(usize::try_from(setup.transactions).unwrap_or_default());
            assert!(usize::try_from(connections(&setup)).is_ok_and(|connections| connections > needed));
        }
    }
}
