//! What a run comes to.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::judge::{Recoveries, Verdict};

/// What was done.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    /// Of workers, those at kill points among them.
    pub kills: u64,
    /// Of any process, at kill points.
    pub point_kills: u64,
    pub producer_kills: u64,
    pub crashes: u64,
    /// Times that a standby took over.
    pub promotions: u64,
    pub cuts: u64,
    pub pauses: u64,
    pub clock_jumps: u64,
    pub full_disks: u64,
    pub sessions: u64,
    pub weathers: u64,
    pub stops: u64,
    /// Times that several processes started at once.
    pub starters: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        let Self {
            kills,
            point_kills,
            producer_kills,
            crashes,
            promotions,
            cuts,
            pauses,
            clock_jumps,
            full_disks,
            sessions,
            weathers,
            stops,
            starters,
        } = other;
        self.kills += kills;
        self.point_kills += point_kills;
        self.producer_kills += producer_kills;
        self.crashes += crashes;
        self.promotions += promotions;
        self.cuts += cuts;
        self.pauses += pauses;
        self.clock_jumps += clock_jumps;
        self.full_disks += full_disks;
        self.sessions += sessions;
        self.weathers += weathers;
        self.stops += stops;
        self.starters += starters;
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    pub ok: bool,
    /// What was tortured.
    pub system: String,
    pub db: String,
    pub seed: u64,
    pub seconds: u64,
    pub episodes: u32,
    #[serde(flatten)]
    pub counts: Counts,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub kill_points: BTreeSet<String>,
    pub oddities: Vec<String>,
    /// Where all of it was kept, if anything was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<String>,
}

impl Report {
    pub fn is_good(&self) -> bool {
        self.verdict.is_good() && self.oddities.is_empty()
    }

    /// For people.
    pub fn print(&self) {
        let Self { counts, verdict, .. } = self;
        println!(
            "{} messages in {} episodes of {} s, seed {}",
            verdict.messages, self.episodes, self.seconds, self.seed
        );
        println!(
            "done: {} kills of workers and {} of producers ({} at {} kill points), {} crashes, {} promotions, {} sessions ended, {} cuts at COMMIT, \
             {} times bad weather, {} pauses, {} clock jumps, {} times a full disk, {} stops, {} times 8 starters",
            counts.kills,
            counts.producer_kills,
            counts.point_kills,
            self.kill_points.len(),
            counts.crashes,
            counts.promotions,
            counts.sessions,
            counts.cuts,
            counts.weathers,
            counts.pauses,
            counts.clock_jumps,
            counts.full_disks,
            counts.stops,
            counts.starters,
        );
        println!(
            "found: {} lost, {} phantom, {} duplicates ({} in transactional mode, {} unexplained), {} reordered, \
             {} cross-wired, {} stale settles, {} stalls",
            verdict.lost,
            verdict.phantom,
            verdict.duplicates,
            verdict.transactional_duplicates,
            verdict.unexplained_duplicates,
            verdict.reordered,
            verdict.cross_wired,
            verdict.stale_settles,
            verdict.stalls,
        );
        println!(
            "noticed by the processes: {} batches that were not settled in the time of their handler, {} times that one was not given the processor; \
             nothing else explains {} of the duplicates",
            verdict.slow_batches, verdict.starved, verdict.self_excused
        );
        println!(
            "slowest recovery: {} ms of {} that could be measured; {} partitions waited longer, behind others",
            verdict.recovery_p100_ms, verdict.recoveries, verdict.queued
        );
        for (what, Recoveries { count, p100_ms }) in &verdict.recoveries_from {
            println!("  {p100_ms} ms after {what} ({count} measured)");
        }
        for finding in verdict.findings.iter().chain(&self.oddities) {
            println!("! {finding}");
        }
        if let Some(kept) = &self.kept {
            println!("kept in {kept}: the plans, the histories and the database");
        }
        println!(
            "{}",
            match (self.ok, verdict.is_good()) {
                (true, _) => "all promises were kept",
                (false, true) => "no broken promise was found, but it did not go as planned",
                (false, false) => "PROMISES WERE BROKEN",
            }
        );
    }
}
