//! Looking at what lies in a queue, and having it cleaned up: for operators. Nothing here takes part in delivery.

use std::time::{Duration, SystemTime};

use crate::{
    EnqueuedMessage, Outbox, OutboxError, OutboxMessage, OutboxMessageId, WorkerTuning,
    limits::MAX_BROWSE_LIMIT,
    outage::Outage,
    queue::check_name,
    store::{Backend, Store},
    vacuum::{Vacuum, Waste},
};

impl<DB: Backend> Outbox<DB> {
    /// The messages of a partition that have their place in it, behind `after_seq`, in the order of delivery: at most `limit`, and
    /// never more than [`MAX_BROWSE_LIMIT`]. Nothing is taken or changed.
    ///
    /// Those that were settled are there too, until vacuum removes them, and then they are missing. What is behind the cursor, which
    /// [`lag`](Self::lag) knows, comes next. `attempts` is 0 in all of them.
    ///
    /// # Errors
    ///
    /// If the queue is unknown or has no such partition, or what the database says.
    pub async fn browse(
        &self,
        queue: &str,
        partition: u32,
        after_seq: i64,
        limit: u32,
    ) -> Result<Vec<OutboxMessage>, OutboxError> {
        check_name(queue)?;
        let most = limit.min(MAX_BROWSE_LIMIT);
        self.reading(self.pool(), async |conn| {
            let queue = self.queue(conn, queue).await?;
            let partition_id = queue.partition_id(partition)?;
            self.store().browse(conn, &queue, partition_id, after_seq, most).await
        })
        .await
    }

    /// The messages of a queue, or of one of its partitions, that are committed and have no place in their partitions yet: the first
    /// ones by id, behind `after` if that is given, at most `limit`, and never more than [`MAX_BROWSE_LIMIT`]. Usually there are
    /// none: the sequencer is fast. Nothing is taken or changed.
    ///
    /// # Errors
    ///
    /// If the queue is unknown or has no such partition, or what the database says.
    pub async fn unsequenced(
        &self,
        queue: &str,
        partition: Option<u32>,
        after: Option<OutboxMessageId>,
        limit: u32,
    ) -> Result<Vec<EnqueuedMessage>, OutboxError> {
        check_name(queue)?;
        let most = limit.min(MAX_BROWSE_LIMIT);
        let after_id = after.map_or(i64::MIN, |id| id.0);
        self.reading(self.pool(), async |conn| {
            let queue = self.queue(conn, queue).await?;
            let partitions = match partition {
                Some(partition) => vec![queue.partition_id(partition)?],
                None => queue.partition_ids.clone(),
            };
            self.store().unsequenced(conn, &queue, &partitions, after_id, most).await
        })
        .await
    }

    /// What time it is by the database's clock, which all times that it writes are by.
    ///
    /// # Errors
    ///
    /// What the database says.
    pub async fn database_time(&self) -> Result<SystemTime, OutboxError> {
        let micros = self.reading(self.pool(), async |conn| self.store().clock(conn).await).await?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
    }

    /// Removes what is settled, of all queues, now; returns how many messages that were. The workers' vacuum does so by itself, soon:
    /// this is for when there are no workers, or somebody wants it done.
    ///
    /// # Errors
    ///
    /// What the database says. If another process is at the same for long, that is said too; what was removed until then is gone.
    pub async fn vacuum(&self) -> Result<u64, OutboxError> {
        let partitions = self.lag().await?.into_iter().map(|lag| lag.partition_id).collect();
        let (tuning, timings) = (WorkerTuning::vacuum(), self.store().timings());
        let (waste, outage) =
            (Waste::new(&tuning, timings.vacuum_linger), Outage::new(timings.outage_reminder));
        Vacuum::new(self.store().clone(), waste, tuning, outage, partitions).sweep().await
    }
}
