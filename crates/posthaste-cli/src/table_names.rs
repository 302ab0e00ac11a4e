//! The outbox's tables, as they are called behind their prefix. A test compares them with those that `posthaste migrate` makes.

/// On every database.
pub const TABLES: [&str; 8] =
    ["meta", "queue", "partition", "incoming", "tick", "outgoing", "cursor", "dead_letter"];

/// The one that there is on MySQL alone.
pub const PENDING: &str = "pending";
