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

/// How long it is believed that a queue is paused: so long after it is resumed elsewhere, its delivery goes on here.
const BELIEF: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Default)]
pub(crate) struct Pauses {
    /// Until when each is believed to be paused.
    known: Arc<Mutex<HashMap<Arc<str>, Instant>>>,
}

impl Pauses {
    /// A queue is paused.
    pub(crate) fn began(&self, queue: &Arc<str>) {
        self.lock().insert(Arc::clone(queue), Instant::now() + BELIEF);
    }

    /// A queue is not paused any more.
    pub(crate) fn ended(&self, queue: &str) {
        self.lock().remove(queue);
    }

    /// How long not to ask for a queue's messages; nothing if it is not known to be paused.
    pub(crate) fn left(&self, queue: &str) -> Option<Duration> {
        let mut known = self.lock();
        let left = known.get(queue)?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            known.remove(queue);
            return None;
        }
        Some(left)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Arc<str>, Instant>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_believed_for_a_while() {
        let (pauses, queue): (Pauses, Arc<str>) = (Pauses::default(), "q".into());
        assert_eq!(pauses.left("q"), None);
        pauses.began(&queue);
        tokio::time::advance(BELIEF / 4).await;
        assert_eq!((pauses.left("q"), pauses.left("other")), (Some(BELIEF * 3 / 4), None));
        tokio::time::advance(BELIEF).await;
        assert_eq!(pauses.left("q"), None);
        pauses.began(&queue);
        pauses.ended("q");
        assert_eq!(pauses.left("q"), None);
    }
}
