//! The command, driven as a person or a script drives it: real processes, on real databases.

#![expect(clippy::unwrap_used, reason = "in a test, a panic is a failure")]

#[macro_use]
mod ground;
mod handlers;
mod posthaste;
mod screen;
mod snapshots;
mod terminal;

mod bad_input;
mod bench;
mod dead_letters;
mod demo;
mod doctor;
mod enqueue;
mod help;
mod peek;
mod queues;
mod readme;
mod status;
mod tail;
mod tls;
