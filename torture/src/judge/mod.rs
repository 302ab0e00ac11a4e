//! What became of what was committed. The judge is given what the producers, the handlers and the nemesis wrote down and what lies in the
//! tables that are theirs, and knows nothing of how an outbox works.
//!
//! Whether a transaction was committed is for the ledger to say, whatever its producer heard. All is done in one pass over what there is,
//! and look-ups.

mod delivery;
mod liveness;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::{
    content::{Mode, Name, Shape},
    history::{Handling, Produced},
};

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
    /// How long the leases of each process are.
    pub leases: HashMap<u32, u64>,
    /// Calls that did not return in time, by process and number.
    pub abandoned: HashSet<(u32, u64)>,
    pub faults: Vec<Fault>,
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

/// Something bad that was done on purpose.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    pub what: &'static str,
    /// The process that it was done to; none if it concerns all of them.
    pub process: Option<u32>,
    /// Whether messages may come again because of it.
    pub explains: bool,
    pub from: u64,
    /// When it was over: the server answered, the process went on.
    pub until: u64,
    /// Until when, after that, nobody can expect anything: a lease that nobody gives back.
    pub lease: u64,
    /// How long, after that, recovery may take.
    pub recovery: u64,
}

impl Fault {
    /// When all must be well again.
    pub const fn ends(&self) -> u64 {
        self.until + self.lease + self.recovery
    }
}

/// What the judge found. Everything but `messages`, explained duplicates and times is a broken promise.
#[derive(Debug, Clone, Default, Serialize, PartialEq, Eq)]
pub struct Verdict {
    pub messages: u64,
    pub lost: u64,
    pub phantom: u64,
    /// In leased mode: those that a fault explains, too.
    pub duplicates: u64,
    pub unexplained_duplicates: u64,
    pub transactional_duplicates: u64,
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
    /// The first findings of each kind, in words.
    pub findings: Vec<String>,
}

/// How often it was measured, and how long it took at most, beyond the lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Recoveries {
    pub count: u64,
    pub p100_ms: u64,
}

/// How many findings are written down: one fault may have thousands of consequences.
const MOST_FINDINGS: usize = 30;

impl Verdict {
    pub fn is_good(&self) -> bool {
        let broken = self.lost
            + self.phantom
            + self.unexplained_duplicates
            + self.transactional_duplicates
            + self.reordered
            + self.cross_wired
            + self.stale_settles
            + self.stalls;
        broken == 0
    }

    fn find(&mut self, kind: fn(&mut Self) -> &mut u64, what: impl FnOnce() -> String) {
        *kind(self) += 1;
        if self.findings.len() < MOST_FINDINGS {
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
        self.messages += other.messages;
        self.lost += other.lost;
        self.phantom += other.phantom;
        self.duplicates += other.duplicates;
        self.unexplained_duplicates += other.unexplained_duplicates;
        self.transactional_duplicates += other.transactional_duplicates;
        self.reordered += other.reordered;
        self.cross_wired += other.cross_wired;
        self.stale_settles += other.stale_settles;
        self.stalls += other.stalls;
        self.recovery_p100_ms = self.recovery_p100_ms.max(other.recovery_p100_ms);
        self.recoveries += other.recoveries;
        for (what, more) in other.recoveries_from {
            let known = self.recoveries_from.entry(what).or_default();
            *known = Recoveries { count: known.count + more.count, p100_ms: known.p100_ms.max(more.p100_ms) };
        }
        self.findings.extend(other.findings);
        self.findings.truncate(MOST_FINDINGS);
    }
}

/// A message that was to be delivered.
struct Expected {
    mode: Mode,
    partition: Option<u32>,
    key: Option<String>,
    digest: u64,
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
        for produced in &evidence.produced {
            match *produced {
                Produced::Began { producer, transaction, at } => {
                    transactions.entry((producer, transaction)).or_default().began = Some(at);
                }
                Produced::Committed { producer, transaction, at } => {
                    transactions.entry((producer, transaction)).or_default().committed = Some(at);
                }
                Produced::Undone { producer, transaction } => {
                    transactions.entry((producer, transaction)).or_default().is_undone = true;
                }
            }
        }
        let sent = evidence
            .ledger
            .iter()
            .flat_map(|(producer, number)| evidence.shape.transaction(*producer, *number));
        let expected = sent.map(|content| {
            let digest = content.digest();
            (
                content.name,
                Expected { mode: content.mode, partition: content.partition, key: content.key, digest },
            )
        });
        Self { expected: expected.collect(), transactions }
    }

    fn transaction(&self, name: Name) -> Transaction {
        self.transactions.get(&(name.producer, name.transaction)).copied().unwrap_or_default()
    }
}

/// How many messages of committed transactions nobody has handled or rejected yet.
pub fn missing(evidence: &Evidence) -> usize {
    let seen = evidence.handled.iter().chain(&evidence.effects).filter_map(|handling| handling.name);
    let seen: HashSet<Name> = seen.chain(evidence.dead.iter().filter_map(|letter| letter.name)).collect();
    let sent =
        evidence.ledger.iter().flat_map(|(producer, number)| evidence.shape.transaction(*producer, *number));
    sent.filter(|content| !seen.contains(&content.name)).count()
}

pub fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    let books = Books::open(evidence);
    verdict.messages = u64::try_from(books.expected.len()).unwrap_or(u64::MAX);
    settle_the_ledger(evidence, &books, &mut verdict);
    delivery::judge(evidence, &books, &mut verdict);
    liveness::judge(evidence, &books, &mut verdict);
    verdict
}

/// What producers heard must be so: a commit that was answered stays, and what was undone does not come back.
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
}
