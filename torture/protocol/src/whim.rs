//! What handlers do with a message: mostly what they should.

use fastrand::Rng;

use crate::{circumstances::Circumstances, content::Name, history::Fate};

/// What a handler does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whim {
    Ack,
    Reject,
    Retry,
    Panic,
    /// Never returns.
    Hang,
    /// Blocks its thread until the lease is over, and then goes on as if nothing were.
    Block,
    /// Says what cannot be.
    Nonsense,
}

impl Whim {
    /// For the message of this name.
    pub fn draw(circumstances: &Circumstances, name: Option<Name>, rng: &mut Rng) -> Self {
        let Circumstances { shape, setup, .. } = circumstances;
        if name.is_some_and(|name| shape.is_poison(name)) {
            return Self::Reject;
        }
        match rng.u32(..2000) {
            0 => Self::Retry,
            1 if !shape.is_plain => Self::Reject,
            _ if !setup.misbehaves => Self::Ack,
            2 => Self::Panic,
            3 => Self::Hang,
            // Not where it would take the whole run.
            4 if setup.lease_ms <= 1000 => Self::Block,
            5..8 => Self::Nonsense,
            _ => Self::Ack,
        }
    }

    /// What becomes of the message.
    pub const fn fate(self) -> Fate {
        match self {
            Self::Ack | Self::Block | Self::Nonsense => Fate::Done,
            Self::Reject => Fate::Rejected,
            Self::Retry | Self::Panic | Self::Hang => Fate::Failed,
        }
    }
}
