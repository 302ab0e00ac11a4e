//! Whether all was delivered, nothing else, unchanged, in order, and as often as promised.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use super::{Books, DeadLetter, Evidence, Fault, Verdict};
use crate::{
    content::{Mode, Name},
    history::{Fate, Handling},
};

/// A partition of a mode's queue.
pub(super) type Where = (Mode, u32);

pub(super) fn judge(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let mut handled: Vec<&Handling> = evidence.handled.iter().collect();
    handled.sort_by_key(|handling| handling.at);
    let effects: Vec<&Handling> = evidence.effects.iter().collect();

    let places = Places::of(evidence, books, verdict);
    places.judge(books, verdict);
    judge_leased(evidence, &handled, verdict);
    judge_transactional(&effects, &evidence.dead, verdict);
    judge_dead_letters(evidence, &handled, &effects, verdict);
    judge_completeness(evidence, books, verdict);
}

/// Where each message was seen.
#[derive(Default)]
struct Places {
    by_seq: BTreeMap<(Where, i64), Name>,
    by_name: HashMap<Name, (Where, i64, i64)>,
    by_key: HashMap<(Mode, String), u32>,
}

impl Places {
    fn of(evidence: &Evidence, books: &Books, verdict: &mut Verdict) -> Self {
        let mut places = Self::default();
        let of_handling = |mode| {
            move |handling: &Handling| {
                (mode, handling.partition, handling.seq, handling.id, handling.name, handling.digest)
            }
        };
        let handled = evidence.handled.iter().map(of_handling(Mode::Leased));
        let effects = evidence.effects.iter().map(of_handling(Mode::Transactional));
        let dead = evidence.dead.iter();
        let dead = dead
            .map(|letter| (letter.mode, letter.partition, letter.seq, letter.id, letter.name, letter.digest));
        for (mode, partition, seq, id, name, digest) in handled.chain(effects).chain(dead) {
            let Some(name) = name else {
                verdict.find(
                    |v| &mut v.cross_wired,
                    || format!("message {id} says of itself nothing that is known"),
                );
                continue;
            };
            let Some(expected) = books.expected.get(&name) else {
                verdict.find(|v| &mut v.phantom, || format!("{name:?} was delivered, and never committed"));
                continue;
            };
            let is_there = expected.partition.is_none_or(|wanted| wanted == partition);
            if expected.mode != mode || !is_there || expected.digest != digest {
                verdict.find(|v| &mut v.cross_wired, || {
                    format!("{name:?} came as message {id} of {mode:?} partition {partition}, and not as it was sent")
                });
                continue;
            }
            if let Some(key) = &expected.key
                && *places.by_key.entry((mode, key.clone())).or_insert(partition) != partition
            {
                verdict.find(|v| &mut v.cross_wired, || format!("key {key:?} is in more than one partition"));
            }
            places.add((mode, partition), seq, id, name, verdict);
        }
        places
    }

    /// A message has one place, and a place one message, for ever.
    fn add(&mut self, at: Where, seq: i64, id: i64, name: Name, verdict: &mut Verdict) {
        let other = *self.by_seq.entry((at, seq)).or_insert(name);
        if other != name {
            verdict.find(|v| &mut v.reordered, || format!("seq {seq} of {at:?} is {other:?} and {name:?}"));
        }
        match self.by_name.entry(name) {
            Entry::Vacant(place) => {
                place.insert((at, seq, id));
            }
            Entry::Occupied(place) if *place.get() != (at, seq, id) => {
                let other = *place.get();
                verdict.find(
                    |v| &mut v.reordered,
                    || format!("{name:?} is at {other:?} and at {:?}", (at, seq, id)),
                );
            }
            Entry::Occupied(_) => {}
        }
    }

    /// Seqs have no gaps; inside a transaction the order is kept, and what was committed before another began comes first.
    fn judge(&self, books: &Books, verdict: &mut Verdict) {
        let (mut at, mut next, mut latest_begin) = (None, 1, (0, None));
        let mut last_place: HashMap<(u32, u64), u32> = HashMap::new();
        for ((here, seq), name) in &self.by_seq {
            if at != Some(*here) {
                (at, next, latest_begin) = (Some(*here), 1, (0, None));
                last_place.clear();
            }
            if *seq != next {
                verdict
                    .find(|v| &mut v.reordered, || format!("{here:?}: seq {seq} is where {next} should be"));
            }
            next = seq + 1;
            let transaction = books.transaction(*name);
            if let Some(committed) = transaction.committed
                && committed < latest_begin.0
            {
                verdict.find(
                    |v| &mut v.reordered,
                    || {
                        format!(
                            "{here:?}: {name:?} comes after {:?}, which began after its commit",
                            latest_begin.1
                        )
                    },
                );
            }
            if let Some(began) = transaction.began
                && began > latest_begin.0
            {
                latest_begin = (began, Some(*name));
            }
            let last = last_place.insert((name.producer, name.transaction), name.place);
            if last.is_some_and(|last| last >= name.place) {
                verdict
                    .find(|v| &mut v.reordered, || format!("{here:?}: {name:?} comes after place {last:?}"));
            }
        }
    }
}

