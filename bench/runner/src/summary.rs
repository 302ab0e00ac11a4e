//! Medians, spread and ratios of the runs that count.

use std::collections::BTreeMap;

use bench_harness::Report;
use serde::Serialize;

use crate::{
    bars::{self, Bar},
    circumstances::Circumstances,
    rounds::{Course, Runs, database_name},
    systems::{BARE, OURS},
};

/// An entrant's medians. Costs are a message's share.
#[derive(Debug, Clone, Serialize)]
pub struct Medians {
    pub per_s: f64,
    /// The slowest and the fastest run.
    pub per_s_spread: (f64, f64),
    /// Until what was delivered is gone from the tables.
    pub per_s_clean: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    /// The longest of all runs.
    pub max_ms: Option<f64>,
    pub wal_bytes: f64,
    pub statements: Option<f64>,
    pub commits: Option<f64>,
    pub round_trips: Option<f64>,
    pub server_cpu_us: Option<f64>,
    pub client_cpu_us: f64,
    pub peak_mb: f64,
    /// How long after the last delivery nothing was left in the tables.
    pub clean_after_s: Option<f64>,
    pub messages: u64,
    pub runs: usize,
    /// Of all runs together.
    pub producer_errors: u64,
}

/// Ours over theirs.
#[derive(Debug, Clone, Serialize)]
pub struct Ratios {
    pub per_s: f64,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub wal_bytes: f64,
}

#[derive(Debug, Serialize)]
pub struct Summary {
    pub db: &'static str,
    pub workload: String,
    pub rounds: u32,
    pub circumstances: Circumstances,
    pub systems: BTreeMap<String, Medians>,
    pub ratios: BTreeMap<String, Ratios>,
    /// Runs that do not count, by system: why.
    pub failures: BTreeMap<String, Vec<String>>,
    pub bars: Vec<Bar>,
    /// Every run of posthaste and of the bare table counts.
    pub ok: bool,
}

impl Summary {
    pub fn of(course: &Course, rounds: u32, circumstances: Circumstances, all: &[Runs]) -> Self {
        let entrants: BTreeMap<_, _> =
            all.iter().map(|runs| (runs.entrant.name.clone(), Medians::of(runs))).collect();
        let bars = bars::judge(course.database, course.workload, &entrants);
        let systems: BTreeMap<_, _> =
            entrants.into_iter().filter_map(|(name, medians)| Some((name, medians?))).collect();
        let ours = systems.get(OURS);
        let others = systems.iter().filter(|(name, _)| *name != OURS);
        let ratios =
            others.filter_map(|(name, theirs)| Some((name.clone(), Ratios::of(ours?, theirs)))).collect();
        let failed = all.iter().filter(|runs| !runs.failures.is_empty());
        let failures: BTreeMap<_, _> =
            failed.map(|runs| (runs.entrant.name.clone(), runs.failures.clone())).collect();
        let vouched_for = |name: &String| name.starts_with(OURS) || name.starts_with(BARE);
        Self {
            db: database_name(course.database),
            workload: course.workload.name(),
            rounds,
            circumstances,
            bars,
            ok: !failures.keys().any(vouched_for),
            systems,
            ratios,
            failures,
        }
    }
}

impl Medians {
    fn of(runs: &Runs) -> Option<Self> {
        let reports = &runs.reports;
        let all = |value: fn(&Report) -> Option<f64>| -> Vec<f64> {
            let mut values: Vec<_> = reports.iter().filter_map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let mid = |value: fn(&Report) -> Option<f64>| median(&all(value));
        let speeds = all(|report| Some(report.per_s));
        Some(Self {
            per_s: median(&speeds)?,
            per_s_spread: (*speeds.first()?, *speeds.last()?),
            per_s_clean: mid(|report| report.per_s_clean),
            p50_ms: mid(|report| report.p50_ms),
            p99_ms: mid(|report| report.p99_ms),
            max_ms: all(|report| report.max_ms).last().copied(),
            wal_bytes: mid(|report| Some(report.wal_bytes))?,
            statements: mid(|report| report.statements),
            commits: mid(|report| report.commits),
            round_trips: runs.round_trips,
            server_cpu_us: mid(|report| report.server_cpu_us),
            client_cpu_us: mid(|report| Some(report.client_cpu_us))?,
            peak_mb: mid(|report| Some(report.peak_mb))?,
            clean_after_s: mid(|report| report.clean_after_s),
            messages: reports.first()?.messages,
            runs: reports.len(),
            producer_errors: reports.iter().map(|report| report.producer_errors).sum(),
        })
    }
}

impl Ratios {
    fn of(ours: &Medians, theirs: &Medians) -> Self {
        let ratio =
            |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs.filter(|value| *value > 0.0)?);
        Self {
            per_s: ours.per_s / theirs.per_s,
            p50_ms: ratio(ours.p50_ms, theirs.p50_ms),
            p99_ms: ratio(ours.p99_ms, theirs.p99_ms),
            wal_bytes: ours.wal_bytes / theirs.wal_bytes,
        }
    }
}

/// Of values that are sorted.
fn median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[1.0, 2.0, 9.0]), Some(2.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), Some(3.0));
    }
}
