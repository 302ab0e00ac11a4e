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

impl Wake {
    pub fn of(target: &Target) -> Result<Self> {
        let poll = |millis| Self::Polled { interval: Duration::from_millis(millis) };
        Ok(match target.variant.as_deref() {
            None => poll(std::env::var("POLL").ok().and_then(|v| v.parse().ok()).unwrap_or(100)),
            Some("notify") => Self::Notified,
            Some(other) => bail!("no variant {other:?}: notify; none polls"),
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
