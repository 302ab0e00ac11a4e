//! Telling workers that there is something to do.
//!
//! Intervals are never the way news travels. In this process an enqueue rings the sequencer's bell, and a tick the
//! bells of the partitions it touched; the database carries news to other processes. What is lost on the way, a check
//! of everything finds, at the latest after a few seconds.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::store::Ticket;

/// The bells of one process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wake {
    bells: Arc<Bells>,
}

#[derive(Debug, Default)]
struct Bells {
    sequencer: Arc<Notify>,
    reconciler: Arc<Notify>,
    partitions: HashMap<i32, Arc<Notify>>,
    /// Of producers whose transactions may still be open.
    tickets: Mutex<Vec<Ticket>>,
}

impl Wake {
    /// Bells for the partitions that this process has processors for.
    pub(crate) fn new(partition_ids: impl Iterator<Item = i32>) -> Self {
        let partitions = partition_ids.map(|id| (id, Arc::default())).collect();
        Self { bells: Arc::new(Bells { partitions, ..Bells::default() }) }
    }

    pub(crate) fn sequencer_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bells.sequencer)
    }

    pub(crate) fn reconciler_bell(&self) -> Arc<Notify> {
        Arc::clone(&self.bells.reconciler)
    }

    /// The bell of a partition; one that nobody rings if this process has no processor for it.
    pub(crate) fn partition_bell(&self, id: i32) -> Arc<Notify> {
        self.bells.partitions.get(&id).cloned().unwrap_or_default()
    }

    pub(crate) fn partition_ids(&self) -> Vec<i32> {
        self.bells.partitions.keys().copied().collect()
    }

    /// Messages were enqueued in transactions that may still be open.
    pub(crate) fn enqueued(&self, tickets: impl IntoIterator<Item = Ticket>) {
        self.lock_tickets().extend(tickets);
        self.bells.sequencer.notify_one();
    }

    /// Everything that was enqueued is committed, as far as this process knows.
    pub(crate) fn committed(&self) {
        self.bells.sequencer.notify_one();
    }

    pub(crate) fn take_tickets(&self) -> Vec<Ticket> {
        std::mem::take(&mut *self.lock_tickets())
    }

    /// A tick touched this partition.
    pub(crate) fn sequenced(&self, partition_id: i32) {
        if let Some(bell) = self.bells.partitions.get(&partition_id) {
            bell.notify_one();
        }
    }

    /// Every processor looks once, and learns how long others hold what it waits for.
    pub(crate) fn begin(&self) {
        self.bells.partitions.values().for_each(|bell| bell.notify_one());
        self.ask_for_everything();
    }

    /// Something may have been missed.
    pub(crate) fn ask_for_everything(&self) {
        self.bells.sequencer.notify_one();
        self.bells.reconciler.notify_one();
    }

    fn lock_tickets(&self) -> std::sync::MutexGuard<'_, Vec<Ticket>> {
        self.bells.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
