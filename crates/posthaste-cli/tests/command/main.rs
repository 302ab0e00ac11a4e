//! The command, driven as a person or a script drives it: real processes, on real databases.

#[macro_use]
mod ground;
mod posthaste;
mod snapshots;

mod bad_input;
mod bench;
mod help;
mod queues;
mod status;
