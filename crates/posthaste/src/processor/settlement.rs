//! How far the cursor moves after a batch, and what that means for the next one. Pure.

use std::time::Duration;

use super::Poison;
use crate::{
    OutboxMessage, WorkerTuning,
    batch::{Blame, Verdict},
    error::storable,
    limits::MAX_REASON,
    store::{Burial, Leased, Settlement},
};

/// How a batch was handled.
pub(super) struct Handled {
    pub(super) verdict: Verdict,
    /// Not to its end: the process stops, or there was no time for it.
    pub(super) is_abandoned: bool,
}

impl Handled {
    pub(super) const fn judged(verdict: Verdict) -> Self {
        Self { verdict, is_abandoned: false }
    }

    pub(super) const fn abandoned(verdict: Verdict) -> Self {
        Self { verdict, is_abandoned: true }
    }
}

/// What to tell the database, and what to remember once it knows.
pub(super) struct Decision {
    pub(super) settlement: Settlement,
    pub(super) poison: Poison,
    /// How long to stay away.
    pub(super) backoff: Option<Duration>,
}

/// The only place that decides how far the cursor moves.
pub(super) fn decide(
    leased: &Leased,
    handled: Handled,
    go_on: bool,
    mut poison: Poison,
    tuning: &WorkerTuning,
    max_attempts: Option<u32>,
) -> Decision {
    let Handled { mut verdict, is_abandoned } = handled;
    // The first message of the batch has been tried before; the others have not.
    let tries = |place: usize| if place == 0 { leased.attempts } else { 1 };
    let tried = tries(verdict.done);
    let is_last_try = max_attempts.is_some_and(|limit| tried >= limit);
    let (mut attempts, mut last_error, mut backoff) = (0, None, None);
    let mut go_on = go_on && !is_abandoned;
    match verdict.retry.take() {
        Some(retry) if is_last_try && retry.blame == Blame::Message => {
            verdict.rejected.push((verdict.done, retry.reason));
            verdict.done += 1;
            poison.rejected(verdict.done);
        }
        Some(retry) => {
            match retry.blame {
                Blame::Behind(sound) => poison.broke_behind(sound),
                Blame::Call if is_last_try => poison.isolate(),
                Blame::Message | Blame::Call | Blame::Nobody => poison.retried(verdict.done),
            }
            attempts = match retry.blame {
                // It was not tried alone: that try is left.
                Blame::Call if is_last_try => tried.saturating_sub(1),
                Blame::Message | Blame::Call => tried,
                Blame::Behind(_) | Blame::Nobody => tried.saturating_sub(1),
            };
            backoff = Some(tuning.retry_delay(poison.failures()));
            last_error = Some(storable(&retry.reason, MAX_REASON));
            // However short the back-off: the tries are written down when the lease is let go.
            go_on = false;
        }
        None if is_abandoned => {
            // A stop is no try.
            attempts = tried.saturating_sub(1);
            last_error = leased.last_error.clone().filter(|_| verdict.done == 0);
        }
        None if verdict.rejected.is_empty() => {
            let bytes = leased.messages.iter().map(|message| message.payload.len()).sum();
            poison.succeeded(leased.messages.len(), bytes);
        }
        None => poison.rejected(verdict.done - verdict.rejected.len()),
    }
    let settlement = Settlement {
        epoch: leased.epoch,
        processed_seq: leased.processed_seq + i64::try_from(verdict.done).unwrap_or_default(),
        burials: burials(&leased.messages, verdict.rejected, tries),
        attempts,
        last_error,
        go_on,
    };
    Decision { settlement, poison, backoff }
}

/// A message that has had all its tries, the last of which ended with the death of its worker.
pub(super) fn exhausted(leased: &Leased, max_attempts: Option<u32>) -> Option<Verdict> {
    let tried = leased.attempts.saturating_sub(1);
    let limit = max_attempts.filter(|limit| tried >= *limit)?;
    let why = leased.last_error.as_deref().unwrap_or("its worker died");
    let reason = format!("given up after {tried} of {limit} attempts: {why}");
    Some(Verdict { done: 1, rejected: vec![(0, reason)], retry: None })
}

fn burials(
    messages: &[OutboxMessage],
    rejected: Vec<(usize, String)>,
    tries: impl Fn(usize) -> u32,
) -> Vec<Burial> {
    let burial = |(place, reason): (usize, String)| {
        let message = messages.get(place)?;
        Some(Burial {
            id: message.id.0,
            seq: message.seq,
            reason: storable(&reason, MAX_REASON),
            attempts: tries(place),
        })
    };
    rejected.into_iter().filter_map(burial).collect()
}
