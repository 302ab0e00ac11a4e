//! Why a command ended badly, and the exit code that says so.

use std::fmt;

/// Why a command ended badly.
#[derive(Debug)]
pub enum Failure {
    /// It ran, and something in it failed.
    Failed(String),
    /// It could not be run: wrong usage, or something is missing here. The text says what to do.
    CannotRun(String),
    /// Somebody pressed Ctrl-C, or sent a signal.
    Interrupted,
}

pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::CannotRun(_) => 2,
            Self::Interrupted => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::CannotRun(text) => f.write_str(text),
            Self::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// `?` on an input or output error, with what was being done.
pub trait Context<T> {
    fn or_cannot(self, doing: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: fmt::Display> Context<T> for std::result::Result<T, E> {
    fn or_cannot(self, doing: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|error| Failure::CannotRun(format!("cannot {}: {error}", doing())))
    }
}
