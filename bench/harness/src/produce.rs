//! The producers: each sends its share in transactions, one after the other, as fast as it can or at a pace.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use tokio::{task::JoinSet, time::Instant};

use crate::{
    judge::Judge,
    message::{Origin, Outgoing},
    system::{Producer, System},
    workload::Load,
};

/// How often one transaction is tried: some systems' enqueues deadlock now and then, and their producers have to try again.
const MAX_TRIES: u32 = 1000;
const TRY_AGAIN: Duration = Duration::from_millis(2);

/// The producers, connected and ready to send.
pub async fn producers<S: System>(system: &S, load: &Load) -> Result<Vec<S::Producer>> {
    let mut ready = Vec::new();
    for _ in 0..load.producers {
        ready.push(system.producer().await.context("a producer could not connect")?);
    }
    Ok(ready)
}

/// Sends the whole load; `observed` hears of each commit. Returns how many transactions failed and were tried again.
pub async fn produce<P: Producer>(
    ready: Vec<P>,
    load: &Load,
    judge: &Arc<Judge>,
    observed: Observed,
) -> Result<u64> {
    let errors = Arc::new(AtomicU64::new(0));
    let mut producers = JoinSet::new();
    let began = Instant::now();
    for (index, producer) in (0..).zip(ready) {
        let share = Share { load: load.clone(), index, began };
        producers.spawn(share.send(producer, Arc::clone(judge), observed, Arc::clone(&errors)));
    }
    while let Some(done) = producers.join_next().await {
        done??;
    }
    Ok(errors.load(Ordering::Relaxed))
}

/// What is made of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observed {
    /// Its time is written down: delivery follows.
    Committed,
    /// Nobody reads: with its commit a message has arrived.
    Arrived,
}

/// What one producer has to send.
struct Share {
    load: Load,
    index: u32,
    began: Instant,
}

impl Share {
    async fn send<P: Producer>(
        self,
        mut producer: P,
        judge: Arc<Judge>,
        observed: Observed,
        errors: Arc<AtomicU64>,
    ) -> Result<()> {
        let messages = self.load.share_of(self.index);
        let mut next = 0;
        while next < messages {
            let numbers = next..(next + u64::from(self.load.per_transaction)).min(messages);
            let transaction = self.transaction(numbers.clone());
            if let Some(due) = self.due(next) {
                tokio::time::sleep_until(due).await;
            }
            if let Some(pause) = self.load.pause_before(next) {
                tokio::time::sleep(pause).await;
            }
            let mut tries = 0;
            while let Err(error) = producer.send(&transaction).await {
                tries += 1;
                errors.fetch_add(1, Ordering::Relaxed);
                if tries >= MAX_TRIES {
                    return Err(error.context(format!("a transaction failed {tries} times")));
                }
                tokio::time::sleep(TRY_AGAIN).await;
            }
            match observed {
                Observed::Committed => judge.committed(self.index, numbers),
                Observed::Arrived => judge.committed_is_arrived(self.index, numbers),
            }
            next += u64::from(self.load.per_transaction);
        }
        Ok(())
    }

    fn transaction(&self, numbers: std::ops::Range<u64>) -> Vec<Outgoing> {
        numbers.map(|number| Origin { producer: self.index, number }.message(&self.load)).collect()
    }

    /// When the transaction of this message is due, whatever became of those before it; the producers take turns.
    fn due(&self, number: u64) -> Option<Instant> {
        let rate = self.load.rate?;
        let transaction = number / u64::from(self.load.per_transaction);
        let turn = transaction * u64::from(self.load.producers) + u64::from(self.index);
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 turns")]
        let after = Duration::from_secs_f64(turn as f64 / rate);
        Some(self.began + after)
    }
}
