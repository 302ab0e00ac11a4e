//! The commands, a file each.

pub mod completions;
pub mod dead_letters;
pub mod enqueue;
pub mod man;
pub mod migrate;
pub mod pause;
pub mod queues;
