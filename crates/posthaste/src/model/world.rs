//! What the database holds, and what each worker remembers.

use super::{Bounds, durability::Durable};

pub(super) const WORKERS: usize = 3;
pub(super) const PARTITIONS: usize = 2;
pub(super) const MESSAGES: usize = 4;
pub(super) const TRANSACTIONS: usize = 3;

/// Of each message the transaction that writes it, and its partition: a transaction that writes twice, one beside it in
/// the same partition, and one in the other.
pub(super) const PLAN: [(usize, usize); MESSAGES] = [(0, 0), (0, 0), (1, 0), (2, 1)];

pub(super) const fn transaction_of(message: usize) -> usize {
    PLAN[message].0
}

/// Small numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Set(pub(super) u8);

impl Set {
    pub(super) const fn has(self, number: usize) -> bool {
        self.0 >> number & 1 == 1
    }

    pub(super) const fn insert(&mut self, number: usize) {
        self.0 |= 1 << number;
    }

    pub(super) const fn remove(&mut self, number: usize) {
        self.0 &= !(1 << number);
    }

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct World {
    pub(super) transactions: [Transaction; TRANSACTIONS],
    /// In the order in which they were written, from 1; 0 if a message was not.
    pub(super) ids: [u8; MESSAGES],
    /// The rows of `incoming`, committed or not.
    pub(super) rows: Set,
    pub(super) ticks: Ticks,
    pub(super) partitions: [Partition; PARTITIONS],
    /// The messages that a handler has acked; in transactional mode, those whose effects are committed.
    pub(super) handled: Set,
    /// The dead letters.
    pub(super) buried: Set,
    pub(super) workers: [Memory; WORKERS],
    pub(super) durable: Durable,
    pub(super) left: Bounds,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Transaction {
    pub(super) state: State,
    /// The transactions that had committed when this one began.
    pub(super) began_after: Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ahead,
    Open,
    Committed,
    RolledBack,
}

/// The links that are left of a chain: all from `first` to `newest`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub(super) first: u8,
    pub(super) newest: u8,
}

impl Chain {
    const NEW: Self = Self { first: 1, newest: 1 };

    pub(super) const fn append(&mut self) {
        self.newest += 1;
    }

    /// Removes what is older.
    pub(super) fn trim(&mut self, end: u8) {
        self.first = self.first.max(end);
    }

    pub(super) fn has(self, number: u8) -> bool {
        (self.first..=self.newest).contains(&number)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Ticks {
    pub(super) chain: Chain,
    /// Of the newest link: the transactions that it saw.
    pub(super) seen: Set,
    /// Of the newest link: the last id it took.
    pub(super) last_id: u8,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Partition {
    /// By seq, from 1, at the place before: which message that is.
    pub(super) order: [usize; MESSAGES],
    /// The last seq.
    pub(super) head: u8,
    /// The seqs at which segments end.
    pub(super) ends: Set,
    /// No segment up to here is left.
    pub(super) after: u8,
    pub(super) chain: Chain,
    /// Of the newest link, as all that follows.
    pub(super) processed: u8,
    pub(super) attempts: u8,
    pub(super) owner: Owner,
    pub(super) is_expired: bool,
    /// Whether its owner remembers to have called its handler for this epoch.
    pub(super) was_called: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Nobody,
    /// An earlier start of a worker. Nobody waits for its lease in vain: it counts as run out.
    Gone,
    Worker(usize),
}

/// What a worker knows, and loses when it crashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Idle,
    /// A tick has looked: the link it builds on, what it takes, and what its own link will say.
    Looked {
        tick: u8,
        taken: Set,
        seen: Set,
    },
    /// A batch was read.
    Batch(Held),
    /// A handler's transaction is open and has the partition locked.
    Within(Held),
    /// A batch is handled; what to tell the database.
    Decided(Held, Settling),
    /// Vacuum knows for each partition where to stop: which link stays, and the last seq that goes.
    Planned([(u8, u8); PARTITIONS]),
}

/// A batch under a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) partition: usize,
    pub(super) epoch: u8,
    pub(super) processed: u8,
    pub(super) attempts: u8,
    pub(super) messages: u8,
}

/// What of a settlement makes a difference here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settling {
    pub(super) processed: u8,
    pub(super) attempts: u8,
    pub(super) go_on: bool,
    pub(super) burials: Set,
}

impl World {
    pub(super) const fn new(bounds: Bounds) -> Self {
        let partition = Partition {
            order: [0; MESSAGES],
            head: 0,
            ends: Set(0),
            after: 0,
            chain: Chain::NEW,
            processed: 0,
            attempts: 0,
            owner: Owner::Nobody,
            is_expired: false,
            was_called: false,
        };
        let ticks = Ticks { chain: Chain::NEW, seen: Set(0), last_id: 0 };
        let partitions = [partition; PARTITIONS];
        Self {
            transactions: [Transaction { state: State::Ahead, began_after: Set(0) }; TRANSACTIONS],
            ids: [0; MESSAGES],
            rows: Set(0),
            ticks,
            partitions,
            handled: Set(0),
            buried: Set(0),
            workers: [Memory::Idle; WORKERS],
            durable: Durable { ticks, partitions, buried: Set(0) },
            left: bounds,
        }
    }

    pub(super) fn committed(&self) -> Set {
        let mut committed = Set::default();
        for (number, transaction) in self.transactions.iter().enumerate() {
            if transaction.state == State::Committed {
                committed.insert(number);
            }
        }
        committed
    }

    /// The messages that have a seq.
    pub(super) fn sequenced(&self) -> Set {
        let mut sequenced = Set::default();
        for partition in &self.partitions {
            for message in &partition.order[..usize::from(partition.head)] {
                sequenced.insert(*message);
            }
        }
        sequenced
    }

    /// Whether a handler's transaction has the partition locked.
    pub(super) fn is_locked(&self, partition: usize) -> bool {
        let locks = |memory: &Memory| matches!(memory, Memory::Within(held) if held.partition == partition);
        self.workers.iter().any(locks)
    }
}

impl Partition {
    pub(super) fn message(&self, seq: u8) -> usize {
        self.order[usize::from(seq) - 1]
    }
}

impl Memory {
    /// The batch it holds, or believes to hold.
    pub(super) const fn held(&self) -> Option<&Held> {
        match self {
            Self::Batch(held) | Self::Within(held) | Self::Decided(held, _) => Some(held),
            Self::Idle | Self::Looked { .. } | Self::Planned(_) => None,
        }
    }
}
