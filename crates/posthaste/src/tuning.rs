//! How fast workers go, how much they take at once, and how long they stay away after a failure.
//!
//! Intervals are pace and safety nets, never the way news travels: a worker that has something to do is woken.

use std::time::Duration;

use taskward::{BackoffConfig, PacingConfig};

use crate::limits::DEFAULT_LEASE_DURATION;

/// The tuning of one kind of worker. Start from a constructor and change what differs:
///
/// ```
/// use posthaste::WorkerTuning;
///
/// let tuning = WorkerTuning::processor_high_throughput().batch_size(500).degradation_threshold(5);
/// tuning.validate();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerTuning {
    /// The most messages that are taken at once; not zero. For the sequencer on PostgreSQL, from how many rows on the
    /// next tick follows at once. Without meaning for the reconciler. For a processor,
    /// [`ADAPTIVE`](Self::ADAPTIVE) leaves it to the load.
    pub batch_size: u32,
    /// The shortest wait between two executions while there is more to do.
    pub min_interval: Duration,
    /// The first wait between two executions while there is more to do; at least `min_interval`.
    pub active_interval: Duration,
    /// How long a worker that nobody wakes stays idle; never longer than 5 s, except for the reconciler's look for
    /// messages that no tick will find.
    pub idle_interval: Duration,
    /// How much shorter each wait is than the one before it, down to `min_interval`.
    pub ramp_step: Duration,
    /// The back-off of a message after its second attempt; not zero, at most `retry_max`. It doubles with each further
    /// attempt. After the first attempt it is 50 ms, or this if it is shorter.
    pub retry_base: Duration,
    /// How long to stay away at most. From a database that fails, no worker stays away longer than 5 s.
    pub retry_max: Duration,
    /// After how many retries in a row a processor takes smaller batches; not zero. Without meaning for other workers.
    pub degradation_threshold: u32,
    /// How long a processor's lease lasts, unless its queue says otherwise. Without meaning for other workers.
    pub lease_duration: Duration,
}

/// The first retry of a message comes this soon.
const QUICK_RETRY: Duration = ms(50);

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

const fn mins(n: u64) -> Duration {
    Duration::from_secs(n * 60)
}

impl WorkerTuning {
    /// As the `batch_size` of a processor: 100 messages at first, twice as many while its batches are full, up to 500, and
    /// half as many while they are nearly empty.
    pub const ADAPTIVE: u32 = u32::MAX;

    /// A processor: gentle when idle.
    #[must_use]
    pub const fn processor_default() -> Self {
        Self {
            batch_size: 10,
            min_interval: ms(100),
            active_interval: ms(500),
            idle_interval: mins(10),
            ramp_step: ms(50),
            retry_base: secs(1),
            retry_max: mins(1),
            degradation_threshold: 2,
            lease_duration: DEFAULT_LEASE_DURATION,
        }
    }

    /// The same as [`processor_default`](Self::processor_default).
    #[must_use]
    pub const fn processor() -> Self {
        Self::processor_default()
    }

    /// A processor that answers at once.
    #[must_use]
    pub const fn processor_low_latency() -> Self {
        Self {
            min_interval: ms(1),
            active_interval: ms(2),
            idle_interval: mins(1),
            ramp_step: ms(1),
            retry_base: ms(100),
            retry_max: secs(10),
            degradation_threshold: 3,
            ..Self::processor_default()
        }
    }

    /// A processor that takes much at once.
    #[must_use]
    pub const fn processor_high_throughput() -> Self {
        Self {
            batch_size: 100,
            min_interval: ms(1),
            active_interval: ms(20),
            ramp_step: ms(2),
            ..Self::processor_default()
        }
    }

    /// A processor that is in no hurry, least of all after a failure.
    #[must_use]
    pub const fn processor_relaxed() -> Self {
        Self {
            retry_base: secs(5),
            retry_max: mins(5),
            degradation_threshold: 1,
            ..Self::processor_default()
        }
    }

