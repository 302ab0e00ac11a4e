//! A transactional outbox: a service announces a change in the same database transaction that makes it, and the
//! announcement is delivered afterwards: in order per partition, never lost, never for a transaction that rolled back.
//!
//! This version has the foundation: [`Partitions`], the unit of order, and the tuning of the workers to come
//! ([`WorkerTuning`], [`OutboxProfile`]). The workers themselves run on [`taskward`].

#![warn(missing_docs, unreachable_pub)]

mod limits;
mod queue;
mod tuning;

pub use limits::{DEFAULT_LEASE_DURATION, MAX_PARTITIONS};
pub use queue::Partitions;
pub use tuning::{OutboxProfile, WorkerTuning};

/// The README's code compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
