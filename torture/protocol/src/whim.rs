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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        circumstances::{Role, Setup},
        content::{Mode, Shape},
    };

    #[test]
    fn plain_messages_are_never_rejected_and_handlers_retry_all_the_same() {
        let drawn = |is_plain, misbehaves| {
            let mut setup = Setup::plain();
            setup.misbehaves = misbehaves;
            let circumstances = Circumstances {
                role: Role::Worker,
                process: 1,
                url: String::new(),
                prefix: String::new(),
                shape: Shape { seed: 1, queues: vec![(Mode::Leased, 1)], is_plain },
                history: PathBuf::new(),
                kill_at: None,
                setup,
            };
            let mut rng = Rng::with_seed(1);
            let names = (0..20_000).map(|transaction| Name { producer: 1, transaction, place: 0 });
            names.map(|name| Whim::draw(&circumstances, Some(name), &mut rng)).collect::<Vec<_>>()
        };
        let well_behaved = drawn(true, false);
        assert!(well_behaved.contains(&Whim::Retry));
        assert!(well_behaved.iter().all(|whim| matches!(whim, Whim::Ack | Whim::Retry)));
        assert!(!drawn(true, true).contains(&Whim::Reject));
        let all = drawn(false, true);
        for whim in [Whim::Reject, Whim::Retry, Whim::Panic, Whim::Hang, Whim::Block, Whim::Nonsense] {
            assert!(all.contains(&whim), "{whim:?}");
        }
    }
}
