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

/// The longest back-off, whatever the tuning says: databases add it to the time of day.
const MAX_BACKOFF: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The longest back-off if no message is at fault, for example because a session was lost.
const MAX_BLAMELESS_BACKOFF: Duration = Duration::from_secs(1);

/// How a batch was handled.
pub(crate) struct Handled {
    pub(super) verdict: Verdict,
    /// Not to its end: the process stops, or there was no time for it.
    pub(super) is_abandoned: bool,
}

impl Handled {
    pub(crate) const fn judged(verdict: Verdict) -> Self {
        Self { verdict, is_abandoned: false }
    }

    pub(crate) const fn abandoned(verdict: Verdict) -> Self {
        Self { verdict, is_abandoned: true }
    }
}

/// What to tell the database, and what to remember once it knows.
pub(crate) struct Decision {
    pub(crate) settlement: Settlement,
    pub(super) poison: Poison,
    pub(super) tally: Tally,
}

/// What became of the messages of a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Settled, rejected ones included.
    pub(super) settled: usize,
    pub(super) rejected: usize,
    /// What is left comes again after a back-off.
    pub(super) is_retry: bool,
}

/// The only place that decides how far the cursor moves.
pub(crate) fn decide(
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
            let failures = match retry.blame {
                // By the attempts of the message that failed: they travel with the cursor, so that every process
                // waits as long, and another message that fails next begins anew.
                Blame::Message | Blame::Call => attempts.max(1),
                // The messages before the one that failed come again without it.
                Blame::Behind(_) => 1,
                Blame::Nobody if verdict.done > 0 => 1,
                Blame::Nobody => poison.failures(),
            };
            let most = if retry.blame == Blame::Nobody { MAX_BLAMELESS_BACKOFF } else { MAX_BACKOFF };
            backoff = Some(tuning.retry_delay(failures).min(most));
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
        backoff,
        go_on,
    };
    let (settled, rejected) = (verdict.done, settlement.burials.len());
    let tally = Tally { settled, rejected, is_retry: backoff.is_some() };
    Decision { settlement, poison, tally }
}

