//! How many messages have arrived, for whoever waits for all of them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

pub struct Tally {
    messages: u64,
    arrived: AtomicU64,
    all: Notify,
}

impl Tally {
    pub fn of(messages: u64) -> Self {
        Self { messages, arrived: AtomicU64::new(0), all: Notify::new() }
    }

    pub fn add(&self) {
        if self.arrived.fetch_add(1, Ordering::Relaxed) + 1 >= self.messages {
            self.all.notify_one();
        }
    }

    pub fn count(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Waits until all have arrived, or until nothing has for `patience`.
    pub async fn complete(&self, patience: Duration) {
        let mut before = self.count();
        while before < self.messages {
            if tokio::time::timeout(patience, self.all.notified()).await.is_err() && self.count() == before {
                return;
            }
            before = self.count();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_told_of_the_last_one_and_gives_up_when_nothing_comes() {
        let tally = Tally::of(2);
        tally.add();
        let before = tokio::time::Instant::now();
        tally.complete(Duration::from_secs(60)).await;
        assert_eq!(before.elapsed(), Duration::from_secs(60));
        tally.add();
        tally.complete(Duration::from_secs(60)).await;
        assert_eq!(before.elapsed(), Duration::from_secs(60));
    }
}
