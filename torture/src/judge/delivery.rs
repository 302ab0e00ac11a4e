//! Whether all was delivered, nothing else, unchanged, in order, and as often as promised.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use super::{Books, DeadLetter, Evidence, Excuses, Verdict, Where, ended, last_of_each};
use crate::{
    content::{Mode, Name},
    history::{Fate, Handling},
};

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
    by_id: HashMap<i64, Name>,
    /// It is not posthaste that is judged.
    has_no_ids: bool,
    by_key: HashMap<(Mode, String), u32>,
}

impl Places {
    fn of(evidence: &Evidence, books: &Books, verdict: &mut Verdict) -> Self {
        let mut places = Self { has_no_ids: evidence.shape.is_plain, ..Self::default() };
        for (name, expected) in &books.expected {
            if let Some(id) = expected.id {
                places.name(id, *name, verdict);
            }
        }
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
            match expected.id {
                None => places.name(id, name, verdict),
                Some(own) if own == id => {}
                Some(own) => verdict.find(
                    |v| &mut v.cross_wired,
                    || format!("{name:?} came as message {id}, and its producer was told that it is {own}"),
                ),
            }
            if let Some(key) = &expected.key
                && *places.by_key.entry((mode, key.clone())).or_insert(partition) != partition
            {
                verdict.find(|v| &mut v.cross_wired, || format!("key {key:?} is in more than one partition"));
            }
            places.add((mode, partition), seq, expected.id.unwrap_or(id), name, verdict);
        }
        places
    }

    /// An id means one message, in all of the outbox and for ever. None is 0, unless its handlers are not told any.
    fn name(&mut self, id: i64, name: Name, verdict: &mut Verdict) {
        if id == 0 && self.has_no_ids {
            return;
        }
        let other = *self.by_id.entry(id).or_insert(name);
        if other != name {
            verdict.find(|v| &mut v.reordered, || format!("id {id} is {other:?} and {name:?}"));
        }
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

/// At least once, and every further time has a reason; nobody is given what is behind a message that no handler was done with, and a call's
/// messages run on.
fn judge_leased(evidence: &Evidence, handled: &[&Handling], verdict: &mut Verdict) {
    let (excuses, deeds) = (Excuses::of(evidence), Excuses::of_deeds(evidence));
    // Up to where handlers were done with each partition, one after the other.
    let mut done: HashMap<u32, i64> = HashMap::new();
    let mut last: HashMap<Name, &Handling> = HashMap::new();
    let mut calls: HashMap<(u32, u64), &Handling> = HashMap::new();
    // How far each process has come in each partition, and in which call.
    let mut furthest: HashMap<(u32, u32), (i64, u64)> = HashMap::new();
    for handling in handled {
        let Handling { process, call, partition, seq, fate, .. } = **handling;
        let done = done.entry(partition).or_default();
        let is_skipping = seq > *done + 1;
        if is_skipping {
            verdict.find(
                |v| &mut v.reordered,
                || {
                    format!(
                        "partition {partition}: seq {seq} was handled when nobody was done with {}",
                        *done + 1
                    )
                },
            );
        }
        if is_skipping || fate != Fate::Failed {
            *done = seq.max(*done);
        }
        let before = calls.insert((process, call), handling);
        if before.is_some_and(|before| before.partition != partition || before.seq + 1 != seq) {
            verdict
                .find(|v| &mut v.reordered, || format!("the messages of a call do not run on: {handling:?}"));
        }
        let reached = furthest.entry((process, partition)).or_default();
        *reached = (*reached).max((seq, call));
        let Some(name) = handling.name else { continue };
        if let Some(before) = last.insert(name, handling) {
            verdict.duplicates += 1;
            let reached = furthest.get(&(before.process, partition));
            let has_gone_on = reached.is_some_and(|(seq, call)| *seq > before.seq && *call > before.call);
            if !excuses.explain(before, handling, has_gone_on) {
                verdict.find(
                    |v| &mut v.unexplained_duplicates,
                    || format!("{name:?} was handled again, for no reason: {before:?}, {handling:?}"),
                );
            } else if !deeds.explain(before, handling, has_gone_on) {
                verdict.self_excused += 1;
            }
        }
    }
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

/// A dead letter is what a handler rejected, in leased mode the last one to have it, and nothing else is one.
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
            let kind: fn(&mut Verdict) -> &mut u64 = match letter.mode {
                Mode::Leased => |v| &mut v.unexplained_duplicates,
                Mode::Transactional => |v| &mut v.transactional_duplicates,
            };
            verdict.find(kind, || format!("{name:?} is a dead letter twice"));
        }
    }
    let by_leased = handled.iter().filter(|handling| handling.fate == Fate::Rejected);
    let by_leased = by_leased.filter_map(|handling| Some((handling.process, handling.call, handling.name?)));
    let rejected: HashSet<(u32, u64, Name)> = by_leased.chain(evidence.rejected.iter().copied()).collect();
    let last = last_of_each(&evidence.handled);
    for (name, letter) in &letters {
        let call = letter.call.filter(|(process, call)| rejected.contains(&(*process, *call, *name)));
        let last = last.get(name).map(|last| (last.process, last.call));
        match (call, last) {
            (None, _) => verdict.find(
                |v| &mut v.phantom,
                || format!("{name:?} is a dead letter of call {:?}, which did not reject it", letter.call),
            ),
            (Some(call), Some(last)) if call != last => verdict.find(
                |v| &mut v.stale_settles,
                || format!("{name:?} was rejected by call {call:?}, and given to {last:?} after that"),
            ),
            (Some(_), _) => {}
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

/// Everything comes to an end.
fn judge_completeness(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let ended = ended(evidence, &Excuses::of(evidence));
    for name in books.expected.keys().filter(|name| !ended.contains(name)) {
        verdict.find(
            |v| &mut v.lost,
            || format!("{name:?} was committed, and nobody was done with it in the end, or it was rejected and is no dead letter"),
        );
    }
}
