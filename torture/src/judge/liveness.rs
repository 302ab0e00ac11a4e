//! Whether partitions with work got on: when nothing was done to them, and in time after something was.

use std::collections::HashMap;

use super::{Books, Evidence, Fault, Verdict, Where};
use crate::{
    clock::{millis, seconds},
    content::{Mode, Name},
    history::Handling,
};

/// Nothing relies on a timer longer than this.
const PATIENCE: u64 = seconds(5);

/// So little time passes between two messages of a process that has all that it can do.
const BUSY: u64 = millis(50);
/// A handler that takes so long keeps a process from more than its own partition: others may be as slow, and there are few at a time.
const VERY_LONG: u64 = seconds(1);

/// A message that was handled for the first time.
struct First {
    at: u64,
    /// Since when it could have been; never, if nobody knows when it was committed.
    waits_since: u64,
    process: u32,
    /// When the call began that it was handled in, at the earliest.
    call_began: u64,
}

pub(super) fn judge(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let mut faults: Vec<&Fault> = evidence.faults.iter().collect();
    faults.sort_by_key(|fault| fault.from);
    let alone: Vec<&Fault> =
        faults.iter().copied().filter(|fault| fault.recovery > 0 && is_alone(fault, &faults)).collect();
    let firsts = firsts(evidence, books);
    for (at, firsts) in &firsts {
        judge_waits(*at, firsts, &faults, verdict);
    }
    let work = Work::of(evidence);
    for fault in alone {
        let recoveries =
            firsts.iter().filter_map(|(at, firsts)| recovery(*at, firsts, fault, &faults, &work));
        judge_recoveries(fault, &recoveries.collect::<Vec<_>>(), verdict);
    }
}

/// When anything was handled, in order: by each process, and by any of them.
#[derive(Default)]
struct Work {
    of: HashMap<u32, Vec<u64>>,
    of_all: Vec<u64>,
}

impl Work {
    fn of(evidence: &Evidence) -> Self {
        let handled = evidence.handled.iter().chain(&evidence.effects);
        Self::at(handled.map(|handling| (handling.process, handling.at)))
    }

    fn at(times: impl Iterator<Item = (u32, u64)>) -> Self {
        let mut work = Self::default();
        for (process, at) in times {
            work.of.entry(process).or_default().push(at);
            work.of_all.push(at);
        }
        work.of.values_mut().chain([&mut work.of_all]).for_each(|times| times.sort_unstable());
        work
    }

    /// How long nobody was at work who could have come to what a process came to in the end: it, and anybody before it was there.
    fn idle(&self, process: u32, from: u64, until: u64) -> u64 {
        let own = self.of.get(&process).map_or(&[][..], Vec::as_slice);
        let there = own.first().map_or(until, |first| (*first).max(from)).min(until);
        idle(&self.of_all, from, there) + idle(own, there, until)
    }
}

/// How much of a time was not spent at work.
fn idle(times: &[u64], from: u64, until: u64) -> u64 {
    let times = &times[times.partition_point(|time| *time <= from)..];
    let meanwhile = times.iter().copied().take_while(|time| *time < until);
    let (mut idle, mut busy_until) = (0, from);
    for time in meanwhile.chain([until]) {
        idle += time.saturating_sub(busy_until);
        busy_until = time + BUSY;
    }
    idle
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
        let Handling { at: handled_at, process, .. } = *handling;
        let lease = evidence.leases.get(&process).copied().unwrap_or_default();
        let call_began = handled_at.saturating_sub(lease);
        by_partition.entry(at).or_default().push(First { at: handled_at, waits_since, process, call_began });
    }
    let mut all: Vec<_> = by_partition.into_iter().collect();
    for (_, firsts) in &mut all {
        firsts.sort_by_key(|first| first.at);
    }
    all.sort_by_key(|(at, _)| *at);
    all
}

