//! How a consumer learns of new messages.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use harness::Target;
use sqlx::postgres::PgListener;
use tokio::{sync::Notify, task::JoinHandle};

use crate::queue_name;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wake {
    /// The server looks again and again, within one call.
    Polled { interval: Duration },
    /// By the notification that each insert sends.
    Notified,
}

/// How often the server looks, as `pgmq.read_with_poll` has it without being told.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

impl Wake {
    /// Notifications are the faster wake, but each message then writes a row that all producers of its queue contend for: who has
    /// a few messages a second takes them, who has many polls.
    pub fn of(target: &Target) -> Result<Self> {
        let polled = Self::Polled { interval: POLL_INTERVAL };
        Ok(match target.variant.as_deref() {
            None if target.load.rate.is_some() => Self::Notified,
            None | Some("poll") => polled,
            Some("notify") => Self::Notified,
            Some(other) => bail!("no variant {other:?}: poll or notify; none is what suits the load"),
        })
    }
}

/// Hears the notifications of these partitions' queues, and passes them on.
pub async fn listen(url: &str, partitions: &[u32]) -> Result<(Vec<Arc<Notify>>, JoinHandle<()>)> {
    let mut listener = PgListener::connect(url).await?;
    let channels: Vec<_> =
        partitions.iter().map(|partition| format!("pgmq.q_{}.INSERT", queue_name(*partition))).collect();
    listener.listen_all(channels.iter().map(String::as_str)).await.context("cannot listen")?;
    let news: Vec<_> = channels.iter().map(|_| Arc::new(Notify::new())).collect();
    let wake = news.clone();
    let task = tokio::spawn(async move {
        loop {
            match listener.recv().await {
                Ok(heard) => {
                    let queue = channels.iter().position(|channel| channel == heard.channel());
                    if let Some(news) = queue.and_then(|index| wake.get(index)) {
                        news.notify_one();
                    }
                }
                // The next one connects anew, and some may have been missed.
                Err(_) => wake.iter().for_each(|news| news.notify_one()),
            }
        }
    });
    Ok((news, task))
}
