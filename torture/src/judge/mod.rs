//! What became of what was committed. The judge is given what the producers, the handlers and the nemesis wrote down and what lies in the
//! tables that are theirs, and knows nothing of how an outbox works.
//!
//! Whether a transaction was committed is for the ledger to say, whatever its producer heard. All is done in one pass over what there is,
//! and look-ups.

mod delivery;
mod excuses;
mod liveness;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use self::excuses::Excuses;
use crate::{
    clock::seconds,
    content::{Mode, Name, Shape},
    history::{Fate, Handling, Produced},
};

/// A partition of a mode's queue.
pub type Where = (Mode, u32);

/// All that is known of an episode.
#[derive(Debug, Clone)]
pub struct Evidence {
    pub shape: Shape,
    /// The transactions that committed, by producer and number.
    pub ledger: Vec<(u32, u64)>,
    pub produced: Vec<Produced>,
    /// What leased handlers were given.
    pub handled: Vec<Handling>,
    /// What transactional handlers wrote and committed, in that order.
    pub effects: Vec<Handling>,
    pub dead: Vec<DeadLetter>,
    /// What transactional handlers rejected: in which process's which call.
    pub rejected: HashSet<(u32, u64, Name)>,
    /// How long the leases of each process are.
    pub leases: HashMap<u32, u64>,
    /// Calls that outlived their lease, by process and number.
    pub abandoned: HashSet<(u32, u64)>,
    pub faults: Vec<Fault>,
    pub complaints: Vec<Complaint>,
    /// How often processes noticed that a batch was not settled in the time that its handler had.
    pub slow_batches: u64,
    /// How often they noticed that they were not given the processor for long, and nobody had paused them.
    pub starved: u64,
}

#[derive(Debug, Clone)]
pub struct DeadLetter {
    pub mode: Mode,
    pub partition: u32,
    pub seq: i64,
    pub id: i64,
    pub name: Option<Name>,
    pub digest: u64,
    /// The call that rejected it, by process and number, as its reason says.
    pub call: Option<(u32, u64)>,
}

/// Something that a process could not do, which has no excuse unless something was done to everybody meanwhile.
#[derive(Debug, Clone)]
pub struct Complaint {
    pub from: u64,
    pub until: u64,
    pub what: String,
}

/// Something bad that was done on purpose.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    pub what: &'static str,
    /// The process that it was done to; none if it concerns all of them.
    pub process: Option<u32>,
    /// The partition that it concerns; none if all of them.
    pub place: Option<Where>,
    /// Whether messages may come again because of it.
    pub explains: bool,
    /// Whether it is nobody's deed, and only the process itself noticed it.
    pub is_own: bool,
    /// Whether the server may have forgotten what it had answered a moment before.
    pub forgets: bool,
    /// When exactly it did what it did, if that is known; else it is all of the time.
    pub moments: Vec<u64>,
    pub from: u64,
    /// When it was over: the server answered, the process went on.
    pub until: u64,
    /// Since when others could go on in its place, if not only since it was over.
    pub others_since: Option<u64>,
    /// Until when, after that, nobody can expect anything: a lease that nobody gives back.
    pub lease: u64,
    /// How long, after that, recovery may take.
    pub recovery: u64,
}

impl Fault {
    /// One that concerns everybody, from which all must have recovered 5 s after it.
    pub const fn of_all(what: &'static str, from: u64, until: u64) -> Self {
        Self {
            what,
            process: None,
            place: None,
            explains: true,
            is_own: false,
            forgets: false,
            moments: Vec::new(),
            from,
            until,
            others_since: None,
            lease: 0,
            recovery: seconds(5),
        }
    }

    /// The end of a process, or its absence, from which others must have recovered 2 s after its lease.
    pub fn of_one(what: &'static str, process: u32, lease: u64, from: u64, until: u64) -> Self {
        Self { process: Some(process), lease, recovery: seconds(2), ..Self::of_all(what, from, until) }
    }