    /// The sequencer: gentle when idle.
    #[must_use]
    pub const fn sequencer_default() -> Self {
        Self {
            batch_size: 1000,
            retry_base: ms(100),
            retry_max: secs(30),
            degradation_threshold: 1,
            ..Self::processor_default()
        }
    }

    /// The same as [`sequencer_default`](Self::sequencer_default).
    #[must_use]
    pub const fn sequencer() -> Self {
        Self::sequencer_default()
    }

    /// A sequencer that answers at once.
    #[must_use]
    pub const fn sequencer_low_latency() -> Self {
        Self {
            batch_size: 500,
            min_interval: ms(0),
            active_interval: ms(1),
            idle_interval: mins(1),
            ramp_step: ms(0),
            ..Self::sequencer_default()
        }
    }

    /// A sequencer that lets rows gather.
    #[must_use]
    pub const fn sequencer_high_throughput() -> Self {
        Self {
            batch_size: 2000,
            min_interval: ms(10),
            active_interval: ms(100),
            ramp_step: ms(10),
            ..Self::sequencer_default()
        }
    }

    /// A sequencer that is in no hurry.
    #[must_use]
    pub const fn sequencer_relaxed() -> Self {
        Self { ramp_step: ms(100), ..Self::sequencer_default() }
    }

    /// The vacuum.
    #[must_use]
    pub const fn vacuum() -> Self {
        Self {
            batch_size: 10_000,
            min_interval: secs(1),
            active_interval: secs(1),
            idle_interval: mins(60),
            ramp_step: ms(0),
            retry_base: secs(1),
            retry_max: mins(1),
            degradation_threshold: 1,
            lease_duration: DEFAULT_LEASE_DURATION,
        }
    }

    /// The reconciler.
    #[must_use]
    pub const fn reconciler() -> Self {
        Self { batch_size: 1, idle_interval: mins(1), ..Self::vacuum() }
    }

    /// Checks the fields.
    ///
    /// # Panics
    ///
    /// If a field is out of its range; the message names it, with the values.
    pub fn validate(&self) {
        assert!(self.batch_size > 0, "WorkerTuning: batch_size must not be 0");
        assert!(
            self.min_interval <= self.active_interval,
            "WorkerTuning: min_interval ({:?}) must not be greater than active_interval ({:?})",
            self.min_interval,
            self.active_interval,
        );
        assert!(!self.retry_base.is_zero(), "WorkerTuning: retry_base must not be zero");
        assert!(
            self.retry_base <= self.retry_max,
            "WorkerTuning: retry_base ({:?}) must not be greater than retry_max ({:?})",
            self.retry_base,
            self.retry_max,
        );
        assert!(self.degradation_threshold > 0, "WorkerTuning: degradation_threshold must not be 0");
    }

    /// The back-off after that many attempts of a message: 50 ms after the first, for most errors pass quickly; then
    /// `retry_base * 2^(attempts - 2)`, at most `retry_max`.
    #[must_use]
    pub fn retry_delay(&self, attempts: u32) -> Duration {
        match attempts {
            0 => Duration::ZERO,
            1 => self.retry_base.min(QUICK_RETRY),
            attempts => self.backoff().delay(attempts - 1),
        }
    }

    /// The same waits as a back-off without jitter.
    pub(crate) const fn backoff(&self) -> BackoffConfig {
        BackoffConfig { initial: self.retry_base, max: self.retry_max, multiplier: 2.0, jitter: 0.0 }
    }
}

