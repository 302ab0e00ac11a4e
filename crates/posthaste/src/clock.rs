//! The database's clock, as far as this process knows it.
//!
//! A message's age is the difference of two clocks unless both ends are told by the same one: messages are stamped by the
//! database. How far that is ahead of ours is found out now and then, so that an age costs no statement.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// How far the database's clock is ahead of this machine's; nothing until it was asked. Cheap to clone, and one for all clones.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    ahead_us: Arc<AtomicI64>,
}

impl Clock {
    /// The database said that it is `told`, in microseconds since 1970, somewhere between these two moments.
    pub(crate) fn compare(&self, asked: SystemTime, told: i64, answered: SystemTime) {
        let ours = i64::midpoint(micros(asked), micros(answered));
        self.ahead_us.store(told.saturating_sub(ours), Ordering::Relaxed);
    }

    /// How old what the database stamped is by its clock.
    pub(crate) fn age(&self, stamped: SystemTime) -> Duration {
        let now = micros(SystemTime::now()).saturating_add(self.ahead_us.load(Ordering::Relaxed));
        Duration::from_micros(u64::try_from(now.saturating_sub(micros(stamped))).unwrap_or_default())
    }
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_told_by_the_databases_clock() {
        let (clock, hour, minute) = (Clock::default(), Duration::from_secs(3600), Duration::from_secs(60));
        let now = SystemTime::now();
        assert!(clock.age(now - minute) >= minute);
        clock.compare(now - minute, micros(now - hour), now + minute);
        let age = clock.age(now - hour - minute);
        assert!(age >= minute && age < 2 * minute, "{age:?}");
        assert_eq!(
            clock.age(now),
            Duration::ZERO,
            "stamped later than now, by a clock that has been set since"
        );
    }
}
