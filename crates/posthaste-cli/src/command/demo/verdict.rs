//! The verdict in words.

use std::time::Duration;

use console::style;
use indicatif::HumanCount;

use super::judge::Verdict;

/// How much less than it should be the pace may be before it is mentioned.
const TOLERANCE: f64 = 0.9;

/// Lines for people; `asked` is how many orders a second were to be placed, and `placing` how long it went on.
pub fn lines(verdict: &Verdict, asked: u32, placing: Duration, is_interrupted: bool) -> Vec<String> {
    let count = HumanCount;
    let duplicates = counted(verdict.duplicates, "duplicate");
    let mark = |is_good| if is_good { style("✓").green() } else { style("✗").red() }.bold();
    let mut lines = Vec::new();
    if is_interrupted {
        lines.push("interrupted: no more orders were placed, and the rest was delivered".to_owned());
    }
    let nothing_made_up = verdict.phantom == 0;
    lines.push(format!(
        "{} {} committed, {} rolled back: {} phantom",
        mark(nothing_made_up),
        counted(verdict.committed, "order"),
        count(verdict.rolled_back),
        count(verdict.phantom),
    ));
    lines.push(format!(
        "{} {} delivered: {} lost, {} out of order, {duplicates}",
        mark(verdict.lost == 0 && verdict.out_of_order == 0),
        count(verdict.delivered),
        count(verdict.lost),
        count(verdict.out_of_order),
    ));
    lines.push(dead_letters(verdict, &mark));
    lines.push(format!(
        "  {} orders/s; from commit to delivery {} ms (p50), {} ms (p99)",
        verdict.per_s, verdict.p50_ms, verdict.p99_ms
    ));
    lines.extend(slowness(verdict, asked, placing));
    if verdict.kills > 0 {
        lines.push(match verdict.by_second {
            0 => format!("  {}", nothing_shown(verdict.kills)),
            orders => format!(
                "  {} by a second process, which was killed {} meanwhile",
                counted(orders, "delivery"),
                counted(verdict.kills, "time")
            ),
        });
    }
    lines.push(if verdict.ok {
        style("  the books are in order").green().bold().to_string()
    } else {
        style("  the books are NOT in order").red().bold().to_string()
    });
    lines
}

fn dead_letters<D: std::fmt::Display>(verdict: &Verdict, mark: &impl Fn(bool) -> D) -> String {
    let (missing, surplus) = (verdict.missing_dead_letters, verdict.surplus_dead_letters);
    let is_good = missing == 0 && surplus == 0 && verdict.dead_letters == verdict.declined;
    let found = counted(verdict.dead_letters, "dead letter");
    if is_good {
        return format!("{} {found}, as many as cards were declined", mark(true));
    }
    format!(
        "{} {found}, and {} declined: {missing} missing, {surplus} too many",
        mark(false),
        counted(verdict.declined, "card")
    )
}

/// If the database or this machine cannot do what was asked of it.
fn slowness(verdict: &Verdict, asked: u32, placing: Duration) -> Option<String> {
    let seconds = placing.as_secs_f64();
    let placed = (verdict.committed + verdict.rolled_back) as f64;
    // The first order comes at once: of few orders no pace can be told.
    let is_slow = seconds >= 1.0 && placed < (f64::from(asked) * seconds * TOLERANCE).floor();
    is_slow.then(|| {
        format!(
            "  {:.0} orders/s were placed: the {asked} asked for are more than can be done here",
            placed / seconds
        )
    })
}

/// A number of things.
fn counted(number: u64, thing: &str) -> String {
    match (number, thing.strip_suffix('y')) {
        (1, _) => format!("1 {thing}"),
        (_, Some(stem)) => format!("{} {stem}ies", HumanCount(number)),
        (_, None) => format!("{} {thing}s", HumanCount(number)),
    }
}

/// A second process that delivered nothing is no proof of anything.
pub fn nothing_shown(kills: u64) -> String {
    format!(
        "the second process was killed {}, and had delivered nothing: this says nothing about recovery, so try more --seconds or \
         a higher --rate",
        counted(kills, "time")
    )
}