macro_rules! setters {
    ($($field:ident: $type:ty),* $(,)?) => {
        impl WorkerTuning {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self#structfield.", stringify!($field), ").")]
                #[must_use]
                pub const fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

setters! {
    batch_size: u32,
    min_interval: Duration,
    active_interval: Duration,
    idle_interval: Duration,
    ramp_step: Duration,
    retry_base: Duration,
    retry_max: Duration,
    degradation_threshold: u32,
    lease_duration: Duration,
}

impl From<WorkerTuning> for PacingConfig {
    fn from(tuning: WorkerTuning) -> Self {
        Self {
            min_interval: tuning.min_interval,
            active_interval: tuning.active_interval,
            ramp_step: tuning.ramp_step,
        }
    }
}

/// The tuning of all four kinds of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutboxProfile {
    /// Of the worker that turns new messages into order.
    pub sequencer: WorkerTuning,
    /// Of the workers that call the handlers.
    pub processor: WorkerTuning,
    /// Of the worker that removes what every reader has passed.
    pub vacuum: WorkerTuning,
    /// Of the worker that looks for work that a lost wake-up left behind.
    pub reconciler: WorkerTuning,
}

impl Default for OutboxProfile {
    fn default() -> Self {
        Self::default_profile()
    }
}

impl OutboxProfile {
    /// Gentle when idle.
    #[must_use]
    pub const fn default_profile() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_default(),
            processor: WorkerTuning::processor_default(),
            vacuum: WorkerTuning::vacuum(),
            reconciler: WorkerTuning::reconciler(),
        }
    }

    /// Answers at once, at the price of more statements.
    #[must_use]
    pub const fn low_latency() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_low_latency(),
            processor: WorkerTuning::processor_low_latency(),
            vacuum: WorkerTuning::vacuum(),
            reconciler: WorkerTuning::reconciler().idle_interval(secs(30)),
        }
    }

    /// Few statements and commits a message, at the price of latency.
    #[must_use]
    pub const fn high_throughput() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_high_throughput(),
            processor: WorkerTuning::processor_high_throughput(),
            vacuum: WorkerTuning::vacuum(),
            reconciler: WorkerTuning::reconciler(),
        }
    }

    /// Picks batch sizes and pace from the load it sees: answers at once when idle, and takes ever more at once while
    /// there is more to take.
    #[must_use]
    pub const fn auto() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_low_latency().batch_size(2000),
            processor: WorkerTuning::processor_low_latency()
                .batch_size(WorkerTuning::ADAPTIVE)
                .retry_base(secs(1))
                .retry_max(mins(1)),
            ..Self::low_latency()
        }
    }

    /// In no hurry.
    #[must_use]
    pub const fn relaxed() -> Self {
        Self {
            sequencer: WorkerTuning::sequencer_relaxed(),
            processor: WorkerTuning::processor_relaxed(),
            vacuum: WorkerTuning::vacuum(),
            reconciler: WorkerTuning::reconciler().idle_interval(mins(2)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_constructors_are_the_table_of_the_documentation() {
        type Row = (&'static str, WorkerTuning, (u32, u64, u64, u64, u64, u64, u64, u32));
        let min = 60_000;
        let rows: [Row; 12] = [
            ("processor", WorkerTuning::processor(), (10, 100, 500, 10 * min, 50, 1000, min, 2)),
            (
                "processor_default",
                WorkerTuning::processor_default(),
                (10, 100, 500, 10 * min, 50, 1000, min, 2),
            ),
            (
                "processor_low_latency",
                WorkerTuning::processor_low_latency(),
                (10, 1, 2, min, 1, 100, 10_000, 3),
            ),
            (
                "processor_high_throughput",
                WorkerTuning::processor_high_throughput(),
                (100, 1, 20, 10 * min, 2, 1000, min, 2),
            ),
            (
                "processor_relaxed",
                WorkerTuning::processor_relaxed(),
                (10, 100, 500, 10 * min, 50, 5000, 5 * min, 1),
            ),
            ("sequencer", WorkerTuning::sequencer(), (1000, 100, 500, 10 * min, 50, 100, 30_000, 1)),
            (
                "sequencer_default",
                WorkerTuning::sequencer_default(),
                (1000, 100, 500, 10 * min, 50, 100, 30_000, 1),
            ),
            (
                "sequencer_low_latency",
                WorkerTuning::sequencer_low_latency(),
                (500, 0, 1, min, 0, 100, 30_000, 1),
            ),
            (
                "sequencer_high_throughput",
                WorkerTuning::sequencer_high_throughput(),
                (2000, 10, 100, 10 * min, 10, 100, 30_000, 1),
            ),
            (
                "sequencer_relaxed",
                WorkerTuning::sequencer_relaxed(),
                (1000, 100, 500, 10 * min, 100, 100, 30_000, 1),
            ),
            ("vacuum", WorkerTuning::vacuum(), (10_000, 1000, 1000, 60 * min, 0, 1000, min, 1)),
            ("reconciler", WorkerTuning::reconciler(), (1, 1000, 1000, min, 0, 1000, min, 1)),
        ];
        for (name, tuning, (batch, least, active, idle, ramp, base, max, degrade)) in rows {
            let expected = WorkerTuning {
                batch_size: batch,
                min_interval: ms(least),
                active_interval: ms(active),
                idle_interval: ms(idle),
                ramp_step: ms(ramp),
                retry_base: ms(base),
                retry_max: ms(max),
                degradation_threshold: degrade,
                lease_duration: secs(30),
            };
            assert_eq!(tuning, expected, "{name}");
            tuning.validate();
        }
    }

    #[test]
    fn a_profile_is_its_four_tunings() {
        assert_eq!(OutboxProfile::default(), OutboxProfile::default_profile());
        for (profile, sequencer, processor, reconciler_idle) in [
            (OutboxProfile::default(), WorkerTuning::sequencer(), WorkerTuning::processor(), 60),
            (
                OutboxProfile::low_latency(),
                WorkerTuning::sequencer_low_latency(),
                WorkerTuning::processor_low_latency(),
                30,
            ),
            (
                OutboxProfile::high_throughput(),
                WorkerTuning::sequencer_high_throughput(),
                WorkerTuning::processor_high_throughput(),
                60,
            ),
            (
                OutboxProfile::relaxed(),
                WorkerTuning::sequencer_relaxed(),
                WorkerTuning::processor_relaxed(),
                120,
            ),
        ] {
            assert_eq!((profile.sequencer, profile.processor), (sequencer, processor));
            assert_eq!(profile.vacuum, WorkerTuning::vacuum());
            assert_eq!(profile.reconciler, WorkerTuning::reconciler().idle_interval(secs(reconciler_idle)));
        }
    }

    #[test]
    fn the_retry_delay_doubles_up_to_its_maximum() {
        let tuning = WorkerTuning::processor();
        let delays = [0, 1, 2, 3, 7, 8, 9, u32::MAX].map(|attempts| tuning.retry_delay(attempts).as_millis());
        assert_eq!(delays, [0, 50, 1000, 2000, 32_000, 60_000, 60_000, 60_000]);
        let quicker = tuning.retry_base(ms(10));
        assert_eq!([1, 2, 3].map(|attempts| quicker.retry_delay(attempts)), [ms(10), ms(10), ms(20)]);
    }

    #[test]
    fn a_wrong_tuning_is_refused_by_name_with_its_values() {
        let ok = WorkerTuning::processor();
        for (tuning, telling) in [
            (ok.batch_size(0), "batch_size must not be 0"),
            (ok.min_interval(secs(1)), "min_interval (1s) must not be greater than active_interval (500ms)"),
            (ok.retry_base(secs(0)), "retry_base must not be zero"),
            (ok.retry_base(mins(2)), "retry_base (120s) must not be greater than retry_max (60s)"),
            (ok.degradation_threshold(0), "degradation_threshold must not be 0"),
        ] {
            let panic = std::panic::catch_unwind(|| tuning.validate()).unwrap_err();
            let text = taskward::panic_text(&*panic);
            assert!(text.contains(telling), "{text:?} should say {telling:?}");
        }
    }

    #[test]
    fn a_tuning_is_a_pace() {
        let pacing = PacingConfig::from(WorkerTuning::processor());
        let expected = PacingConfig { min_interval: ms(100), active_interval: ms(500), ramp_step: ms(50) };
        assert_eq!(pacing, expected);
    }
}