/// How much of a time nobody has an excuse for. A fault is one until all of it must be over; but when a batch was begun after it, the
/// partition has recovered, and what comes later has another reason.
fn in_the_light<'f>(got_on: u64, from: u64, until: u64, faults: impl IntoIterator<Item = &'f Fault>) -> u64 {
    let (mut light, mut dark_until) = (0, from);
    for fault in faults.into_iter().filter(|fault| fault.lifted() >= got_on && fault.ends() > from) {
        if fault.from >= until {
            break;
        }
        light += fault.from.saturating_sub(dark_until);
        dark_until = dark_until.max(fault.ends());
    }
    light + until.saturating_sub(dark_until)
}

impl First {
    /// Whether what keeps one partition busy, or one process, may have kept this message waiting.
    fn is_hindered_by(&self, at: Where, fault: &Fault) -> bool {
        let is_for_all = fault.place.is_none() || fault.until.saturating_sub(fault.from) > VERY_LONG;
        fault.place == Some(at) || fault.process == Some(self.process) && is_for_all
    }
}

/// The next message of a partition waits for those before it, and then for nothing.
fn judge_waits(at: Where, firsts: &[First], faults: &[&Fault], verdict: &mut Verdict) {
    let (mut before, mut got_on) = (0, 0);
    for first in firsts {
        let from = first.waits_since.max(before);
        let last_began = std::mem::replace(&mut got_on, first.call_began);
        before = first.at;
        let concern = |fault: &&&Fault| fault.place.is_none() || first.is_hindered_by(at, fault);
        let concerning = || faults.iter().filter(concern).copied();
        if first.at.saturating_sub(from) > PATIENCE
            && in_the_light(last_began, from, first.at, concerning()) > PATIENCE
        {
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

/// Whether no other fault is near enough to disturb what is measured; nor what keeps everybody waiting and is nobody's deed, as a handler
/// does that has the only turn to write.
fn is_alone(fault: &Fault, faults: &[&Fault]) -> bool {
    let disturbs = |other: &Fault| other.recovery > 0 || other.process.is_none();
    let others = faults.iter().filter(|other| disturbs(other) && !std::ptr::eq(**other, fault));
    others.into_iter().all(|other| other.ends() < fault.from || other.from > fault.ends())
}

/// How a partition with work got on after a fault.
struct Recovery {
    at: Where,
    /// How long it stood still, beyond the lease that it had to wait for.
    took: u64,
    /// How much of that was not because whoever went on with it had so much to do elsewhere.
    idle: u64,
    /// Whether it had work when the lease was over, so that somebody must have taken it over.
    is_taken_over: bool,
}

fn recovery(at: Where, firsts: &[First], fault: &Fault, faults: &[&Fault], work: &Work) -> Option<Recovery> {
    let next = firsts.partition_point(|first| first.at <= fault.lifted());
    let first = firsts.get(next).filter(|first| first.waits_since <= fault.ends())?;
    if let Some(process) = fault.process {
        // What others had in hand is not delayed by it.
        let last = firsts.get(next.checked_sub(1)?)?;
        if last.process != process {
            return None;
        }
    }
    // The time that handlers took is theirs, and of a transaction that was undone nothing else is to be seen.
    let hampering = |other: &&&Fault| other.recovery == 0 && first.is_hindered_by(at, other);
    let from = (fault.lifted() + fault.lease).max(first.waits_since);
    let took = in_the_light(0, from, first.at, faults.iter().filter(hampering).copied());
    let idle = work.idle(first.process, from, first.at);
    let is_taken_over = first.waits_since <= fault.lifted() + fault.lease;
    Some(Recovery { at, took, idle: idle.min(took), is_taken_over })
}

/// Some must have got on in time, and all of them but those that wait for their turn behind the others.
fn judge_recoveries(fault: &Fault, recoveries: &[Recovery], verdict: &mut Verdict) {
    let is_in_time = |recovery: &Recovery| recovery.is_taken_over && recovery.took <= fault.recovery;
    let is_going_on = recoveries.iter().any(is_in_time);
    for Recovery { at, took, idle, .. } in recoveries {
        if is_going_on && *took > fault.recovery && *idle <= fault.recovery {
            verdict.queued += 1;
            continue;
        }
        verdict.recovered(fault.what, took / 1000);
        if *took > fault.recovery {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_its_turn_has_recovered_if_others_have() {
        let fault = Fault::of_one("a test", 1, 0, seconds(10), seconds(10));
        let at = (Mode::Leased, 1);
        let recovery =
            |took, idle| Recovery { at, took: seconds(took), idle: seconds(idle), is_taken_over: true };
        let new = Recovery { is_taken_over: false, ..recovery(0, 0) };
        let stalls = |recoveries: &[Recovery]| {
            let mut verdict = Verdict::default();
            judge_recoveries(&fault, recoveries, &mut verdict);
            (verdict.stalls, verdict.queued, verdict.recovery_p100_ms)
        };
        assert_eq!(stalls(&[recovery(2, 2), recovery(4, 1)]), (0, 1, 2000));
        assert_eq!(stalls(&[recovery(2, 2), recovery(4, 3)]), (1, 0, 4000));
        assert_eq!(stalls(&[recovery(3, 1), recovery(4, 1), new]), (2, 0, 4000));
    }

    #[test]
    fn work_elsewhere_is_no_idleness() {
        let at = (Mode::Leased, 1);
        let first = |at, process| First { at: seconds(at), waits_since: 0, process, call_began: 0 };
        let fault = Fault::of_one("a test", 1, seconds(1), seconds(10), seconds(10));
        // The other process has been there all the time.
        let work = |others: &[u64], times: &[u64]| {
            let others = others.iter().map(|time| (3, *time));
            let own = [50].iter().chain(times).map(|time| (2, *time));
            Work::at(others.chain(own).map(|(process, time)| (process, time * 100_000)))
        };
        let recovery = |times: &[u64]| {
            recovery(at, &[first(9, 1), first(14, 2)], &fault, &[&fault], &work(&[112, 113], times)).unwrap()
        };
        let Recovery { took, idle, .. } = recovery(&[]);
        assert_eq!((took, idle), (seconds(3), seconds(3)));
        // From 11 to 14, with 50 ms for each.
        assert_eq!(recovery(&[105, 140, 141]).idle, seconds(3));
        assert_eq!(recovery(&[112, 113, 119, 130]).idle, millis(3000 - 4 * 50));
        // Before it was there, others may have been at work.
        let new =
            Work::at([(3, millis(100)), (3, millis(120)), (2, millis(500)), (3, millis(700))].into_iter());
        assert_eq!(new.idle(2, millis(100), millis(1000)), millis(400 - 50) + millis(500));
        assert_eq!(new.idle(3, millis(100), millis(1000)), millis(900 - 2 * 50));
        assert_eq!(new.idle(4, millis(100), millis(1000)), millis(900 - 3 * 50));
    }

    #[test]
    fn recovery_is_not_measured_while_somebody_keeps_all_waiting() {
        let crash = Fault::of_all("a test", seconds(10), seconds(11));
        let of =
            |process| Fault { process, from: seconds(12), until: seconds(13), recovery: 0, ..crash.clone() };
        let (of_all, of_one) = (of(None), of(Some(3)));
        assert!(is_alone(&crash, &[&crash, &of_one]));
        assert!(!is_alone(&crash, &[&crash, &of_all]));
    }

    #[test]
    fn a_fault_is_no_excuse_for_a_partition_that_has_got_on_since() {
        let fault = |from, until| Fault::of_all("a test", seconds(from), seconds(until));
        let (one, other) = (fault(10, 11), fault(14, 14));
        let light = |got_on, from, until, faults: &[&Fault]| {
            in_the_light(seconds(got_on), seconds(from), seconds(until), faults.iter().copied())
        };
        assert_eq!(light(9, 10, 30, &[&one]), seconds(14), "from 16 on");
        assert_eq!(light(9, 10, 30, &[&one, &other]), seconds(11), "from 19 on");
        assert_eq!(light(12, 13, 30, &[&one]), seconds(17), "it had recovered");
        assert_eq!(light(12, 13, 30, &[&one, &other]), seconds(12), "from 13 to 14, and from 19 on");
        assert_eq!(light(9, 17, 30, &[&one]), seconds(13), "it was over");
        assert_eq!(light(0, 12, 13, &[&one, &other]), 0);
    }
}
