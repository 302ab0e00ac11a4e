//! Ports on loopback.

use std::{
    net::TcpListener,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::failure::{Failure, Result};

/// Below the range from which outgoing connections get theirs, so that none of them takes a port between our look
/// and the server's start.
const RANGE: std::ops::Range<u16> = 20_000..30_000;

/// The port that a server gets.
#[derive(Debug, Clone, Copy)]
pub enum Port {
    /// One that is free.
    Any,
    /// This one.
    Given(u16),
}

impl Port {
    /// This port, which must be free.
    pub fn given(port: u16) -> Result<Self> {
        if is_free(port) {
            return Ok(Self::Given(port));
        }
        Err(Failure::CannotRun(format!(
            "port {port} is in use: choose another one, or leave --port out for a free one"
        )))
    }

    pub fn pick(self) -> Result<u16> {
        match self {
            Self::Given(port) => Ok(port),
            Self::Any => any_free(),
        }
    }
}

pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

fn any_free() -> Result<u16> {
    // Two runs at once start their search at different places.
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    let start = usize::try_from(clock).unwrap_or_default() % RANGE.len();
    RANGE
        .cycle_from(start)
        .find(|port| is_free(*port))
        .ok_or_else(|| Failure::CannotRun(format!("no free port from {} to {}", RANGE.start, RANGE.end)))
}

trait CycleFrom {
    fn cycle_from(self, start: usize) -> impl Iterator<Item = u16>;
}

impl CycleFrom for std::ops::Range<u16> {
    fn cycle_from(self, start: usize) -> impl Iterator<Item = u16> {
        self.clone().skip(start).chain(self.take(start))
    }
}
