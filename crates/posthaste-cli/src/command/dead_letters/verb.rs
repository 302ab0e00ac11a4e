//! What can become of dead letters, and in which words.

use posthaste::DeadLetterStatus;

/// What becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Redeliver,
    Discard,
    Cleanup,
}

impl Verb {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Redeliver => "redeliver",
            Self::Discard => "discard",
            Self::Cleanup => "cleanup",
        }
    }

    /// As it is said to people, and when it is done.
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Redeliver => ("redeliver", "redelivered"),
            Self::Discard => ("discard", "discarded"),
            Self::Cleanup => ("delete", "deleted"),
        }
    }

    /// In which state it can be done.
    pub const fn states(self) -> &'static [DeadLetterStatus] {
        match self {
            Self::Redeliver | Self::Discard => &[DeadLetterStatus::Pending],
            Self::Cleanup => &[DeadLetterStatus::Resolved, DeadLetterStatus::Discarded],
        }
    }

    pub fn expected(self) -> String {
        self.states().iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ")
    }

    /// What cannot be taken back is asked for.
    pub fn asks(self) -> bool {
        self != Self::Redeliver
    }
}

/// So many of them, in words.
pub fn count(letters: u64) -> String {
    if letters == 1 { "1 dead letter".to_owned() } else { format!("{letters} dead letters") }
}
