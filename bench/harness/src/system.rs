//! What an adapter says of its system.

use std::{future::Future, sync::Arc};

use anyhow::Result;

use crate::{
    clock,
    judge::{Arrival, Judge},
    message::{Origin, Outgoing},
    workers::Pipe,
    workload::Load,
};

/// The databases that systems are compared on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Database {
    Postgres,
    Mariadb,
    Sqlite,
}

/// Where a system runs, and with what.
#[derive(Debug, Clone)]
pub struct Target {
    pub database: Database,
    /// A database of this run's own.
    pub url: String,
    pub load: Load,
    /// One of the system's ways to be run (a profile, with or without its vacuum), as the adapter names them.
    pub variant: Option<String>,
}

/// A system under test.
pub trait System: Send + Sync + Sized + 'static {
    type Producer: Producer;
    /// What keeps the workers running; given back to [`stop`](Self::stop).
    type Workers: Send;

    /// Connects. The process that sends and every process that delivers opens the system once.
    fn open(target: &Target) -> impl Future<Output = Result<Self>> + Send;
    /// Makes the tables in an empty database, and whatever else must be there before the first message.
    fn prepare(&self) -> impl Future<Output = Result<()>> + Send;
    /// Somebody who sends, on a connection of its own.
    fn producer(&self) -> impl Future<Output = Result<Self::Producer>> + Send;
    /// Starts the workers, whose handlers give what they get to the inbox. None if nobody reads: then a message has arrived
    /// when it is committed.
    fn deliver(&self, inbox: Inbox) -> impl Future<Output = Result<Option<Self::Workers>>> + Send;
    fn stop(&self, workers: Self::Workers) -> impl Future<Output = Result<()>> + Send;
    /// Whether what was delivered is gone from the tables; none if it never will be.
    fn is_clean(&self) -> impl Future<Output = Result<Option<bool>>> + Send;
    /// Rows that transactional handlers have inserted, or those of the messages where nobody reads: all, and different ones.
    fn effects(&self) -> impl Future<Output = Result<(u64, u64)>> + Send;
}

/// Somebody who sends.
pub trait Producer: Send + 'static {
    /// Sends all of these in one transaction, and commits it: at once, or when it was open for as long as the load says.
    fn send(&mut self, messages: &[Outgoing]) -> impl Future<Output = Result<()>> + Send;
}

/// Where handlers put what they get.
#[derive(Clone)]
pub struct Inbox(pub(crate) Destination);

#[derive(Clone)]
pub(crate) enum Destination {
    /// Of the process that sends.
    Judge(Arc<Judge>),
    /// Of a process that only delivers.
    Pipe(Arc<Pipe>),
}

impl Inbox {
    /// A handler has got this message.
    pub fn got(&self, partition: u32, payload: &[u8]) -> Result<()> {
        let arrival = Arrival { origin: Origin::of(payload)?, partition, at: clock::now() };
        match &self.0 {
            Destination::Judge(judge) => judge.arrived(arrival),
            Destination::Pipe(pipe) => pipe.write(arrival)?,
        }
        Ok(())
    }
}