/// A message that has had all its tries, the last of which ended with the death of its worker.
pub(crate) fn exhausted(leased: &Leased, max_attempts: Option<u32>) -> Option<Verdict> {
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use proptest::prelude::*;

    use super::*;
    use crate::{OutboxMessageId, batch::Retry};

    const BEFORE: i64 = 40;

    fn leased(size: usize, attempts: u32) -> Leased {
        let message = |seq| OutboxMessage {
            id: OutboxMessageId(1000 + seq),
            queue: "q".into(),
            partition: 0,
            partition_id: 1,
            seq,
            key: None,
            headers: Vec::new(),
            payload: Vec::new(),
            payload_type: String::new(),
            created_at: SystemTime::UNIX_EPOCH,
            attempts: 0,
        };
        let messages = (BEFORE + 1..).take(size).map(message).collect();
        Leased { epoch: 7, processed_seq: BEFORE, attempts, last_error: Some("before".to_owned()), messages }
    }

    fn decided(leased: &Leased, handled: Handled, max_attempts: Option<u32>) -> Decision {
        let tuning = WorkerTuning::processor();
        decide(leased, handled, true, Poison::new(100, 2), &tuning, max_attempts)
    }

    fn retry(done: usize, blame: Blame) -> Handled {
        let retry = Some(Retry { reason: "no".to_owned(), blame });
        Handled::judged(Verdict { done, rejected: Vec::new(), retry })
    }

    #[test]
    fn only_a_message_that_was_tried_and_failed_is_given_up() {
        for (blame, buried, attempts) in [
            (Blame::Message, 1, 0),
            // One try is left, and it will be alone.
            (Blame::Call, 0, 2),
            (Blame::Behind(3), 0, 2),
            (Blame::Nobody, 0, 2),
        ] {
            let Decision { settlement, poison, .. } = decided(&leased(5, 3), retry(0, blame), Some(3));
            assert_eq!(settlement.burials.len(), buried, "{blame:?}");
            assert_eq!(
                (settlement.attempts, settlement.processed_seq),
                (attempts, BEFORE + i64::try_from(buried).unwrap())
            );
            let size = match blame {
                Blame::Behind(sound) => u32::try_from(sound).unwrap(),
                Blame::Message | Blame::Call => 1,
                Blame::Nobody => 100,
            };
            assert_eq!(poison.size(), size, "{blame:?}");
        }
    }

    #[test]
    fn the_tries_of_the_first_message_are_not_those_of_another() {
        let settlement = decided(&leased(5, 3), retry(2, Blame::Message), None).settlement;
        assert_eq!((settlement.processed_seq, settlement.attempts), (BEFORE + 2, 1));
        assert_eq!(settlement.last_error.as_deref(), Some("no"));
    }

    #[test]
    fn the_back_off_is_that_of_the_message_that_failed() {
        let backoff = |attempts, failed| {
            let decision = decided(&leased(5, attempts), retry(failed, Blame::Message), None);
            decision.settlement.backoff.unwrap().as_millis()
        };
        assert_eq!([1, 2, 3, 4].map(|attempts| backoff(attempts, 0)), [50, 1000, 2000, 4000]);
        assert_eq!(backoff(4, 2), 50, "another message failed, for the first time");
    }

    #[test]
    fn what_no_message_is_at_fault_for_delays_them_little() {
        let backoff = |done| {
            let mut poison = Poison::new(100, 2);
            (0..9).for_each(|_| poison.retried(0));
            let tuning = WorkerTuning::processor();
            let decision = decide(&leased(5, 1), retry(done, Blame::Nobody), true, poison, &tuning, None);
            decision.settlement.backoff.unwrap().as_millis()
        };
        assert_eq!(backoff(0), 1000, "however many failed before");
        assert_eq!(backoff(2), 50, "there was progress");
    }

    #[test]
    fn a_stop_is_no_try_and_forgets_nothing() {
        let stopped = |done| Handled::abandoned(Verdict { done, rejected: Vec::new(), retry: None });
        let settlement = decided(&leased(5, 3), stopped(0), Some(3)).settlement;
        assert_eq!((settlement.attempts, settlement.last_error.as_deref()), (2, Some("before")));
        let settlement = decided(&leased(5, 3), stopped(2), Some(3)).settlement;
        assert_eq!((settlement.attempts, settlement.last_error), (0, None));
    }

    #[test]
    fn a_message_whose_tries_all_ended_in_crashes_is_given_up_untried() {
        assert_eq!(exhausted(&leased(1, 3), Some(3)), None, "the third try is under way");
        let verdict = exhausted(&leased(1, 4), Some(3)).unwrap();
        assert_eq!(verdict.rejected, [(0, "given up after 3 of 3 attempts: before".to_owned())]);
        assert_eq!(exhausted(&leased(1, 4), None), None);
    }

    proptest! {
        /// Whatever a handler did: the cursor never goes back nor past the batch, and what is buried is behind it.
        #[test]
        fn the_cursor_stays_within_its_batch(
            size in 1..20_usize,
            done in 0..20_usize,
            rejected in prop::collection::btree_set(0..20_usize, 0..5),
            blame in prop::option::of(prop_oneof![
                Just(Blame::Message),
                Just(Blame::Call),
                Just(Blame::Nobody),
                (0..20_usize).prop_map(Blame::Behind),
            ]),
            tried in 1..5_u32,
            max_attempts in prop::option::of(1..5_u32),
            is_abandoned in any::<bool>(),
        ) {
            let leased = leased(size, tried);
            // What can come again is behind what is done.
            let done = done.min(if blame.is_some() { size - 1 } else { size });
            let rejected: Vec<_> =
                rejected.into_iter().filter(|place| *place < done).map(|place| (place, "bad".to_owned())).collect();
            let buried = rejected.len();
            let verdict = Verdict { done, rejected, retry: blame.map(|blame| Retry { reason: "no".to_owned(), blame }) };
            let is_retry = verdict.retry.is_some();
            let Decision { settlement, tally, .. } =
                decided(&leased, Handled { verdict, is_abandoned }, max_attempts);
            let backoff = settlement.backoff;
            let moved = usize::try_from(settlement.processed_seq - BEFORE).unwrap();
            prop_assert_eq!((tally.settled, tally.rejected), (moved, settlement.burials.len()));
            prop_assert_eq!(tally.is_retry, backoff.is_some());
            let given_up = settlement.burials.len() - buried;
            prop_assert!(moved <= size && moved == done + given_up && given_up <= 1);
            prop_assert!(settlement.burials.iter().all(|burial| burial.seq <= settlement.processed_seq));
            prop_assert!(given_up == 0 || blame == Some(Blame::Message) && max_attempts.is_some());
            // After a retry it stays away and lets the lease go; after a message was given up it goes on.
            prop_assert_eq!(backoff.is_some(), is_retry && given_up == 0);
            prop_assert_eq!(settlement.last_error.as_deref() == Some("no"), is_retry && given_up == 0);
            let is_put_off = is_retry && given_up == 0;
            prop_assert_eq!(settlement.go_on, !is_abandoned && !is_put_off);
            prop_assert!(settlement.attempts <= tried, "a try is never made up");
        }
    }
}
