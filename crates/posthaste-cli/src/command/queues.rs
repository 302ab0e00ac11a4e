//! `posthaste queues`: which queues there are, and how much is in them.

use std::time::Duration;

use crate::{
    Context,
    database::on,
    exit,
    failure::Outcome,
    output::span,
    overview::{Observer, Queue},
};

pub async fn run(context: &Context) -> Outcome {
    let queues = on!(context.open().await?, pool => {
        Observer::default().look(&context.outbox(&pool).await?, &pool).await?
    });
    if context.out.json {
        let counted = queues.iter().map(|queue| {
            serde_json::json!({
                "queue": queue.queue,
                "partitions": queue.partitions.len(),
                "depth": queue.depth,
                "oldest_ms": queue.oldest_ms,
                "dead_letters": queue.dead_letters,
                "is_paused": queue.is_paused,
            })
        });
        context.out.object(&serde_json::json!({ "queues": counted.collect::<Vec<_>>() }))?;
    } else {
        context.out.line(table(&queues))?;
    }
    Ok(exit::DONE)
}

/// The queues, a line each.
pub fn table(queues: &[Queue]) -> String {
    if queues.is_empty() {
        return "there are no queues yet: `posthaste register` makes one, and so does a process that starts workers for it".to_owned();
    }
    let rows = queues.iter().map(|queue| {
        vec![
            queue.queue.clone(),
            queue.partitions.len().to_string(),
            queue.depth.to_string(),
            age(queue.oldest_ms),
            queue.dead_letters.to_string(),
            if queue.is_paused { "yes" } else { "no" }.to_owned(),
        ]
    });
    let header = ["QUEUE", "PARTITIONS", "DEPTH", "OLDEST", "DEAD LETTERS", "PAUSED"];
    crate::output::table(&header, &rows.collect::<Vec<_>>())
}

pub fn age(millis: Option<u64>) -> String {
    millis.map_or_else(|| "-".to_owned(), |millis| span(Duration::from_millis(millis)))
}
