//! What a process is in the middle of, and has been for long. That is written down while it lasts: what explains something must not go
//! with the process that is killed in the middle of it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    clock::now,
    content::Mode,
    history::{Line, Noticed, Pen},
};

/// How often to look for what takes long.
const BEAT: Duration = Duration::from_millis(50);

type Place = Option<(Mode, u32)>;

/// Things of one kind that a process has begun and not ended. Of each that takes longer than the limit there is a line for every beat, and
/// one at its end; all of them say when it began, and each when it was still going on.
pub struct Ongoing {
    process: u32,
    limit: u64,
    line: fn(Noticed) -> Line,
    pen: Pen,
    next: AtomicU64,
    begun: Mutex<HashMap<u64, (u64, Place)>>,
}

impl Ongoing {
    /// From now on, as long as anybody has it.
    pub fn watch(process: u32, limit: u64, line: fn(Noticed) -> Line, pen: Pen) -> Arc<Self> {
        let ongoing = Self { process, limit, line, pen, next: AtomicU64::new(0), begun: Mutex::default() };
        let ongoing = Arc::new(ongoing);
        let watched = Arc::downgrade(&ongoing);
        std::thread::spawn(move || {
            while let Some(ongoing) = watched.upgrade() {
                let begun: Vec<_> = ongoing.begun().values().copied().collect();
                ongoing.note(&begun);
                drop(ongoing);
                std::thread::sleep(BEAT);
            }
        });
        ongoing
    }

    /// It goes on until what is returned is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>, place: Place) -> Doing {
        self.begun_at(now(), place)
    }

    /// The same, if it has been going on for a while.
    #[must_use]
    pub fn begun_at(self: &Arc<Self>, from: u64, place: Place) -> Doing {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.begun().insert(key, (from, place));
        Doing { of: Arc::clone(self), key }
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<u64, (u64, Place)>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, begun: &[(u64, Place)]) {
        let (process, until) = (self.process, now());
        let late = begun.iter().filter(|(from, _)| until - from > self.limit);
        let lines: Vec<Line> = late
            .map(|(from, place)| (self.line)(Noticed { process, place: *place, from: *from, until }))
            .collect();
        if !lines.is_empty() {
            self.pen.write(&lines).ok();
        }
    }
}

/// Something that was begun.
pub struct Doing {
    of: Arc<Ongoing>,
    key: u64,
}

impl Doing {
    /// Where it is, if that was not known when it was begun.
    pub fn is_at(&self, place: (Mode, u32)) {
        if let Some((_, at)) = self.of.begun().get_mut(&self.key) {
            *at = Some(place);
        }
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        let ended = self.of.begun().remove(&self.key);
        self.of.note(ended.as_slice());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{clock::millis, history};

    #[test]
    fn what_takes_long_is_written_down_before_it_ends_and_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let ongoing = Ongoing::watch(3, millis(1), Line::Slow, Pen::open(&path).unwrap());
        let doing = ongoing.begin(None);
        doing.is_at((Mode::Leased, 5));
        let noticed = || {
            let lines = history::read(&path).unwrap().into_iter();
            let noticed =
                lines.map(|line| if let Line::Slow(slow) = line { slow } else { panic!("{line:?}") });
            noticed.collect::<Vec<_>>()
        };
        while noticed().len() < 2 {
            std::thread::sleep(BEAT);
        }
        let ended = now();
        drop(doing);
        let noticed = noticed();
        let last = noticed.last().unwrap();
        assert!(last.until >= ended && noticed.iter().all(|slow| slow.from == last.from), "{noticed:?}");
        assert!(noticed.iter().skip(1).all(|slow| slow.place == Some((Mode::Leased, 5))), "{noticed:?}");
    }

    #[test]
    fn what_is_quick_is_not_worth_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let ongoing = Ongoing::watch(3, millis(3_600_000), Line::Held, Pen::open(&path).unwrap());
        drop(ongoing.begin(Some((Mode::Transactional, 0))));
        assert_eq!(history::read(&path).unwrap(), []);
    }
}
