//! Whether partitions with work got on: when nothing was done to them, and in time after something was.

use std::collections::HashMap;

use super::{Books, Evidence, Fault, Verdict, delivery::Where};
use crate::{
    clock::seconds,
    content::{Mode, Name},
    history::Handling,
};

/// Nothing relies on a timer longer than this.
const PATIENCE: u64 = seconds(5);

/// A message that was handled for the first time.
struct First {
    at: u64,
    /// Since when it could have been; never, if nobody knows when it was committed.
    waits_since: u64,
    process: u32,
}

pub(super) fn judge(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let mut faults: Vec<&Fault> = evidence.faults.iter().collect();
    faults.sort_by_key(|fault| fault.from);
    let shadows = union(&faults);
    let alone: Vec<&Fault> =
        faults.iter().copied().filter(|fault| fault.recovery > 0 && is_alone(fault, &faults)).collect();
    for (at, firsts) in firsts(evidence, books) {
        judge_waits(at, &firsts, &shadows, verdict);
        for fault in &alone {
            judge_recovery(at, &firsts, fault, verdict);
        }
    }
}

/// The first time of each message, by partition and in the order in which they came.
fn firsts(evidence: &Evidence, books: &Books) -> Vec<(Where, Vec<First>)> {
    let mut first: HashMap<Name, (Where, &Handling)> = HashMap::new();
    let handled = evidence.handled.iter().map(|handling| (Mode::Leased, handling));
    let effects = evidence.effects.iter().map(|handling| (Mode::Transactional, handling));
    for (mode, handling) in handled.chain(effects) {
        let Some(name) = handling.name else { continue };
        let entry = first.entry(name).or_insert(((mode, handling.partition), handling));
        if handling.at < entry.1.at {
            *entry = ((mode, handling.partition), handling);
        }
    }
    let mut by_partition: HashMap<Where, Vec<First>> = HashMap::new();
    for (name, (at, handling)) in first {
        let waits_since = books.transaction(name).committed.unwrap_or(u64::MAX);
        by_partition.entry(at).or_default().push(First {
            at: handling.at,
            waits_since,
            process: handling.process,
        });
    }
    let mut all: Vec<_> = by_partition.into_iter().collect();
    for (_, firsts) in &mut all {
        firsts.sort_by_key(|first| first.at);
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// The times in which nobody can expect anything, joined where they overlap.
fn union(faults: &[&Fault]) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for fault in faults {
        match joined.last_mut() {
            Some((_, until)) if fault.from <= *until => *until = fault.ends().max(*until),
            _ => joined.push((fault.from, fault.ends())),
        }
    }
    joined
}

/// How much of a time is in none of the shadows.
fn in_the_light(from: u64, until: u64, shadows: &[(u64, u64)]) -> u64 {
    let first = shadows.partition_point(|(_, ends)| *ends <= from);
    let dark: u64 = shadows[first..]
        .iter()
        .take_while(|(begins, _)| *begins < until)
        .map(|(begins, ends)| (*ends).min(until) - (*begins).max(from))
        .sum();
    until - from - dark
}

/// The next message of a partition waits for those before it, and then for nothing.
fn judge_waits(at: Where, firsts: &[First], shadows: &[(u64, u64)], verdict: &mut Verdict) {
    let mut before = 0;
    for first in firsts {
        let from = first.waits_since.max(before);
        before = first.at;
        if from < first.at && in_the_light(from, first.at, shadows) > PATIENCE {
            verdict.find(
                |v| &mut v.stalls,
                || {
                    format!(
                        "{at:?}: a message waited {} ms at the head of its partition",
                        (first.at - from) / 1000
                    )
                },
            );
        }
    }
}

/// Whether no other fault is near enough to disturb what is measured.
fn is_alone(fault: &Fault, faults: &[&Fault]) -> bool {
    let others = faults.iter().filter(|other| other.recovery > 0 && !std::ptr::eq(**other, fault));
    others.into_iter().all(|other| other.ends() < fault.from || other.from > fault.ends())
}

/// How long a partition with work stood still after a fault, beyond the lease that it had to wait for.
fn judge_recovery(at: Where, firsts: &[First], fault: &Fault, verdict: &mut Verdict) {
    let next = firsts.partition_point(|first| first.at <= fault.until);
    let Some(first) = firsts.get(next).filter(|first| first.waits_since <= fault.ends()) else { return };
    if let Some(process) = fault.process {
        // What others had in hand is not delayed by it.
        let had_it =
            next.checked_sub(1).and_then(|last| firsts.get(last)).is_some_and(|last| last.process == process);
        if !had_it {
            return;
        }
    }
    let took = first.at.saturating_sub((fault.until + fault.lease).max(first.waits_since));
    verdict.recoveries += 1;
    verdict.recovery_p100_ms = verdict.recovery_p100_ms.max(took / 1000);
    if took > fault.recovery {
        verdict.find(
            |v| &mut v.stalls,
            || {
                format!(
                    "{at:?}: {} ms until it got on after {}, {} allowed",
                    took / 1000,
                    fault.what,
                    fault.recovery / 1000
                )
            },
        );
    }
}
