//! Named places at which a process may be killed, so that tests can do it exactly there: before and after each statement and commit
//! that changes something. Compiled in with the feature `kill-points` only; without it, not a byte is left of them.
//!
//! What happens at one is up to whoever [listens](listen): this crate ends nothing.

/// Stands where a process may be killed, always or if something is so.
macro_rules! kill_point {
    ($point:ident $(if $condition:expr)?) => {
        #[cfg(feature = "kill-points")]
        if true $(&& $condition)? {
            $crate::kill_points::reached($crate::kill_points::KillPoint::$point);
        }
    };
}

#[cfg(feature = "kill-points")]
pub(crate) use listening::reached;
#[cfg(feature = "kill-points")]
pub use listening::{KillPoint, listen};

#[cfg(feature = "kill-points")]
mod listening {
    use std::sync::OnceLock;

    macro_rules! points {
        ($($(#[doc = $doc:literal])+ $point:ident = $name:literal,)+) => {
            /// A place at which a process may be killed.
            #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
            #[non_exhaustive]
            pub enum KillPoint {
                $($(#[doc = $doc])+ $point,)+
            }

            impl KillPoint {
                /// All of them.
                pub const ALL: &'static [Self] = &[$(Self::$point),+];

                /// What it is called.
                #[must_use]
                pub const fn name(self) -> &'static str {
                    match self {
                        $(Self::$point => $name,)+
                    }
                }
            }
        };
    }

    points! {
        /// Before messages are written, in the caller's transaction.
        EnqueueBefore = "enqueue.before",
        /// The messages are written, and the caller has not committed.
        EnqueueAfter = "enqueue.after",
        /// Before the sequencer looks for what is new.
        TickBefore = "tick.before",
        /// A tick has written, and not committed. PostgreSQL does both in one statement.
        TickBeforeCommit = "tick.before-commit",
        /// A tick that took messages is committed, and nobody was told.
        TickAfter = "tick.after",
        /// Before a processor asks for a partition.
        AcquireBefore = "acquire.before",
        /// A processor has the lease and its messages, and no handler was called.
        AcquireAfter = "acquire.after",
        /// Before the handler is called.
        HandlerBefore = "handler.before",
        /// The handler has returned, and nothing is settled.
        HandlerAfter = "handler.after",
        /// Before a batch is settled outside a transaction.
        SettleBefore = "settle.before",
        /// A batch is settled, and the processor does not know what comes next.
        SettleAfter = "settle.after",
        /// A handler's transaction is open, and has the partition locked.
        TransactionBegun = "transaction.begun",
        /// What a handler wrote is out of its savepoint, and not committed.
        TransactionKept = "transaction.kept",
        /// The cursor is moved within a handler's transaction, and not committed.
        TransactionBeforeCommit = "transaction.before-commit",
        /// A handler's transaction is committed, and the processor does not know.
        TransactionAfterCommit = "transaction.after-commit",
        /// Before a settlement that makes dead letters.
        DeadLetterBefore = "dead-letter.before",
        /// The cursor is moved, and what was rejected is in no table. PostgreSQL does both in one statement.
        DeadLetterWithin = "dead-letter.within",
        /// The dead letters are written outside a handler's transaction, and not committed. PostgreSQL does both in one statement.
        DeadLetterBeforeCommit = "dead-letter.before-commit",
        /// After a settlement that made dead letters.
        DeadLetterAfter = "dead-letter.after",
        /// Vacuum has looked, and removes now.
        VacuumBefore = "vacuum.before",
        /// Vacuum has removed, and not committed. PostgreSQL does both in one statement.
        VacuumBeforeCommit = "vacuum.before-commit",
        /// Vacuum has removed a chunk, and not remembered that.
        VacuumAfter = "vacuum.after",
        /// Before the tables are made.
        MigrateBefore = "migrate.before",
        /// In the middle: between two statements on MySQL, before the commit elsewhere.
        MigrateWithin = "migrate.within",
        /// The tables are made, and nothing was started.
        MigrateAfter = "migrate.after",
    }

    static LISTENER: OnceLock<Box<dyn Fn(KillPoint) + Send + Sync>> = OnceLock::new();

    /// Has the listener called whenever a kill point is reached, on the thread that reaches it; the first one stays.
    pub fn listen(listener: impl Fn(KillPoint) + Send + Sync + 'static) {
        LISTENER.set(Box::new(listener)).ok();
    }

    pub(crate) fn reached(point: KillPoint) {
        if let Some(listener) = LISTENER.get() {
            listener(point);
        }
    }
}
