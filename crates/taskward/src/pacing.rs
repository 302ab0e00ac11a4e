//! How fast a worker goes on while it has more to do.

use std::time::Duration;

/// The pace between executions that return [`Directive::Proceed`](crate::Directive::Proceed).
///
/// The first wait is `active_interval`; each further one is `ramp_step` shorter, down to `min_interval`. Going idle
/// or failing starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacingConfig {
    /// The shortest wait; zero executes again without one.
    pub min_interval: Duration,
    /// The first wait.
    pub active_interval: Duration,
    /// How much shorter each wait is than the one before it; zero keeps the pace at `active_interval`.
    pub ramp_step: Duration,
}

impl Default for PacingConfig {
    fn default() -> Self {
        Self {
            min_interval: Duration::from_millis(10),
            active_interval: Duration::from_millis(100),
            ramp_step: Duration::from_millis(10),
        }
    }
}

impl PacingConfig {
    /// Checks the relation between the fields.
    ///
    /// # Panics
    ///
    /// If `min_interval` is greater than `active_interval`.
    pub fn validate(&self) {
        assert!(
            self.min_interval <= self.active_interval,
            "PacingConfig: min_interval ({:?}) must not be greater than active_interval ({:?})",
            self.min_interval,
            self.active_interval,
        );
    }
}

/// The current pace: a value that only goes down, until it is reset.
#[derive(Debug)]
pub(crate) struct Pace {
    config: PacingConfig,
    next: Duration,
}

impl Pace {
    pub(crate) fn new(config: PacingConfig) -> Self {
        config.validate();
        Self { config, next: config.active_interval }
    }

    /// The wait before the next execution.
    pub(crate) fn step(&mut self) -> Duration {
        let now = self.next;
        self.next = now.saturating_sub(self.config.ramp_step).max(self.config.min_interval);
        now
    }

    pub(crate) fn reset(&mut self) {
        self.next = self.config.active_interval;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_config() -> impl Strategy<Value = PacingConfig> {
        (0..10_000_u64, 0..10_000_u64, 0..3_000_u64).prop_map(|(a, b, ramp)| PacingConfig {
            min_interval: Duration::from_millis(a.min(b)),
            active_interval: Duration::from_millis(a.max(b)),
            ramp_step: Duration::from_millis(ramp),
        })
    }

    proptest! {
        #[test]
        fn the_pace_is_the_closed_formula_at_every_step(config in any_config(), steps in 1..200_u32) {
            let mut pace = Pace::new(config);
            for n in 0..steps {
                let formula = config.active_interval.saturating_sub(config.ramp_step * n).max(config.min_interval);
                prop_assert_eq!(pace.step(), formula);
            }
        }

        #[test]
        fn the_pace_never_slows_down_and_never_leaves_its_bounds(config in any_config(), steps in 2..200_usize) {
            let mut pace = Pace::new(config);
            let waits: Vec<_> = (0..steps).map(|_| pace.step()).collect();
            prop_assert!(waits.is_sorted_by(|a, b| a >= b));
            prop_assert!(waits.iter().all(|w| (config.min_interval..=config.active_interval).contains(w)));
        }

        #[test]
        fn a_reset_starts_over(config in any_config(), steps in 0..50_usize) {
            let mut pace = Pace::new(config);
            for _ in 0..steps {
                pace.step();
            }
            pace.reset();
            prop_assert_eq!(pace.step(), config.active_interval);
        }
    }

    #[test]
    fn extreme_values_do_not_overflow() {
        let mut pace = Pace::new(PacingConfig {
            min_interval: Duration::ZERO,
            active_interval: Duration::MAX,
            ramp_step: Duration::MAX,
        });
        assert_eq!((pace.step(), pace.step(), pace.step()), (Duration::MAX, Duration::ZERO, Duration::ZERO));
    }

    #[test]
    #[should_panic(expected = "min_interval (2s) must not be greater than active_interval (1s)")]
    fn a_wrong_config_is_refused_by_name() {
        Pace::new(PacingConfig {
            min_interval: Duration::from_secs(2),
            active_interval: Duration::from_secs(1),
            ramp_step: Duration::ZERO,
        });
    }
}
