//! Whether the machine was there: a virtual one is taken away from its guests now and then, for tens of milliseconds, and other
//! programs want it too. What is promised of an idle system is not measured in such a moment.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long a watcher sleeps; and how late it may wake up without anybody being blamed.
const NAP: Duration = Duration::from_millis(1);
const YAWN: Duration = Duration::from_millis(2);

/// From when to when.
pub type Span = (Instant, Instant);

/// As many watchers as there are cores, who only want to wake up every millisecond. When one of them could not, somebody else had
/// the core: another guest, another program, or, if it keeps all of them busy, what is measured.
pub struct Presence {
    watchers: Vec<JoinHandle<Vec<Span>>>,
    is_over: Arc<AtomicBool>,
}

impl Presence {
    pub fn watch() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let watcher = |_| {
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || absences_until(&is_over))
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { watchers: (0..cores).map(watcher).collect(), is_over: Arc::clone(&is_over) }
    }

    /// When the machine was away.
    pub fn absences(self) -> Vec<Span> {
        self.is_over.store(true, Ordering::Relaxed);
        self.watchers.into_iter().flat_map(|watcher| watcher.join().unwrap()).collect()
    }
}

fn absences_until(is_over: &AtomicBool) -> Vec<Span> {
    let mut absences = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let due = Instant::now() + NAP;
        std::thread::sleep(NAP);
        let woke = Instant::now();
        if woke.saturating_duration_since(due) > YAWN {
            absences.push((due, woke));
        }
    }
    absences
}

/// Of these, 99 % are within the limit, less what the machine was away meanwhile; and half of them by the clock too, lest slowness
/// of our own be taken for the machine's.
pub fn assert_p99(what: &str, spans: &[Span], absences: &[Span], limit: Duration) {
    let sorted = |mut delays: Vec<Duration>| {
        delays.sort_unstable();
        delays
    };
    let by_the_clock = sorted(spans.iter().map(|span| lasted(*span, &[])).collect());
    let there = sorted(spans.iter().map(|span| lasted(*span, absences)).collect());
    let within =
        |delays: &[Duration], percent: usize| delays[(delays.len() * percent).div_ceil(100) - 1] <= limit;
    assert!(
        within(&there, 99) && within(&by_the_clock, 50),
        "{what}: not within {limit:?}; while the machine was there {there:?}, by the clock {by_the_clock:?}"
    );
}

/// What two watchers missed at the same time counts once.
fn lasted((from, to): Span, absences: &[Span]) -> Duration {
    let mut absences: Vec<Span> =
        absences.iter().map(|(gone, back)| (*gone.max(&from), *back.min(&to))).collect();
    absences.retain(|(gone, back)| gone < back);
    absences.sort_unstable();
    let (mut there, mut known_until) = (Duration::ZERO, from);
    for (gone, back) in absences {
        there += gone.saturating_duration_since(known_until);
        known_until = known_until.max(back);
    }
    there + to.saturating_duration_since(known_until)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spans of milliseconds since a certain moment.
    fn spans(of_ms: impl IntoIterator<Item = (u64, u64)>) -> Vec<Span> {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        let at = |ms| *START + Duration::from_millis(ms);
        of_ms.into_iter().map(|(from, to)| (at(from), at(to))).collect()
    }

    #[test]
    fn what_the_machine_was_away_does_not_count() {
        for (absences, there) in [
            (vec![], 100),
            (vec![(0, 50), (100, 150)], 50),
            (vec![(0, 300)], 0),
            (vec![(120, 130), (125, 140), (50, 105)], 75),
            (vec![(0, 100), (200, 300)], 100),
        ] {
            let absences = spans(absences);
            assert_eq!(
                lasted(spans([(100, 200)])[0], &absences),
                Duration::from_millis(there),
                "{absences:?}"
            );
        }
    }

    /// A hundred, of which some take 80 ms, of which the machine was away for 50.
    fn is_fine(slow: u64, excused: u64) -> bool {
        let took = spans((0..100).map(|n| (100 * n, 100 * n + if n < slow { 80 } else { 20 })));
        let away = spans((0..excused).map(|n| (100 * n, 100 * n + 50)));
        std::panic::catch_unwind(|| assert_p99("it", &took, &away, Duration::from_millis(50))).is_ok()
    }

    #[test]
    fn one_of_a_hundred_may_be_late_and_half_of_them_if_the_machine_was_away() {
        assert!(is_fine(0, 0) && is_fine(1, 0) && is_fine(50, 50) && is_fine(50, 49));
        assert!(!is_fine(2, 0) && !is_fine(50, 48) && !is_fine(51, 51));
    }
}
