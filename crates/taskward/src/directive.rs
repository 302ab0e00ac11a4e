//! What an execution wants to happen next.

use std::time::Duration;

/// What an execution wants to happen next, with a payload for the listeners (what it did, for example).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a directive does nothing until the worker gets it"]
pub enum Directive<P = ()> {
    /// There is more to do: execute again at the current pace.
    Proceed(P),
    /// Nothing left: wait for a notifier.
    Idle(P),
    /// Nothing to do for a while: wait that long, or until a notifier ends it early.
    Sleep(Duration, P),
}

impl Directive {
    /// [`Directive::Proceed`] without a payload.
    pub const fn proceed() -> Self {
        Self::Proceed(())
    }

    /// [`Directive::Idle`] without a payload.
    pub const fn idle() -> Self {
        Self::Idle(())
    }

    /// [`Directive::Sleep`] without a payload.
    pub const fn sleep(duration: Duration) -> Self {
        Self::Sleep(duration, ())
    }
}

impl<P> Directive<P> {
    /// The payload.
    pub const fn payload(&self) -> &P {
        match self {
            Self::Proceed(payload) | Self::Idle(payload) | Self::Sleep(_, payload) => payload,
        }
    }

    /// The same directive with another payload.
    pub fn map<Q>(self, f: impl FnOnce(P) -> Q) -> Directive<Q> {
        match self {
            Self::Proceed(payload) => Directive::Proceed(f(payload)),
            Self::Idle(payload) => Directive::Idle(f(payload)),
            Self::Sleep(duration, payload) => Directive::Sleep(duration, f(payload)),
        }
    }

    /// The same directive without its payload.
    pub fn strip(self) -> Directive {
        self.map(drop)
    }
}
