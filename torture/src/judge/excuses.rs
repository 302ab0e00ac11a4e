//! Why a message may be handled again in leased mode.

use std::collections::HashMap;

use super::{Evidence, Fault, Where};
use crate::{
    clock::seconds,
    content::Mode,
    history::{Fate, Handling},
};

/// How long after it was answered a leased settlement may still be lost in a crash of the server, which writes it to the disk within this
/// time.
const UNFLUSHED: u64 = seconds(1);

/// A process, or all; and a partition, or all.
type Concerned = (Option<u32>, Option<Where>);

/// What is known of an episode that excuses a second time.
pub(super) struct Excuses<'e> {
    evidence: &'e Evidence,
    /// The faults of each process, or of a partition of it, and those of all, by the time at which they began; each with the latest end of
    /// those up to it.
    faults: HashMap<Concerned, Vec<(u64, u64)>>,
}

impl<'e> Excuses<'e> {
    pub(super) fn of(evidence: &'e Evidence) -> Self {
        Self::by(evidence, evidence.faults.iter())
    }

    /// Without those that only the processes themselves know of.
    pub(super) fn of_deeds(evidence: &'e Evidence) -> Self {
        Self::by(evidence, evidence.faults.iter().filter(|fault| !fault.is_own))
    }

    fn by<'f>(evidence: &'e Evidence, known: impl Iterator<Item = &'f Fault>) -> Self {
        let mut faults: HashMap<_, Vec<_>> = HashMap::new();
        for fault in known.filter(|fault| fault.explains) {
            let forgotten = if fault.forgets { UNFLUSHED } else { 0 };
            let times = faults.entry((fault.process, fault.place)).or_default();
            if fault.moments.is_empty() {
                times.push((fault.from.saturating_sub(forgotten), fault.until));
            }
            times.extend(fault.moments.iter().map(|moment| (*moment, *moment)));
        }
        for faults in faults.values_mut() {
            faults.sort_unstable();
            let mut latest = 0;
            for (_, until) in faults {
                latest = latest.max(*until);
                *until = latest;
            }
        }
        Self { evidence, faults }
    }

    /// Whether there is a reason for a message to be handled again: its handler failed, or outlived its lease; or a fault, of the process
    /// or of all, did it in one of two ways.
    ///
    /// - It kept the settlement away from the database. The message was handled under a lease, so all of it, from the acquire to the
    ///   settlement, is within a lease before and a lease after: a kill, a pause, a cut connection or a full disk that does not touch this
    ///   time had nothing to do with it. A crash of the server also takes back what was settled a moment before it. A batch that outlived
    ///   its lease, and a process that was not given the processor, say so themselves ([`Line::Slow`], [`Line::Starved`]). If the process
    ///   has gone on behind the message (`has_gone_on`), the database knows of it, and what comes upon the process then is no excuse.
    /// - Whoever handles it now had the partition before, and lost it without knowing: it was paused or starved; the database's clock
    ///   went ahead of its own; its acquire went down with the server. The fault began before others handled the message, and it goes on
    ///   with what it has for as long as its lease lasts by its own clock, counted from before the fault was over.
    ///
    /// [`Line::Slow`]: crate::history::Line::Slow
    /// [`Line::Starved`]: crate::history::Line::Starved
    pub(super) fn explain(&self, before: &Handling, again: &Handling, has_gone_on: bool) -> bool {
        let lease = self.lease(before);
        let (acquired, settled) = (before.at.saturating_sub(lease), (before.at + lease).min(again.at));
        let own = (!has_gone_on).then_some(before.process);
        let place = (Mode::Leased, before.partition);
        before.fate == Fate::Failed
            || self.evidence.abandoned.contains(&(before.process, before.call))
            || self.is_disturbed(own, place, settled, acquired)
            || self.is_disturbed(
                Some(again.process),
                place,
                before.at,
                again.at.saturating_sub(self.lease(again)),
            )
    }

    /// Whether whoever was given it may have lost the partition before, without knowing: then it settles nothing.
    pub(super) fn may_be_overtaken(&self, handling: &Handling) -> bool {
        let Handling { at, process, partition, .. } = *handling;
        let acquired = at.saturating_sub(self.lease(handling));
        self.is_disturbed(Some(process), (Mode::Leased, partition), at, acquired)
    }

    fn lease(&self, handling: &Handling) -> u64 {
        self.evidence.leases.get(&handling.process).copied().unwrap_or_default()
    }

    /// Whether a fault of all, or of the process if one is named, had begun by then and was not over before that.
    fn is_disturbed(&self, process: Option<u32>, place: Where, begun_by: u64, over_after: u64) -> bool {
        [(process, None), (process, Some(place)), (None, None)].iter().any(|concerned| {
            let faults = self.faults.get(concerned).map_or(&[][..], Vec::as_slice);
            let begun = &faults[..faults.partition_point(|(from, _)| *from <= begun_by)];
            begun.last().is_some_and(|(_, latest)| *latest >= over_after)
        })
    }
}
