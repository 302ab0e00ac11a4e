//! The commands, a file each.

pub mod bench;
pub mod completions;
pub mod demo;
pub mod doctor;
pub mod man;
pub mod migrate;
pub mod pause;
pub mod queues;
pub mod register;
pub mod status;
pub mod vacuum;