/// At least once, and every further time has a reason; nothing is skipped, and a call's messages run on.
fn judge_leased(evidence: &Evidence, handled: &[&Handling], verdict: &mut Verdict) {
    let mut first: HashMap<u32, i64> = HashMap::new();
    let mut last: HashMap<Name, &Handling> = HashMap::new();
    let mut calls: HashMap<(u32, u64), &Handling> = HashMap::new();
    for handling in handled {
        let Handling { partition, seq, .. } = **handling;
        let highest = first.entry(partition).or_default();
        if seq > *highest + 1 {
            verdict.find(
                |v| &mut v.reordered,
                || format!("partition {partition}: seq {seq} was handled when {} was not", *highest + 1),
            );
        }
        *highest = seq.max(*highest);
        let before = calls.insert((handling.process, handling.call), handling);
        if before.is_some_and(|before| before.partition != partition || before.seq + 1 != seq) {
            verdict
                .find(|v| &mut v.reordered, || format!("the messages of a call do not run on: {handling:?}"));
        }
        let Some(name) = handling.name else { continue };
        if let Some(before) = last.insert(name, handling) {
            verdict.duplicates += 1;
            if !is_explained(evidence, before, handling) {
                verdict.find(
                    |v| &mut v.unexplained_duplicates,
                    || format!("{name:?} was handled again, for no reason: {before:?}, {handling:?}"),
                );
            }
        }
    }
}

/// Whether its handler failed, or there was a fault that may have kept its settlement away; or the process that handles it again did not
/// know, by a fault of its own, that others had gone on with what it had in hand.
fn is_explained(evidence: &Evidence, before: &Handling, again: &Handling) -> bool {
    before.fate == Fate::Failed
        || evidence.abandoned.contains(&(before.process, before.call))
        || is_disturbed(evidence, before, again.at)
        || is_disturbed(evidence, again, again.at)
}

/// Whether a fault of the process or of all of them came between the beginning of the lease that it handled something under, which may have
/// been that long before, and some time after.
fn is_disturbed(evidence: &Evidence, handling: &Handling, until: u64) -> bool {
    let lease = evidence.leases.get(&handling.process).copied().unwrap_or_default();
    let begun = handling.at.saturating_sub(lease);
    let concerns =
        |fault: &&Fault| fault.explains && fault.process.is_none_or(|process| process == handling.process);
    evidence.faults.iter().filter(concerns).any(|fault| fault.from <= until && fault.until >= begun)
}

/// One effect a message, in order, and none missing but those of dead letters.
fn judge_transactional(effects: &[&Handling], dead: &[DeadLetter], verdict: &mut Verdict) {
    let rejected: HashSet<(u32, i64)> = dead
        .iter()
        .filter(|letter| letter.mode == Mode::Transactional)
        .map(|letter| (letter.partition, letter.seq))
        .collect();
    let mut last: HashMap<u32, i64> = HashMap::new();
    let mut seen = HashSet::new();
    for effect in effects {
        let Handling { partition, seq, .. } = **effect;
        if !seen.insert((partition, seq)) {
            verdict.find(|v| &mut v.transactional_duplicates, || format!("a second effect: {effect:?}"));
            continue;
        }
        let last = last.entry(partition).or_default();
        if seq < *last {
            verdict.find(
                |v| &mut v.reordered,
                || format!("partition {partition}: an effect of {seq} after {last}"),
            );
        }
        if (*last + 1..seq).any(|between| !rejected.contains(&(partition, between))) {
            verdict.find(|v| &mut v.reordered, || {
                format!("partition {partition}: an effect of {seq} after {last}, and what is between was not rejected")
            });
        }
        *last = seq.max(*last);
    }
}

/// A dead letter is what the last handler to have the message rejected, and nothing else is one.
fn judge_dead_letters(
    evidence: &Evidence,
    handled: &[&Handling],
    effects: &[&Handling],
    verdict: &mut Verdict,
) {
    let mut letters: HashMap<Name, &DeadLetter> = HashMap::new();
    for letter in &evidence.dead {
        if let Some(name) = letter.name
            && letters.insert(name, letter).is_some()
        {
            verdict.find(|v| &mut v.transactional_duplicates, || format!("{name:?} is a dead letter twice"));
        }
    }
    let last: HashMap<Name, &Handling> =
        handled.iter().filter_map(|handling| Some((handling.name?, *handling))).collect();
    for (name, last) in &last {
        let letter = letters.get(name);
        let is_of_last = |letter: &DeadLetter| letter.call == Some((last.process, last.call));
        match (last.fate, letter) {
            (Fate::Rejected, None) => {
                verdict.find(
                    |v| &mut v.lost,
                    || format!("{name:?} was rejected, and is no dead letter: {last:?}"),
                );
            }
            (Fate::Rejected, Some(letter)) if is_of_last(letter) => {}
            (_, Some(letter)) => verdict.find(
                |v| &mut v.stale_settles,
                || {
                    format!(
                        "{name:?} was rejected by call {:?}, and handled after that: {last:?}",
                        letter.call
                    )
                },
            ),
            (_, None) => {}
        }
    }
    let with_effect: HashSet<Name> = effects.iter().filter_map(|effect| effect.name).collect();
    for (name, letter) in &letters {
        if letter.mode == Mode::Transactional && with_effect.contains(name) {
            verdict.find(|v| &mut v.phantom, || format!("{name:?} is a dead letter, and has an effect"));
        }
    }
    for name in &with_effect {
        if evidence.shape.is_poison(*name) {
            verdict.find(|v| &mut v.phantom, || format!("{name:?} was rejected, and has an effect"));
        }
    }
}

fn judge_completeness(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let seen = evidence.handled.iter().chain(&evidence.effects).filter_map(|handling| handling.name);
    let seen: HashSet<Name> = seen.chain(evidence.dead.iter().filter_map(|letter| letter.name)).collect();
    for name in books.expected.keys().filter(|name| !seen.contains(name)) {
        verdict.find(|v| &mut v.lost, || format!("{name:?} was committed, and never handled"));
    }
}