    /// From when on there was somebody who could go on.
    pub fn lifted(&self) -> u64 {
        self.others_since.unwrap_or(self.until)
    }

    /// When all must be well again.
    pub fn ends(&self) -> u64 {
        self.lifted() + self.lease + self.recovery
    }
}

/// What the judge found. Everything but `messages`, explained duplicates, their excuses and times is a broken promise.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
pub struct Verdict {
    pub messages: u64,
    pub lost: u64,
    pub phantom: u64,
    /// In either mode, those that a fault explains, too.
    pub duplicates: u64,
    /// Of these: nothing explains one in transactional mode.
    pub unexplained_duplicates: u64,
    /// Of these.
    pub transactional_duplicates: u64,
    /// Duplicates that nothing explains but what their process noticed of itself: many of them, and unexplained ones mean little.
    pub self_excused: u64,
    /// Skipped, gone back, or given another place than its order of commit.
    pub reordered: u64,
    pub cross_wired: u64,
    pub stale_settles: u64,
    pub stalls: u64,
    pub recovery_p100_ms: u64,
    /// How many recoveries could be measured: of faults that no other one overlapped.
    pub recoveries: u64,
    /// The same by what there was to recover from.
    pub recoveries_from: BTreeMap<&'static str, Recoveries>,
    /// Partitions that waited for their turn behind others, and longer than a recovery may take: not among the recoveries.
    pub queued: u64,
    /// What processes noticed of themselves.
    pub slow_batches: u64,
    pub starved: u64,
    /// The first findings of each kind, in words.
    pub findings: Vec<String>,
}

/// How often it was measured, and how long it took at most, beyond the lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Recoveries {
    pub count: u64,
    pub p100_ms: u64,
}

/// How many findings of a kind are written down: one fault may have thousands of consequences.
const MOST_FINDINGS: u64 = 5;

impl Verdict {
    pub fn is_good(&self) -> bool {
        let broken = self.lost
            + self.phantom
            + self.unexplained_duplicates
            + self.reordered
            + self.cross_wired
            + self.stale_settles
            + self.stalls;
        broken == 0
    }

    fn find(&mut self, kind: fn(&mut Self) -> &mut u64, what: impl FnOnce() -> String) {
        let count = kind(self);
        *count += 1;
        if *count <= MOST_FINDINGS {
            let what = what();
            self.findings.push(what);
        }
    }

    fn recovered(&mut self, what: &'static str, ms: u64) {
        self.recoveries += 1;
        self.recovery_p100_ms = self.recovery_p100_ms.max(ms);
        let of_it = self.recoveries_from.entry(what).or_default();
        *of_it = Recoveries { count: of_it.count + 1, p100_ms: of_it.p100_ms.max(ms) };
    }

    /// Of two episodes.
    pub fn add(&mut self, other: Self) {
        let Self {
            messages,
            lost,
            phantom,
            duplicates,
            unexplained_duplicates,
            transactional_duplicates,
            self_excused,
            reordered,
            cross_wired,
            stale_settles,
            stalls,
            recovery_p100_ms,
            recoveries,
            recoveries_from,
            queued,
            slow_batches,
            starved,
            findings,
        } = other;
        self.messages += messages;
        self.lost += lost;
        self.phantom += phantom;
        self.duplicates += duplicates;
        self.unexplained_duplicates += unexplained_duplicates;
        self.transactional_duplicates += transactional_duplicates;
        self.self_excused += self_excused;
        self.reordered += reordered;
        self.cross_wired += cross_wired;
        self.stale_settles += stale_settles;
        self.stalls += stalls;
        self.recovery_p100_ms = self.recovery_p100_ms.max(recovery_p100_ms);
        self.recoveries += recoveries;
        for (what, more) in recoveries_from {
            let known = self.recoveries_from.entry(what).or_default();
            *known = Recoveries { count: known.count + more.count, p100_ms: known.p100_ms.max(more.p100_ms) };
        }
        self.queued += queued;
        self.slow_batches += slow_batches;
        self.starved += starved;
        self.findings.extend(findings);
    }
}

