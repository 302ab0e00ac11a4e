//! What posthaste is to reach beside the others, and whether it did.

use std::collections::BTreeMap;

use bench_harness::{Database, Workload};
use serde::Serialize;

use crate::{
    summary::Medians,
    systems::{BARE, FIXED, OURS, PREDECESSOR, SCALES, WAKES},
};

/// One number to reach.
#[derive(Debug, Clone, Serialize)]
pub struct Bar {
    /// What is compared, in words.
    pub what: String,
    pub wanted: String,
    /// None if one of those compared has no run that counts.
    pub got: Option<f64>,
    pub held: Option<bool>,
}

type Measure = fn(&Medians) -> Option<f64>;

/// How the ratio of ours to theirs is bounded.
#[derive(Debug, Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

use Bound::{AtLeast, AtMost};

const SPEED: (&str, Measure) = ("throughput", |medians| Some(medians.per_s));
const P50: (&str, Measure) = ("p50", |medians| medians.p50_ms);
const P99: (&str, Measure) = ("p99", |medians| medians.p99_ms);
const LOG: (&str, Measure) = ("log bytes", |medians| Some(medians.wal_bytes));
const MEMORY: (&str, Measure) = ("memory", |medians| Some(medians.peak_mb));
const COST: (&str, Measure) =
    ("processor time", |medians| Some(medians.client_cpu_us + medians.server_cpu_us.unwrap_or_default()));

type Rule = (&'static str, &'static str, (&'static str, Measure), Bound);

fn rules(database: Database, workload: Workload) -> Vec<Rule> {
    use Database::{Mariadb, Postgres, Sqlite};
    let ours = |other, measure, bound| (OURS, other, measure, bound);
    let mut rules = match (database, workload) {
        (Postgres, Workload::Batch) => vec![
            ours(PREDECESSOR, SPEED, AtLeast(4.0)),
            ours(BARE, SPEED, AtLeast(0.45)),
            ours(PREDECESSOR, LOG, AtMost(0.45)),
            ours(BARE, LOG, AtMost(1.35)),
        ],
        (Postgres, Workload::Single) => vec![
            ours(PREDECESSOR, SPEED, AtLeast(1.1)),
            ours(PREDECESSOR, P99, AtMost(0.1)),
            ours(BARE, SPEED, AtLeast(0.80)),
        ],
        (Postgres, Workload::Latency) => {
            vec![ours(PREDECESSOR, P50, AtMost(0.5)), ours(PREDECESSOR, P99, AtMost(0.5))]
        }
        (Postgres, Workload::Backlog) => vec![ours(PREDECESSOR, SPEED, AtLeast(5.0))],
        (Postgres, Workload::Transactional) => vec![ours(PREDECESSOR, SPEED, AtLeast(3.0))],
        (Postgres, Workload::Held) => vec![ours("posthaste-not-held", SPEED, AtLeast(0.9))],
        (Mariadb, Workload::Batch) => {
            vec![ours(PREDECESSOR, SPEED, AtLeast(10.0)), ours(BARE, SPEED, AtLeast(0.35))]
        }
        (Mariadb, Workload::Single) => vec![ours(BARE, SPEED, AtLeast(0.75))],
        (Mariadb, Workload::Backlog) => vec![ours(PREDECESSOR, SPEED, AtLeast(5.0))],
        (Sqlite, Workload::Batch) => {
            vec![ours(PREDECESSOR, SPEED, AtLeast(3.0)), ours(BARE, SPEED, AtLeast(0.40))]
        }
        (Sqlite, Workload::Backlog) => vec![ours(PREDECESSOR, SPEED, AtLeast(4.0))],
        _ => Vec::new(),
    };
    rules.extend(match workload {
        Workload::Batch | Workload::Backlog => {
            FIXED.map(|(fixed, _)| ours(fixed, SPEED, AtLeast(0.9))).to_vec()
        }
        Workload::Latency => {
            FIXED.iter().flat_map(|(fixed, _)| [P50, P99].map(|of| ours(fixed, of, AtMost(1.5)))).collect()
        }
        Workload::Scale => {
            let [(smallest, _), (small, _), .., (largest, _)] = SCALES;
            // What a start costs is spread over few messages in the smallest: so beside the next one too.
            let beside = |other| [COST, MEMORY].map(|measure| (largest, other, measure, AtMost(1.2)));
            [smallest, small].into_iter().flat_map(beside).collect()
        }
        _ => Vec::new(),
    });
    rules
}

/// Latencies that are promised, whatever other systems do.
fn promises(workload: Workload, systems: &BTreeMap<String, Option<Medians>>) -> Vec<Bar> {
    if workload != Workload::Wake {
        return Vec::new();
    }
    let judged = |(name, _, most): (&str, Workload, f64)| {
        let got = systems.get(name)?.as_ref().and_then(|medians| medians.p99_ms);
        let (what, wanted) = (format!("p99 of {name} in ms"), format!("at most {most}"));
        Some(Bar { what, wanted, got, held: got.map(|got| got <= most) })
    };
    WAKES.into_iter().filter_map(judged).collect()
}

/// The bars of this workload for which both sides took part: each with its medians, if any of its runs counts.
pub fn judge(
    database: Database,
    workload: Workload,
    systems: &BTreeMap<String, Option<Medians>>,
) -> Vec<Bar> {
    let judged = |(one, other, (name, measure), bound): Rule| {
        let (ours, theirs) = (systems.get(one)?, systems.get(other)?);
        let measured = |medians: &Option<Medians>| medians.as_ref().and_then(measure);
        let got = measured(ours).zip(measured(theirs)).map(|(ours, theirs)| ours / theirs);
        let wanted = match bound {
            AtLeast(least) => format!("at least {least}"),
            AtMost(most) => format!("at most {most}"),
        };
        let held = got.map(|got| match bound {
            AtLeast(least) => got >= least,
            AtMost(most) => got <= most,
        });
        Some(Bar { what: format!("{name}, {one} over {other}"), wanted, got, held })
    };
    let compared = rules(database, workload).into_iter().filter_map(judged);
    compared.chain(promises(workload, systems)).collect()
}
