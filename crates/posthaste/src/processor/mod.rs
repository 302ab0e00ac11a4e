//! The workers that give messages to handlers and settle: one a partition.

pub(crate) mod leased;
mod poison;

pub(crate) use self::poison::Poison;
