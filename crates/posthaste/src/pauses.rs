//! Which queues are paused, as far as this process knows.
//!
//! The database knows for sure, and says so to whoever asks for a lease. What it said is believed for a while, so that the
//! partitions of a paused queue do not all ask again and again.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

#[derive(Debug, Clone)]
pub(crate) struct Pauses {
    /// How long a queue is assumed to be paused: delivery resumes here at most this long after another process resumes it.
    belief: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    /// Until when each is believed to be paused.
    until: HashMap<Arc<str>, Instant>,
    /// How often a pause has ended in this process.
    ends: u64,
}

/// A moment, by the pauses that had ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u64);

impl Pauses {
    pub(crate) fn new(belief: Duration) -> Self {
        Self { belief, known: Arc::default() }
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(self.lock().ends)
    }

    /// A queue is paused, said somebody who asked then. If a pause has ended since, that may be old news.
    pub(crate) fn began(&self, queue: &Arc<str>, asked: Moment) {
        let mut known = self.lock();
        if Moment(known.ends) == asked {
            known.until.insert(Arc::clone(queue), Instant::now() + self.belief);
        }
    }

    /// A queue is not paused any more.
    pub(crate) fn ended(&self, queue: &str) {
        let mut known = self.lock();
        known.ends += 1;
        known.until.remove(queue);
    }

    /// How long not to ask for a queue's messages; nothing if it is not known to be paused.
    pub(crate) fn left(&self, queue: &str) -> Option<Duration> {
        let mut known = self.lock();
        let left = known.until.get(queue)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            known.until.remove(queue);
            return None;
        }
        Some(left)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELIEF: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_believed_for_a_while() {
        let (pauses, queue): (Pauses, Arc<str>) = (Pauses::new(BELIEF), "q".into());
        assert_eq!(pauses.left("q"), None);
        pauses.began(&queue, pauses.now());
        tokio::time::advance(BELIEF / 4).await;
        assert_eq!((pauses.left("q"), pauses.left("other")), (Some(BELIEF * 3 / 4), None));
        tokio::time::advance(BELIEF).await;
        assert_eq!(pauses.left("q"), None);
        let asked = pauses.now();
        pauses.began(&queue, asked);
        pauses.ended("q");
        assert_eq!(pauses.left("q"), None);
        pauses.began(&queue, asked);
        assert_eq!(pauses.left("q"), None, "it was asked before the end");
        pauses.began(&queue, pauses.now());
        assert_eq!(pauses.left("q"), Some(BELIEF));
    }
}
