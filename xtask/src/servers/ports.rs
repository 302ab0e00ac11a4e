//! Ports on loopback.

use std::{
    io::{Error, ErrorKind},
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
    /// This port, which must be free, and one that an unprivileged user may use.
    pub fn given(port: u16) -> Result<Self> {
        let fix = "choose another one, or leave --port out for a free one";
        if port < 1024 {
            return Err(Failure::CannotRun(format!(
                "port {port} is reserved for root, which no server runs as: {fix}"
            )));
        }
        match bind(port) {
            Ok(_) => Ok(Self::Given(port)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                Err(Failure::CannotRun(format!("port {port} is in use: {fix}")))
            }
            Err(error) => Err(Failure::CannotRun(format!("port {port} cannot be used ({error}): {fix}"))),
        }
    }

    pub fn pick(self) -> Result<u16> {
        if let Self::Given(port) = self {
            return Ok(port);
        }
        // Two runs at once start their search at different places.
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
        let start = usize::try_from(clock).unwrap_or_default() % RANGE.len();
        RANGE
            .skip(start)
            .chain(RANGE.take(start))
            .find(|port| is_free(*port))
            .ok_or_else(|| Failure::CannotRun(format!("no free port from {} to {}", RANGE.start, RANGE.end)))
    }
}

pub fn is_free(port: u16) -> bool {
    bind(port).is_ok()
}

fn bind(port: u16) -> Result<TcpListener, Error> {
    TcpListener::bind(("127.0.0.1", port))
}