/// A message that was to be delivered.
struct Expected {
    mode: Mode,
    partition: Option<u32>,
    key: Option<String>,
    digest: u64,
    /// As its producer was told, if it lived to say so.
    id: Option<i64>,
}

/// What a producer knows of a transaction.
#[derive(Default, Clone, Copy)]
struct Transaction {
    began: Option<u64>,
    committed: Option<u64>,
    is_undone: bool,
}

/// What follows from the ledger.
struct Books {
    expected: HashMap<Name, Expected>,
    transactions: HashMap<(u32, u64), Transaction>,
}

impl Books {
    fn open(evidence: &Evidence) -> Self {
        let mut transactions: HashMap<_, Transaction> = HashMap::new();
        let mut ids: HashMap<(u32, u64), &[i64]> = HashMap::new();
        for produced in &evidence.produced {
            match produced {
                Produced::Began { producer, transaction, at } => {
                    transactions.entry((*producer, *transaction)).or_default().began = Some(*at);
                }
                Produced::Committed { producer, transaction, at, ids: own } => {
                    transactions.entry((*producer, *transaction)).or_default().committed = Some(*at);
                    ids.insert((*producer, *transaction), own);
                }
                Produced::Undone { producer, transaction } => {
                    transactions.entry((*producer, *transaction)).or_default().is_undone = true;
                }
            }
        }
        let sent = evidence
            .ledger
            .iter()
            .flat_map(|(producer, number)| evidence.shape.transaction(*producer, *number));
        let expected = sent.map(|content| {
            let (name, digest) = (content.name, content.digest());
            let place = usize::try_from(name.place).unwrap_or(usize::MAX);
            let id = ids.get(&(name.producer, name.transaction)).and_then(|ids| ids.get(place)).copied();
            let expected =
                Expected { mode: content.mode, partition: content.partition, key: content.key, digest, id };
            (name, expected)
        });
        Self { expected: expected.collect(), transactions }
    }

    fn transaction(&self, name: Name) -> Transaction {
        self.transactions.get(&(name.producer, name.transaction)).copied().unwrap_or_default()
    }
}

/// Who had each message last: the call that began last. One that began before it may have been overtaken without knowing, and go on with
/// what it has.
fn last_of_each(handled: &[Handling]) -> HashMap<Name, &Handling> {
    let mut began: HashMap<(u32, u64), u64> = HashMap::new();
    for Handling { process, call, at, .. } in handled {
        let first = began.entry((*process, *call)).or_insert(*at);
        *first = (*first).min(*at);
    }
    let order = |handling: &Handling| (began.get(&(handling.process, handling.call)), handling.at);
    let mut last: HashMap<Name, &Handling> = HashMap::new();
    for handling in handled {
        let Some(name) = handling.name else { continue };
        let known = last.entry(name).or_insert(handling);
        if order(handling) >= order(known) {
            *known = handling;
        }
    }
    last
}

/// The messages that nobody has to be given any more.
///
/// In leased mode: those that the last handler was done with, and those that it rejected, if they are dead letters. One that failed must
/// come again, and so must one whose rejection nobody knows of; unless another was done with it, and the last one may have lost the
/// partition to it without knowing. In transactional mode: those that have an effect or are dead letters.
fn ended(evidence: &Evidence, excuses: &Excuses<'_>) -> HashSet<Name> {
    let done = evidence.handled.iter().filter(|handling| handling.fate == Fate::Done);
    let done: HashSet<Name> = done.filter_map(|handling| handling.name).collect();
    let letters = |mode| evidence.dead.iter().filter(move |letter| letter.mode == mode);
    let dead: HashSet<Name> = letters(Mode::Leased).filter_map(|letter| letter.name).collect();
    let leased = last_of_each(&evidence.handled).into_iter().filter(|(name, last)| match last.fate {
        Fate::Done => true,
        Fate::Rejected => dead.contains(name),
        Fate::Failed => done.contains(name) && excuses.may_be_overtaken(last),
    });
    let effects = evidence.effects.iter().filter_map(|effect| effect.name);
    let rejected = letters(Mode::Transactional).filter_map(|letter| letter.name);
    leased.map(|(name, _)| name).chain(effects).chain(rejected).collect()
}

