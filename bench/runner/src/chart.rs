//! The results as a picture: throughput as bars, or latency where that is the point.

use std::fmt::Write;

use crate::summary::{Medians, Summary};

const WIDTH: f64 = 900.0;
const LABELS: f64 = 230.0;
const VALUES: f64 = 110.0;
const ROW: f64 = 34.0;
const HEAD: f64 = 70.0;

/// What the bars are of: latencies where they are the point, else throughput.
fn measure(summary: &Summary) -> (&'static str, fn(&Medians) -> Option<f64>) {
    match summary.workload.as_str() {
        "latency" | "wake" => {
            ("p99 from commit to handler, ms (shorter is better)", |medians| medians.p99_ms)
        }
        _ => ("messages a second, end to end (longer is better)", |medians| Some(medians.per_s)),
    }
}

pub fn svg(summary: &Summary) -> String {
    let (unit, value) = measure(summary);
    let rows: Vec<_> =
        summary.systems.iter().filter_map(|(name, medians)| Some((name.as_str(), value(medians)?))).collect();
    let longest = rows.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    #[expect(clippy::cast_precision_loss, reason = "a handful of rows")]
    let height = HEAD + ROW * rows.len() as f64 + 10.0;
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="15">
<rect width="100%" height="100%" fill="#ffffff"/>
<text x="16" y="28" font-size="18" font-weight="bold" fill="#1f2328">{}, {}</text>
<text x="16" y="50" fill="#59636e">{unit}; medians of {} rounds</text>
"##,
        summary.db, summary.workload, summary.rounds
    );
    let mut top = HEAD;
    for (name, value) in rows {
        let length = (WIDTH - LABELS - VALUES) * value / longest;
        let colour = if name.starts_with("posthaste") { "#0969da" } else { "#8c959f" };
        let number = if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        writeln!(
            svg,
            r##"<text x="{}" y="{}" text-anchor="end" fill="#1f2328">{name}</text>
<rect x="{LABELS}" y="{top}" width="{length:.1}" height="22" fill="{colour}"/>
<text x="{:.1}" y="{}" fill="#1f2328">{number}</text>"##,
            LABELS - 10.0,
            top + 16.0,
            LABELS + length + 8.0,
            top + 16.0,
        )
        .ok();
        top += ROW;
    }
    svg + "</svg>\n"
}
