//! What a process of an episode and its supervisor have in common: what the process is told, what it sends, how its handlers behave, and
//! what it writes down. It knows no outbox and no database: a control, which runs another outbox, speaks it as well.
//!
//! The supervisor starts a program with [`AS_PROCESS`], writes one line of JSON, the [`Circumstances`], to its standard input, and closes
//! that when the process is to stop. A process that could not do what it was for exits with [`FAILED`].
//!
//! [`Circumstances`]: circumstances::Circumstances

pub mod circumstances;
pub mod clock;
pub mod content;
pub mod history;
pub mod ongoing;
pub mod starving;
pub mod whim;

/// The argument by which a program is a process of an episode.
pub const AS_PROCESS: &str = "--as-process";

/// What a process exits with if it could not do what it was for.
pub const FAILED: u8 = 3;
