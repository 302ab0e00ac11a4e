//! Every duration that the library promises or waits for, as one value.
//!
//! The default is what the documentation promises. Tests scale the waits down, or switch timers off to prove that a
//! notification triggered a delivery. Limits on how long a server may take to answer stay constants beside their
//! statements: a test that shortened them would fail on a busy machine.

#![cfg_attr(
    not(feature = "test-util"),
    expect(unreachable_pub, reason = "public for `testing`, which this feature switches on")
)]

use std::time::Duration;

/// The intervals and waits of an outbox. For tests: applications keep the default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// The longest time without a check of everything: lost notifications and expired leases are found by it.
    pub beat: Duration,
    /// How often the sequencer and the reconciler poll, in turn, where PostgreSQL cannot notify (behind a pooler).
    pub poll: Duration,
    /// The watcher of MySQL and MariaDB.
    pub mysql_watcher: WatcherTimings,
    /// The watcher of SQLite.
    pub sqlite_watcher: WatcherTimings,
    /// A producer's transaction that is open for this long is polled rarely.
    pub open_for_long: Duration,

    /// Work that has not progressed for this long is reported as stalled.
    pub stalled_after: Duration,
    /// How often the monitor checks for stalls.
    pub monitor_interval: Duration,
    /// How long after the start the monitor checks first.
    pub monitor_delay: Duration,
    /// How often a stall is logged again.
    pub stall_reminder: Duration,
    /// How long a health check waits for the database before it reports it as unreachable.
    pub health_limit: Duration,

    /// How long a worker waits before it asks a database again that did not answer.
    pub unreachable: Duration,
    /// How often an outage is logged again.
    pub outage_reminder: Duration,
    /// After how long a tick of another process is logged as stuck, and how often.
    pub tick_warning: Duration,

    /// How long one execution of a processor lasts before it yields its permit.
    pub processor_slice: Duration,
    /// How often a partition that another transaction has locked is tried again.
    pub locked: Duration,
    /// After how long such a lock is logged, and how often.
    pub lock_warning: Duration,
    /// How often a running handler's queue is checked for a pause.
    pub pause_poll: Duration,
    /// How long a queue is assumed to be paused before the database is asked again.
    pub pause_belief: Duration,
    /// The least time that the database has to answer at the end of a transactional handler's call.
    pub handler_answer: Duration,
    /// How much longer than its lease or timeout the server keeps the session of a silent handler.
    pub session_silence: Duration,

    /// How long a small number of settled rows may stay before the vacuum removes them.
    pub vacuum_linger: Duration,
    /// How long one execution of the vacuum lasts before it yields its permit.
    pub vacuum_slice: Duration,
    /// How long `Outbox::vacuum` waits for another session that removes rows.
    pub sweep_patience: Duration,
    /// How long after the grace period the workers may take to release their leases.
    pub release: Duration,

    /// How long an enqueue to a pool waits for SQLite's write lock.
    pub sqlite_write_limit: Duration,
}

/// The polling intervals of a watcher: what looks for changes where the database does not notify.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatcherTimings {
    /// While nothing changes.
    pub idle: Duration,
    /// After a change.
    pub active: Duration,
    /// For how long after a change.
    pub active_for: Duration,
    /// How often to look for free partitions while nothing changes. Only MySQL and MariaDB: SQLite leaves it to the beat.
    pub reconcile_idle: Duration,
    /// The shortest time between two such looks after changes.
    pub reconcile_active: Duration,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Longer than any test.
#[cfg(feature = "test-util")]
const NEVER: Duration = secs(3600);

/// What no busy machine exceeds.
#[cfg(feature = "test-util")]
const PATIENT_RELEASE: Duration = secs(20);

/// What the documentation promises.
const PROMISED: Timings = Timings {
    beat: secs(5),
    poll: ms(60),
    mysql_watcher: WatcherTimings {
        idle: ms(75),
        active: ms(15),
        active_for: secs(1),
        reconcile_idle: ms(250),
        reconcile_active: ms(50),
    },
    sqlite_watcher: WatcherTimings {
        idle: ms(60),
        active: ms(10),
        active_for: secs(1),
        reconcile_idle: secs(5),
        reconcile_active: ms(40),
    },
    open_for_long: secs(1),
    stalled_after: secs(5),
    monitor_interval: secs(3),
    monitor_delay: secs(1),
    stall_reminder: secs(60),
    health_limit: secs(3),
    unreachable: ms(500),
    outage_reminder: secs(15),
    tick_warning: secs(15),
    processor_slice: secs(1),
    locked: ms(250),
    lock_warning: secs(30),
    pause_poll: ms(500),
    pause_belief: secs(1),
    handler_answer: secs(1),
    session_silence: secs(1),
    vacuum_linger: secs(3),
    vacuum_slice: secs(1),
    sweep_patience: secs(10),
    release: ms(500),
    sqlite_write_limit: secs(30),
};

