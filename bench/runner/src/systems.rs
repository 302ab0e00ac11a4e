//! Who takes part, and in which of their ways.

use bench_harness::{Database, Workload};

/// A system in one of its ways, as the results name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrant {
    pub name: String,
    /// The adapter's program.
    pub program: &'static str,
    pub variant: Option<&'static str>,
    /// Another workload than the one that is run, to compare with.
    pub workload: Option<Workload>,
    pub messages: Option<u64>,
}

pub const OURS: &str = "posthaste";
pub const BARE: &str = "bare";
pub const PREDECESSOR: &str = "cf-modkit-db";
/// Our fixed profiles, which the one that adapts itself is measured by.
pub const FIXED: [(&str, &str); 3] = [
    ("posthaste-default", "default"),
    ("posthaste-high-throughput", "high-throughput"),
    ("posthaste-low-latency", "low-latency"),
];
/// The sizes of `scale`, smallest first.
pub const SCALES: [(&str, u64); 4] = [
    ("posthaste-10k", 10_000),
    ("posthaste-100k", 100_000),
    ("posthaste-1M", 1_000_000),
    ("posthaste-3M", 3_000_000),
];
/// The sizes of a quick look at it.
pub const QUICK_SCALES: [(&str, u64); 2] = [("posthaste-1k", 1_000), ("posthaste-4k", 4_000)];

/// The kinds of `wake`, each with its workload and the most milliseconds that its p99 may have: G13 in docs/guarantees.md.
pub const WAKES: [(&str, Workload, f64); 4] = [
    ("posthaste-same-process", Workload::Wake, 50.0),
    ("posthaste-open-transaction", Workload::WakeOpen, 250.0),
    ("posthaste-other-process", Workload::WakeProcess, 250.0),
    ("posthaste-pooler", Workload::WakePooler, 1000.0),
];

fn entrant(name: &str, program: &'static str, variant: Option<&'static str>) -> Entrant {
    Entrant { name: name.to_owned(), program, variant, workload: None, messages: None }
}

fn ours(name: &str, variant: Option<&'static str>) -> Entrant {
    entrant(name, "bench-posthaste", variant)
}

/// Everybody who can be compared on this database with this workload.
pub fn entrants(database: Database, workload: Workload, quick: bool) -> Vec<Entrant> {
    if workload == Workload::Scale {
        let sizes = if quick { QUICK_SCALES.as_slice() } else { SCALES.as_slice() };
        let sized =
            |(name, messages): &(&str, u64)| Entrant { messages: Some(*messages), ..ours(name, None) };
        return sizes.iter().map(sized).collect();
    }
    if workload == Workload::Wake {
        // Nothing is promised of the other profiles, and the bare table wakes no reader.
        let kind = |(name, workload, _)| Entrant { workload: Some(workload), ..ours(name, Some("default")) };
        let has_pooler = database == Database::Postgres;
        let kinds =
            WAKES.into_iter().filter(|(_, workload, _)| has_pooler || *workload != Workload::WakePooler);
        return kinds.map(kind).collect();
    }
    let mut entrants = vec![ours(OURS, None)];
    if matches!(workload, Workload::Batch | Workload::Single | Workload::Held | Workload::Payload) {
        entrants.push(entrant(BARE, "bench-bare", None));
    }
    if quick {
        return entrants;
    }
    if workload == Workload::Batch {
        entrants.push(entrant("bare-payload", "bench-bare", Some("payload")));
    }
    if workload == Workload::Held {
        entrants.push(Entrant { workload: Some(Workload::Batch), ..ours("posthaste-not-held", None) });
    }
    if matches!(workload, Workload::Batch | Workload::Backlog | Workload::Latency) {
        let fixed = FIXED.map(|(name, profile)| ours(name, Some(profile)));
        entrants.extend(fixed);
    }
    entrants.push(entrant(PREDECESSOR, "bench-cf-modkit-db", None));
    entrants.push(entrant("cf-modkit-db-vacuum", "bench-cf-modkit-db", Some("vacuum")));
    if database == Database::Postgres {
        entrants.push(entrant("pgmq", "bench-pgmq", None));
    }
    if database == Database::Postgres && workload != Workload::Transactional {
        entrants.push(entrant("graphile-worker", "bench-graphile-worker", None));
    }
    entrants
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_look_is_at_posthaste_and_the_bare_table_alone() {
        let names = |workload| entrants(Database::Postgres, workload, true).into_iter().map(|one| one.name);
        assert_eq!(names(Workload::Batch).collect::<Vec<_>>(), [OURS, BARE]);
        assert!(names(Workload::Scale).all(|name| name.starts_with(OURS)));
    }
}
