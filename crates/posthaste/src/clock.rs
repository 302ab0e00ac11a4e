//! The database's clock, as far as this process knows it.
//!
//! A message's age is the difference of two clocks unless both ends are told by the same one: messages are stamped by the
//! database. What time it is there is found out now and then, so that an age costs no statement; in between, this machine counts the
//! time that passes, whatever its own clock is set to.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// How long an answer may take that tells the time well enough.
const PROMPT: Duration = Duration::from_millis(100);

/// What time it is by the database's clock; by this machine's, until the database was asked. Cheap to clone, and one for all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    known: Arc<Mutex<Option<Known>>>,
}

/// It was `told`, in microseconds since 1970, at that moment, give or take half of the time that the answer took.
#[derive(Debug, Clone, Copy)]
struct Known {
    told: i64,
    at: Instant,
    quickest: Duration,
}

impl Clock {
    /// The database said what time it is, somewhere between these two moments. An answer that took much longer than the quickest one
    /// has waited for something, nobody knows on which way, and is not taken.
    pub(crate) fn compare(&self, asked: Instant, told: i64, answered: Instant) {
        let took = answered.saturating_duration_since(asked);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let quickest = known.map_or(took, |known| known.quickest.min(took));
        if took <= PROMPT.max(2 * quickest) {
            *known = Some(Known { told, at: asked + took / 2, quickest });
        }
    }

    /// How old what the database stamped is by its clock.
    pub(crate) fn age(&self, stamped: SystemTime) -> Duration {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let now = known.map_or_else(
            || micros(SystemTime::now()),
            |known| known.told.saturating_add(as_micros(known.at.elapsed())),
        );
        Duration::from_micros(u64::try_from(now.saturating_sub(micros(stamped))).unwrap_or_default())
    }
}

fn micros(time: SystemTime) -> i64 {
    as_micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn as_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_by_the_databases_clock() {
        let (clock, hour, minute) = (Clock::default(), Duration::from_secs(3600), Duration::from_secs(60));
        let (now, at) = (SystemTime::now(), Instant::now());
        assert!(clock.age(now - minute) >= minute);
        clock.compare(at, micros(now - hour), at);
        let age = clock.age(now - hour - minute);
        assert!(age >= minute && age < 2 * minute, "{age:?}");
        assert_eq!(
            clock.age(now),
            Duration::ZERO,
            "stamped later than now, by a clock that has been set since"
        );
    }

    #[test]
    fn an_answer_that_had_to_wait_tells_no_time() {
        let (clock, second) = (Clock::default(), Duration::from_secs(1));
        let (now, at) = (SystemTime::now(), Instant::now());
        clock.compare(at, micros(now), at + Duration::from_millis(5));
        clock.compare(at, micros(now + 10 * second), at + 20 * second);
        assert!(clock.age(now) < second, "it is still told by the first one");
        clock.compare(at, micros(now + 30 * second), at + Duration::from_millis(50));
        assert!(clock.age(now) >= 29 * second);
    }
}
