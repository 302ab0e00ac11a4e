//! Which dead letters the options mean.

use posthaste::{Backend, DeadLetterScope, DeadLetterStatus, Outbox, OutboxError, OutboxMessageId};

use crate::{
    args::{LetterStatus, Which},
    queue,
};

impl Which {
    /// Whether anything is said at all.
    pub fn is_anything(&self) -> bool {
        let Self { ids, queue, partition, key, payload_type, status, older_than, unchanged_for, reason } =
            self;
        !ids.is_empty()
            || [queue, key, payload_type, reason].iter().any(|text| text.is_some())
            || [older_than, unchanged_for].iter().any(|age| age.is_some())
            || partition.is_some()
            || status.is_some()
    }

    pub fn scope(&self) -> DeadLetterScope {
        let mut scope = DeadLetterScope::default();
        if !self.ids.is_empty() {
            scope = scope.ids(self.ids.iter().copied().map(OutboxMessageId));
        }
        if let Some(queue) = &self.queue {
            scope = scope.queue(queue);
        }
        if let Some(partition) = self.partition {
            scope = scope.partition(partition);
        }
        if let Some(key) = &self.key {
            scope = scope.key(key);
        }
        if let Some(payload_type) = &self.payload_type {
            scope = scope.payload_type(payload_type);
        }
        if let Some(status) = self.status {
            scope = scope.status(status.into());
        }
        if let Some(age) = self.older_than {
            scope = scope.older_than(age);
        }
        if let Some(age) = self.unchanged_for {
            scope = scope.unchanged_for(age);
        }
        if let Some(text) = &self.reason {
            scope = scope.reason_contains(text);
        }
        scope
    }

    /// A queue that is not there has no dead letters, but the name is more likely to be wrong.
    pub async fn check_queue<DB: Backend>(&self, outbox: &Outbox<DB>) -> Result<(), OutboxError> {
        match &self.queue {
            Some(queue) => queue::partitions(outbox, queue, self.partition).await.map(drop),
            None => Ok(()),
        }
    }
}

impl From<LetterStatus> for DeadLetterStatus {
    fn from(status: LetterStatus) -> Self {
        match status {
            LetterStatus::Pending => Self::Pending,
            LetterStatus::Reprocessing => Self::Reprocessing,
            LetterStatus::Resolved => Self::Resolved,
            LetterStatus::Discarded => Self::Discarded,
        }
    }
}
