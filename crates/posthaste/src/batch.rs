//! A batch as its handler sees it, and the verdict on each of its messages.
//!
//! It knows which messages were taken and settled; it does not count. Pure: no clock but the one it is given.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::time::Instant;

use crate::{HandlerResult, OutboxMessage, error::storable, limits::MAX_REASON};

/// The messages of one call: a run of consecutive seqs of one partition.
///
/// The handler takes messages ([`next_msg`](Self::next_msg), [`next_chunk`](Self::next_chunk)) and settles them
/// ([`ack`](Self::ack), [`ack_chunk`](Self::ack_chunk), [`reject`](Self::reject)). What it returns says what becomes of
/// the rest:
///
/// - `Success`: what was taken is done, rejections apart; what was never taken comes with the next batch.
/// - `Retry`: the settled prefix is done, everything from the first unsettled message on comes again.
/// - `Reject`: what was taken and is unsettled becomes dead letters; what was never taken comes with the next batch.
#[derive(Debug)]
pub struct Batch<'a> {
    messages: &'a [OutboxMessage],
    /// Of the messages taken so far, in order.
    taken: Vec<Fate>,
    deadline: Instant,
    /// No more is given out once something was taken: the queue is paused.
    is_closed: &'a AtomicBool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Unsettled,
    Acked,
    Rejected(String),
}

impl<'a> Batch<'a> {
    pub(crate) fn new(messages: &'a [OutboxMessage], deadline: Instant, is_closed: &'a AtomicBool) -> Self {
        Self { messages, taken: Vec::with_capacity(messages.len()), deadline, is_closed }
    }

    /// Takes the next message; none if there are no more, or the queue was paused since the first one was taken.
    pub fn next_msg(&mut self) -> Option<&'a OutboxMessage> {
        self.next_chunk(1).first()
    }

    /// Takes the next `n` messages, or as many as are left; none if the queue was paused since the first one was taken.
    pub fn next_chunk(&mut self, n: usize) -> &'a [OutboxMessage] {
        let rest = match self.taken.len() {
            taken if taken > 0 && self.is_closed.load(Ordering::Relaxed) => &[],
            taken => &self.messages[taken..],
        };
        let chunk = &rest[..n.min(rest.len())];
        self.taken.resize(self.taken.len() + chunk.len(), Fate::Unsettled);
        chunk
    }

    /// The message taken last is done.
    pub fn ack(&mut self) {
        self.settle_last(Fate::Acked, "ack");
    }

    /// The `n` messages taken last that are unsettled are done.
    pub fn ack_chunk(&mut self, n: usize) {
        let unsettled = self.taken.iter_mut().rev().filter(|fate| **fate == Fate::Unsettled);
        let settled = unsettled.take(n).map(|fate| *fate = Fate::Acked).count();
        if settled < n {
            tracing::warn!(asked = n, settled, "ack_chunk for more messages than were taken and unsettled");
        }
    }

    /// The message taken last becomes a dead letter, with this reason.
    pub fn reject(&mut self, reason: impl Into<String>) {
        // Here, where it is still one: they are all kept until the batch is settled.
        self.settle_last(Fate::Rejected(storable(&reason.into(), MAX_REASON)), "reject");
    }

    fn settle_last(&mut self, fate: Fate, verb: &str) {
        match self.taken.last_mut() {
            Some(last) if *last == Fate::Unsettled => *last = fate,
            _ => tracing::warn!(verb, "no message was taken that is not settled yet"),
        }
    }

    /// How long until the handler is dropped.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// How many messages there are, taken or not. If the queue is paused meanwhile, not all of them can be taken.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are none. A handler is never given such a batch.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// How many messages were settled so far.
    #[must_use]
    pub fn processed(&self) -> usize {
        self.taken.iter().filter(|fate| **fate != Fate::Unsettled).count()
    }

    pub(crate) fn verdict(self, result: HandlerResult) -> Verdict {
        let taken = self.taken.len();
        match result {
            HandlerResult::Success if taken == 0 => {
                Verdict::retry(self.taken, "the handler returned Success without taking a message".to_owned())
            }
            HandlerResult::Success => {
                Verdict { done: taken, rejected: rejections(self.taken, None), retry: None }
            }
            HandlerResult::Reject { reason } if taken == 0 => Verdict::retry(self.taken, reason),
            HandlerResult::Reject { reason } => {
                // Before it is copied for each: it may be of any length.
                let reason = storable(&reason, MAX_REASON);
                Verdict { done: taken, rejected: rejections(self.taken, Some(&reason)), retry: None }
            }
            HandlerResult::Retry { reason } => Verdict::retry(self.taken, reason),
        }
    }

    /// What is settled for sure, if the handler is not to be asked any more.
    pub(crate) fn abandon(self) -> Verdict {
        let mut verdict = Verdict::retry(self.taken, String::new());
        verdict.retry = None;
        verdict
    }
}

/// What becomes of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// How many messages, from the first one on, are done.
    pub(crate) done: usize,
    /// Which of these become dead letters, by their place, and why.
    pub(crate) rejected: Vec<(usize, String)>,
    /// Why what is behind them comes again after a back-off.
    pub(crate) retry: Option<Retry>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Retry {
    pub(crate) reason: String,
    pub(crate) blame: Blame,
}

/// Which message a retry is blamed on. Only one that was tried and failed is ever given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The one behind what is done. A handler that takes nothing at all has tried the first message.
    Message,
    /// That one or any behind it: they were handled in one call.
    Call,
    /// One behind so many that succeeded, but went down with it.
    Behind(usize),
    /// None: the handler settled all it took, so it failed for another reason.
    Nobody,
}

impl Verdict {
    fn retry(mut taken: Vec<Fate>, reason: String) -> Self {
        let done = taken.iter().position(|fate| *fate == Fate::Unsettled).unwrap_or(taken.len());
        let was_tried = done < taken.len() || taken.is_empty();
        let blame = if was_tried { Blame::Message } else { Blame::Nobody };
        taken.truncate(done);
        Self { done, rejected: rejections(taken, None), retry: Some(Retry { reason, blame }) }
    }
}

fn rejections(taken: Vec<Fate>, unsettled: Option<&str>) -> Vec<(usize, String)> {
    let reason = |fate| match fate {
        Fate::Rejected(reason) => Some(reason),
        Fate::Unsettled => unsettled.map(str::to_owned),
        Fate::Acked => None,
    };
    taken.into_iter().enumerate().filter_map(|(place, fate)| Some((place, reason(fate)?))).collect()
}
