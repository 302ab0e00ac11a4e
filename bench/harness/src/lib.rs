//! What the adapters of all systems share: one command line, the workloads, the judge, the meters, and one line of results.
//!
//! An adapter implements [`System`] and calls [`main`]. It must not look at the workload but for what its users would tune.

mod clock;
mod ground;
mod judge;
mod message;
mod meter;
mod produce;
mod proxy;
mod report;
mod run;
mod system;
mod tally;
mod workers;
mod workload;

pub use message::{Origin, Outgoing};
pub use report::Report;
pub use run::main;
pub use system::{Database, Inbox, Producer, System, Target};
pub use workload::{Load, Workload};
