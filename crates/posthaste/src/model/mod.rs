//! The two chains as a model, in which everything that can happen does, in every order: the chain of ticks, which gives
//! messages their seqs, and the chain of a partition's cursor, with its lease. What was promised is asked at every step
//! (`promises.rs`), and every path must end with nothing left to do.
//!
//! What the product decides in Rust is asked of the product: how far the cursor moves (`settlement::decide`), what a
//! handler's answer means (`Batch`), who is given up (`settlement::exhausted`), how a tick is divided (`segments`), what
//! vacuum removes (`vacuum::plan`). What its SQL decides stands in `rules.rs`, a function a statement; what it then writes,
//! in the file of its subject. A [`Flaw`] breaks one rule: that the model finds what comes of it is what makes its silence
//! worth something.
//!
//! There are three workers, each of which ticks, processes and vacuums, one thing at a time; four messages of three
//! transactions; two partitions. Bounded is what would otherwise go on for ever ([`Bounds`]): how often something fails,
//! how often a handler does not just ack, how often vacuum passes; one transaction rolls back at most. Left out is what
//! changes no chain: pauses, waking, how batches grow and shrink (they have two messages, or one after a crash). Merged is
//! what nobody else can see: a transaction begins with its first message, a handler is called and its answer judged in one
//! step, vacuum plans when it looks. A duplicate in leased mode is explained by any fault before it, in whatever partition.

mod alike;
mod durability;
mod explorer;
mod processing;
mod promises;
mod rules;
mod sequencing;
mod steps;
mod tests;
mod vacuuming;
mod world;

/// What is explored.
#[derive(Debug, Clone, Copy)]
struct Course {
    mode: Mode,
    flaw: Option<Flaw>,
    bounds: Bounds,
    likeness: Likeness,
}

/// When two states are taken for one (`alike.rs`), and a step for one that need not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likeness {
    /// If the sound rules cannot tell them apart.
    Coarse,
    /// If no rule can, with a flaw or without.
    Exact,
}

impl Course {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Leased,
    Transactional,
}

/// How often something happens that could happen for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    /// Crashes, leases that run out although their holder lives, questions and answers that get lost: together.
    faults: u8,
    /// Calls after which a handler, or its slice of time, wants something else than to go on.
    oddities: u8,
    /// Passes of vacuum.
    passes: u8,
    /// Crashes of the server (`durability.rs`), explored with two of the transactions.
    server_crashes: u8,
    /// Only so many of the transactions take place.
    transactions: usize,
}

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A tick takes what is behind the last id it knows, and passes transactions that are still open.
    TickById,
    /// A tick appends to the number it remembers, and relies on the key alone.
    TickFromMemory,
    /// A tick that lost the race for its link writes its segments all the same.
    SegmentsWithoutLink,
    /// A lease is taken from whoever holds it, run out or not.
    AcquireBeforeExpiry,
    /// A lease that is taken over keeps its epoch.
    TakeoverKeepsEpoch,
    /// A settlement asks nobody whose the lease is.
    SettleWithoutEpoch,
    /// A settlement appends to the number it remembers, and relies on the key alone.
    SettleFromMemory,
    /// The cursor moves, and then the handler is called.
    SettleBeforeHandling,
    /// The cursor moves past the message that is to come again: an index one too high.
    CursorPassesRetried,
    /// What a handler writes is committed before the cursor moves.
    EffectsApart,
    /// Vacuum removes whatever has a seq.
    VacuumUnbounded,
    /// A settlement asks for the epoch, and not whose it is.
    SettleByEpochAlone,
    /// A tick may be lost in a crash of the server.
    TickNotDurable,
    /// Vacuum removes what it saw to be settled, and does not look again.
    VacuumFromMemory,
    /// Vacuum removes the newest link, too.
    VacuumTakesNewestLink,
    /// Vacuum removes a partition's newest segment, too.
    VacuumTakesNewestSegment,
    /// Vacuum removes the newest tick, too.
    VacuumTakesNewestTick,
}
