//! The results for a terminal.

use std::fmt::Write;

use crate::{
    summary::{Medians, Summary},
    systems::OURS,
};

/// A column: its head, and what it says of a system.
type Column = (&'static str, fn(&Medians) -> Option<String>);

const RESULTS: [Column; 6] = [
    ("messages/s", |it| Some(format!("{:.0}", it.per_s))),
    ("slowest-fastest run", |it| Some(format!("{:.0}-{:.0}", it.per_s_spread.0, it.per_s_spread.1))),
    ("until clean", |it| {
        Some(it.per_s_clean.map_or_else(|| "never".to_owned(), |value| format!("{value:.0}")))
    }),
    ("p50 ms", |it| it.p50_ms.map(|value| format!("{value:.1}"))),
    ("p99 ms", |it| it.p99_ms.map(|value| format!("{value:.1}"))),
    ("max ms", |it| it.max_ms.map(|value| format!("{value:.0}"))),
];

const COSTS: [Column; 7] = [
    ("log bytes", |it| Some(format!("{:.0}", it.wal_bytes))),
    ("statements", |it| it.statements.map(|value| format!("{value:.3}"))),
    ("commits", |it| it.commits.map(|value| format!("{value:.3}"))),
    ("round trips", |it| it.round_trips.map(|value| format!("{value:.3}"))),
    ("server CPU us", |it| it.server_cpu_us.map(|value| format!("{value:.1}"))),
    ("client CPU us", |it| Some(format!("{:.1}", it.client_cpu_us))),
    ("peak MB", |it| Some(format!("{:.1}", it.peak_mb))),
];

pub fn render(summary: &Summary) -> String {
    let mut text = format!("\n{}, {}, {} rounds (medians)\n", summary.db, summary.workload, summary.rounds);
    text += &columns(summary, &RESULTS);
    text += "\na message's share of the costs (peak memory apart)\n";
    text += &columns(summary, &COSTS);
    if !summary.ratios.is_empty() {
        text += &format!("\n{OURS} over the others\n");
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
        let rows = summary.ratios.iter().map(|(name, it)| {
            let cells = [Some(it.per_s), it.p50_ms, it.p99_ms, Some(it.wal_bytes)];
            (name.clone(), cells.map(number).to_vec())
        });
        text += &aligned(&["throughput", "p50", "p99", "log bytes"], rows);
    }
    for bar in &summary.bars {
        let (held, got) = match (bar.held, bar.got) {
            (Some(true), Some(got)) => ("held  ", format!("{got:.2}")),
            (_, Some(got)) => ("MISSED", format!("{got:.2}")),
            (_, None) => ("open  ", "no run that counts".to_owned()),
        };
        text += &format!("{held} {}: {got}, wanted {}\n", bar.what, bar.wanted);
    }
    for (name, failures) in &summary.failures {
        for failure in failures {
            text += &format!("{name}: a run does not count: {failure}\n");
        }
    }
    text
}

fn columns(summary: &Summary, columns: &[Column]) -> String {
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let rows = summary.systems.iter().map(|(name, medians)| {
        let cell = |(_, value): &Column| value(medians).unwrap_or_else(|| "-".to_owned());
        (name.clone(), columns.iter().map(cell).collect())
    });
    aligned(&heads, rows)
}

fn aligned(heads: &[&str], rows: impl Iterator<Item = (String, Vec<String>)>) -> String {
    let mut text = format!("{:<28}", "");
    let widths: Vec<_> = heads.iter().map(|head| head.len().max(9)).collect();
    for (head, width) in heads.iter().zip(&widths) {
        write!(text, " {head:>width$}").ok();
    }
    for (name, cells) in rows {
        write!(text, "\n{name:<28}").ok();
        for (cell, width) in cells.iter().zip(&widths) {
            write!(text, " {cell:>width$}").ok();
        }
    }
    text + "\n"
}