/// A stall can begin right behind a check, and the next check is the first to see it.
const _: () = {
    let (interval, stalled) = (PROMISED.monitor_interval.as_secs(), PROMISED.stalled_after.as_secs());
    assert!(interval + stalled.div_ceil(interval) * interval < 10, "a stall is to be reported within 10 s");
};

impl Default for Timings {
    fn default() -> Self {
        PROMISED
    }
}

#[cfg(feature = "test-util")]
impl Timings {
    /// The promised waits, divided by `divisor`.
    ///
    /// Three kinds are left as they are: limits after which a call fails (`health_limit`, `handler_answer`,
    /// `session_silence`, `sqlite_write_limit`, `sweep_patience`), which a busy machine would exceed; slices, which
    /// nothing waits for; and polling intervals of a few milliseconds. `release` is lengthened: a busy machine may take
    /// longer, and then leases would stay until they expire.
    #[must_use]
    pub fn scaled_down(divisor: u32) -> Self {
        let scaled = |duration: Duration| duration / divisor;
        let Self { mysql_watcher, sqlite_watcher, .. } = PROMISED;
        Self {
            beat: scaled(PROMISED.beat),
            mysql_watcher: WatcherTimings { active_for: scaled(mysql_watcher.active_for), ..mysql_watcher },
            sqlite_watcher: WatcherTimings {
                active_for: scaled(sqlite_watcher.active_for),
                ..sqlite_watcher
            },
            open_for_long: scaled(PROMISED.open_for_long),
            stalled_after: scaled(PROMISED.stalled_after),
            monitor_interval: scaled(PROMISED.monitor_interval),
            monitor_delay: scaled(PROMISED.monitor_delay),
            stall_reminder: scaled(PROMISED.stall_reminder),
            unreachable: scaled(PROMISED.unreachable),
            outage_reminder: scaled(PROMISED.outage_reminder),
            tick_warning: scaled(PROMISED.tick_warning),
            locked: scaled(PROMISED.locked),
            lock_warning: scaled(PROMISED.lock_warning),
            pause_poll: scaled(PROMISED.pause_poll),
            pause_belief: scaled(PROMISED.pause_belief),
            vacuum_linger: scaled(PROMISED.vacuum_linger),
            release: PATIENT_RELEASE,
            ..PROMISED
        }
    }

    /// Nothing is found by a timer: without the beat, and without polling where the database notifies. The watchers of
    /// MySQL and SQLite stay, for they are how other processes notify.
    #[must_use]
    pub const fn without_timers() -> Self {
        Self { beat: NEVER, poll: NEVER, release: PATIENT_RELEASE, ..PROMISED }
    }

    /// Nor by a watcher: only what happens in this process triggers anything, or what PostgreSQL notifies of.
    #[must_use]
    pub const fn without_watchers(self) -> Self {
        const SILENT: WatcherTimings = WatcherTimings {
            idle: NEVER,
            active: NEVER,
            active_for: NEVER,
            reconcile_idle: NEVER,
            reconcile_active: NEVER,
        };
        Self { mysql_watcher: SILENT, sqlite_watcher: SILENT, ..self }
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;

    #[test]
    fn scaling_by_one_changes_nothing_but_the_release() {
        let release = Timings::default().release;
        assert_eq!(Timings { release, ..Timings::scaled_down(1) }, Timings::default());
    }

    #[test]
    fn scaling_shortens_waits_and_no_limit_after_which_a_call_fails() {
        let scaled = Timings::scaled_down(10);
        assert_eq!((scaled.beat, scaled.stalled_after), (ms(500), ms(500)));
        assert_eq!(scaled.health_limit, PROMISED.health_limit);
        assert_eq!(scaled.session_silence, PROMISED.session_silence);
    }
}