/// How many messages of committed transactions are still to be delivered.
pub fn missing(evidence: &Evidence) -> usize {
    let ended = ended(evidence, &Excuses::of(evidence));
    let sent =
        evidence.ledger.iter().flat_map(|(producer, number)| evidence.shape.transaction(*producer, *number));
    sent.filter(|content| !ended.contains(&content.name)).count()
}

/// The modes of an episode in which no handler did anything: whatever the verdict, it says nothing of them.
pub fn silent_modes(evidence: &Evidence) -> Vec<Mode> {
    let is_silent = |mode: &Mode| match mode {
        Mode::Leased => evidence.handled.is_empty(),
        Mode::Transactional => evidence.effects.is_empty(),
    };
    evidence.shape.queues.iter().map(|(mode, _)| *mode).filter(is_silent).collect()
}

/// What processes could not do though nothing was done to everybody, or had been a moment before.
pub fn without_excuse(evidence: &Evidence) -> impl Iterator<Item = &str> {
    let excuses = |complaint: &Complaint, fault: &Fault| {
        fault.process.is_none() && fault.from <= complaint.until && fault.ends() >= complaint.from
    };
    let is_excused =
        move |complaint: &&Complaint| evidence.faults.iter().any(|fault| excuses(complaint, fault));
    evidence
        .complaints
        .iter()
        .filter(move |complaint| !is_excused(complaint))
        .map(|complaint| complaint.what.as_str())
}

pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let books = Books::open(evidence);
    verdict.messages = u64::try_from(books.expected.len()).unwrap_or(u64::MAX);
    (verdict.slow_batches, verdict.starved) = (evidence.slow_batches, evidence.starved);
    settle_the_ledger(evidence, &books, &mut verdict);
    delivery::judge(evidence, &books, &mut verdict);
    verdict.duplicates += verdict.transactional_duplicates;
    verdict.unexplained_duplicates += verdict.transactional_duplicates;
    liveness::judge(evidence, &books, &mut verdict);
    verdict
}

/// What producers heard must be so: a commit that was answered stays, what was undone does not come back, and every message got an id.
fn settle_the_ledger(evidence: &Evidence, books: &Books, verdict: &mut Verdict) {
    let ledger: HashSet<_> = evidence.ledger.iter().copied().collect();
    for (key, transaction) in &books.transactions {
        let (producer, number) = *key;
        if transaction.committed.is_some() && !ledger.contains(key) {
            verdict.find(
                |v| &mut v.lost,
                || format!("transaction {number} of producer {producer} was committed and is gone"),
            );
        }
        if transaction.is_undone && ledger.contains(key) {
            verdict.find(
                |v| &mut v.phantom,
                || format!("transaction {number} of producer {producer} was undone and is there"),
            );
        }
    }
    for produced in &evidence.produced {
        let Produced::Committed { producer, transaction, ids, .. } = produced else { continue };
        let sent = evidence.shape.transaction(*producer, *transaction).len();
        // Another outbox returns none.
        if !evidence.shape.is_plain && ids.len() != sent {
            verdict.find(
                |v| &mut v.cross_wired,
                || {
                    format!(
                        "transaction {transaction} of producer {producer}: {sent} messages got {} ids",
                        ids.len()
                    )
                },
            );
        }
    }
}
