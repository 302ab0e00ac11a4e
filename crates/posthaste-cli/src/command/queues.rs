//! `posthaste queues`: which queues there are, and how much is in them.

use std::{collections::BTreeMap, time::Duration};

use posthaste::{Backend, DeadLetterFilter, DeadLetterStatus, Outbox};
use serde::Serialize;
use sqlx::Pool;

use crate::{
    Context,
    database::on,
    exit,
    failure::{Failure, Outcome},
    output::span,
};

/// A queue, as it is shown.
#[derive(Debug, Default, Serialize)]
struct Queue {
    queue: String,
    partitions: u32,
    /// Messages that have their order and are not settled.
    depth: u64,
    oldest_ms: Option<u64>,
    dead_letters: u64,
    is_paused: bool,
}

pub async fn run(context: &Context) -> Outcome {
    let queues = on!(context.open().await?, pool => look(&context.outbox(&pool).await?, &pool).await?);
    if context.out.json {
        context.out.object(&serde_json::json!({ "queues": queues }))?;
        return Ok(exit::DONE);
    }
    if queues.is_empty() {
        context
            .out
            .line("there are no queues yet: the first process that starts workers for one registers it")?;
        return Ok(exit::DONE);
    }
    let rows: Vec<_> = queues.iter().map(row).collect();
    context.out.table(&["QUEUE", "PARTITIONS", "DEPTH", "OLDEST", "DEAD LETTERS", "STATE"], &rows)?;
    Ok(exit::DONE)
}

fn row(queue: &Queue) -> Vec<String> {
    vec![
        queue.queue.clone(),
        queue.partitions.to_string(),
        queue.depth.to_string(),
        queue.oldest_ms.map_or_else(|| "-".to_owned(), |ms| span(Duration::from_millis(ms))),
        queue.dead_letters.to_string(),
        if queue.is_paused { "paused" } else { "delivering" }.to_owned(),
    ]
}

async fn look<DB: Backend>(outbox: &Outbox<DB>, pool: &Pool<DB>) -> Result<Vec<Queue>, Failure> {
    let mut queues = BTreeMap::<String, Queue>::new();
    for lag in outbox.lag().await? {
        let queue = queues.entry(lag.queue.to_string()).or_default();
        queue.queue = lag.queue.to_string();
        queue.partitions += 1;
        queue.depth += lag.depth;
        queue.oldest_ms =
            queue.oldest_ms.max(lag.oldest.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)));
        queue.is_paused |= lag.is_paused;
    }
    for (name, queue) in &mut queues {
        let pending = DeadLetterFilter::default().queue(name).status(DeadLetterStatus::Pending);
        queue.dead_letters = outbox.dead_letter_count(pool, &pending).await?;
    }
    Ok(queues.into_values().collect())
}
