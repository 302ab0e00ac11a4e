//! How long a failing worker stays away.

use std::time::Duration;

/// Exponential back-off: `initial * multiplier^(failures - 1)`, at most `max`, shortened at random by up to the
/// fraction `jitter` so that workers that failed together do not return together.
///
/// Jitter only ever shortens: `max` is then a promise, and workers that have all reached it still spread out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffConfig {
    /// The wait after the first failure; not zero.
    pub initial: Duration,
    /// The longest wait; at least `initial`.
    pub max: Duration,
    /// How much longer each wait is than the one before it; finite and at least 1.
    pub multiplier: f64,
    /// The fraction of a wait that chance may take away, from 0 to 1.
    pub jitter: f64,
}

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(100),
            max: Duration::from_secs(30),
            multiplier: 2.0,
            jitter: 0.3,
        }
    }
}

impl BackoffConfig {
    /// Checks each field.
    ///
    /// # Panics
    ///
    /// If a field is out of its range; the message names it.
    pub fn validate(&self) {
        let Self { initial, max, multiplier, jitter } = *self;
        assert!(!initial.is_zero(), "BackoffConfig: initial must not be zero");
        assert!(
            initial <= max,
            "BackoffConfig: initial ({initial:?}) must not be greater than max ({max:?})"
        );
        assert!(
            multiplier.is_finite() && multiplier >= 1.0,
            "BackoffConfig: multiplier ({multiplier}) must be a number of at least 1",
        );
        assert!((0.0..=1.0).contains(&jitter), "BackoffConfig: jitter ({jitter}) must be from 0 to 1");
    }

    /// The wait after that many failures in a row, without jitter. No failure, no wait.
    #[must_use]
    pub fn delay(&self, failures: u32) -> Duration {
        if failures == 0 {
            return Duration::ZERO;
        }
        let exponent = i32::try_from(failures - 1).unwrap_or(i32::MAX);
        let seconds = self.initial.as_secs_f64() * self.multiplier.powi(exponent);
        // Past the range of a Duration, infinity included, is past `max` too.
        Duration::try_from_secs_f64(seconds).map_or(self.max, |delay| delay.min(self.max))
    }

    /// [`delay`](Self::delay) with jitter: between `delay * (1 - jitter)` and `delay`.
    #[must_use]
    pub fn jittered_delay(&self, failures: u32) -> Duration {
        let delay = self.delay(failures);
        let kept = 1.0 - self.jitter * fastrand::f64();
        Duration::try_from_secs_f64(delay.as_secs_f64() * kept).map_or(delay, |jittered| jittered.min(delay))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_config() -> impl Strategy<Value = BackoffConfig> {
        (1..100_000_u64, 1..100_000_u64, 1.0..20.0_f64, 0.0..=1.0_f64).prop_map(
            |(a, b, multiplier, jitter)| BackoffConfig {
                initial: Duration::from_millis(a.min(b)),
                max: Duration::from_millis(a.max(b)),
                multiplier,
                jitter,
            },
        )
    }

    proptest! {
        #[test]
        fn the_first_delay_is_the_initial_one_and_none_is_above_max(config in any_config(), failures in 1..=u32::MAX) {
            prop_assert_eq!(config.delay(1), config.initial);
            prop_assert!((config.initial..=config.max).contains(&config.delay(failures)));
        }

        #[test]
        fn more_failures_never_wait_less(config in any_config(), failures in 1..u32::MAX) {
            prop_assert!(config.delay(failures) <= config.delay(failures + 1));
        }

        #[test]
        fn jitter_stays_in_its_bounds(config in any_config(), failures in 1..200_u32) {
            let delay = config.delay(failures);
            // A nanosecond for rounding in floating point.
            let least = delay.mul_f64(1.0 - config.jitter).saturating_sub(Duration::from_nanos(1));
            for _ in 0..32 {
                prop_assert!((least..=delay).contains(&config.jittered_delay(failures)));
            }
        }
    }

    #[test]
    fn jitter_uses_its_whole_range() {
        let config = BackoffConfig {
            initial: Duration::from_secs(100),
            max: Duration::from_secs(100),
            multiplier: 1.0,
            jitter: 0.3,
        };
        let draws: Vec<_> = (0..10_000).map(|_| config.jittered_delay(1).as_secs_f64()).collect();
        let (low, high) = draws.iter().fold((f64::MAX, 0.0_f64), |(l, h), d| (l.min(*d), h.max(*d)));
        assert!((70.0..71.0).contains(&low) && (99.0..=100.0).contains(&high), "{low} to {high}");
    }

    #[test]
    fn ten_thousand_failures_do_not_overflow() {
        for max in [Duration::from_secs(30), Duration::MAX] {
            let config = BackoffConfig { max, ..BackoffConfig::default() };
            for failures in (1..10_000).chain([u32::MAX]) {
                assert!(config.jittered_delay(failures) <= max);
            }
            assert_eq!(config.delay(10_000), max);
        }
    }

    fn refusal(config: BackoffConfig) -> String {
        let panic = std::panic::catch_unwind(|| config.validate()).unwrap_err();
        crate::panic_text(panic.as_ref())
    }

    #[test]
    fn a_wrong_config_is_refused_by_name() {
        let ok = BackoffConfig::default();
        for (config, field) in [
            (BackoffConfig { initial: Duration::ZERO, ..ok }, "initial must not be zero"),
            (
                BackoffConfig { initial: Duration::from_secs(31), ..ok },
                "initial (31s) must not be greater than max (30s)",
            ),
            (BackoffConfig { multiplier: 0.5, ..ok }, "multiplier (0.5)"),
            (BackoffConfig { multiplier: f64::INFINITY, ..ok }, "multiplier (inf)"),
            (BackoffConfig { multiplier: f64::NAN, ..ok }, "multiplier (NaN)"),
            (BackoffConfig { jitter: -0.1, ..ok }, "jitter (-0.1)"),
            (BackoffConfig { jitter: 1.1, ..ok }, "jitter (1.1)"),
            (BackoffConfig { jitter: f64::NAN, ..ok }, "jitter (NaN)"),
        ] {
            let text = refusal(config);
            assert!(text.contains(field), "{text:?} should name {field:?}");
        }
    }
}
