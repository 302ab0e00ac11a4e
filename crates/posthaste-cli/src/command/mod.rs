//! The commands, a file each.

pub mod bench;
pub mod completions;
pub mod dead_letters;
pub mod demo;
pub mod doctor;
pub mod enqueue;
pub mod man;
pub mod migrate;
pub mod pause;
pub mod peek;
pub mod queues;
pub mod register;
pub mod status;
pub mod tail;
pub mod vacuum;
