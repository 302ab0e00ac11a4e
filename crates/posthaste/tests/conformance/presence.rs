//! Whether the machine was there: a virtual one is taken away from its guests now and then, for tens of milliseconds, and other
//! programs want it too. What is promised of an idle system is not measured in such a moment.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::stage::p99;

/// How long a watcher sleeps; and how late it may wake up without anybody being blamed.
const NAP: Duration = Duration::from_millis(1);
const YAWN: Duration = Duration::from_millis(2);

/// A span of time.
type Span = (Instant, Instant);

/// One watcher for each core, who only wants to wake up every millisecond: when it could not, nobody could be relied on to.
pub struct Presence {
    absences: Arc<Mutex<Vec<Span>>>,
    is_over: Arc<AtomicBool>,
}

impl Presence {
    pub fn watch() -> Self {
        let presence = Self { absences: Arc::default(), is_over: Arc::default() };
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (absences, is_over) = (Arc::clone(&presence.absences), Arc::clone(&presence.is_over));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let due = Instant::now() + NAP;
                    std::thread::sleep(NAP);
                    let woke = Instant::now();
                    if woke.saturating_duration_since(due) > YAWN {
                        absences.lock().unwrap().push((due, woke));
                    }
                }
            });
        }
        presence
    }

    /// Of these, 99 % are within the limit, less what the machine was away meanwhile; and half of them by the clock too, or there
    /// is nothing to go by. To be asked when all is over: who could not wake up has not said so before.
    pub fn assert_p99(&self, spans: &[Span], limit: Duration) {
        let absences = self.absences.lock().unwrap();
        let mut by_the_clock: Vec<_> =
            spans.iter().map(|(from, to)| to.saturating_duration_since(*from)).collect();
        let mut lasted: Vec<_> = spans.iter().map(|span| lasted(*span, &absences)).collect();
        let (clocks_p99, p99) = (p99(&mut by_the_clock), p99(&mut lasted));
        let median = by_the_clock[by_the_clock.len() / 2];
        assert!(
            p99 <= limit && median <= limit,
            "of {} within {limit:?}: p99 {p99:?}; by the clock p99 {clocks_p99:?}, median {median:?}, all {by_the_clock:?}",
            spans.len()
        );
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
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

#[test]
fn what_the_machine_was_away_does_not_count() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let span = |(from, to)| (at(from), at(to));
    for (absences, there) in [
        (vec![], 100),
        (vec![(0, 50), (100, 150)], 50),
        (vec![(0, 300)], 0),
        (vec![(120, 130), (125, 140), (50, 105)], 75),
        (vec![(0, 100), (200, 300)], 100),
    ] {
        let absences: Vec<Span> = absences.into_iter().map(span).collect();
        assert_eq!(lasted(span((100, 200)), &absences), Duration::from_millis(there), "{absences:?}");
    }
}
