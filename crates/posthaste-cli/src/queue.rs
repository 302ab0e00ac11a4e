//! A queue that somebody has named.

use posthaste::{Backend, Outbox, OutboxError, PartitionLag};

/// How far its partitions are, or the one that is named; an error if there is no such queue or partition.
pub async fn partitions<DB: Backend>(
    outbox: &Outbox<DB>,
    queue: &str,
    partition: Option<u32>,
) -> Result<Vec<PartitionLag>, OutboxError> {
    let mut partitions = outbox.lag().await?;
    partitions.retain(|lag| &*lag.queue == queue);
    let Some(max) = partitions.iter().map(|lag| lag.partition).max() else {
        return Err(OutboxError::QueueNotRegistered(queue.to_owned()));
    };
    if let Some(partition) = partition {
        partitions.retain(|lag| lag.partition == partition);
        if partitions.is_empty() {
            return Err(OutboxError::PartitionOutOfRange { queue: queue.to_owned(), partition, max });
        }
    }
    Ok(partitions)
}
