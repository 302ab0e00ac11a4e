//! The live view as text: lines that fit the width of the terminal.

use console::{Alignment, Style, pad_str, style, truncate_str};
use indicatif::HumanCount;

use super::snapshot::{Owner, Partition, Phase, Snapshot};
use crate::output::span;

/// How wide a number and its name are together.
const CELL: usize = 20;
const CELLS_A_LINE: usize = 4;
/// What is beside a bar: the partition's number, what is settled, what is not, the owner.
const BESIDE_BAR: usize = 20;
const SHORTEST_BAR: usize = 8;
const LONGEST_BAR: usize = 72;
/// From how much of the run on its end can be foreseen.
const FORESEEABLE: f64 = 0.05;

pub fn lines(title: &str, snapshot: &Snapshot, width: usize) -> Vec<String> {
    let mut lines = vec![style(title).bold().to_string(), phase(snapshot), String::new()];
    lines.extend(numbers(snapshot, width));
    lines.push(String::new());
    let end = foreseen(snapshot);
    lines.extend(
        snapshot
            .partitions
            .iter()
            .enumerate()
            .map(|(number, partition)| bar(number, partition, end, snapshot.kills.is_some(), width)),
    );
    lines.iter().map(|line| truncate_str(line, width, "…").into_owned()).collect()
}

fn phase(snapshot: &Snapshot) -> String {
    let text = match &snapshot.phase {
        Phase::Placing(of) => format!("{} {of}", span(snapshot.elapsed)),
        Phase::Draining => "delivering the rest".to_owned(),
        Phase::Interrupted => "interrupted: delivering the rest; once more to end at once".to_owned(),
        Phase::Done => format!("done in {}", span(snapshot.elapsed)),
    };
    style(text).dim().to_string()
}

/// As many beside each other as fit.
fn numbers(snapshot: &Snapshot, width: usize) -> Vec<String> {
    let count = |count: u64| HumanCount(count).to_string();
    let mut cells = vec![
        (count(snapshot.enqueued), "enqueued", Style::new().cyan()),
        (count(snapshot.delivered), "delivered", Style::new().green()),
        (format!("{:.0}", snapshot.rate), "a second", Style::new()),
        (count(snapshot.rolled_back), "rolled back", Style::new()),
        (count(snapshot.lag()), "lag", Style::new().yellow()),
        (snapshot.oldest().map_or_else(|| "-".to_owned(), span), "oldest", Style::new()),
        (count(snapshot.dead_letters), "dead letters", Style::new().red()),
    ];
    cells.extend(snapshot.kills.map(|kills| (count(kills), "kills", Style::new().magenta())));
    // What the last one is filled up with need not fit.
    let a_line = ((width + 1) / CELL).clamp(1, CELLS_A_LINE);
    let cell = |(value, name, look): &(String, &str, Style)| {
        let value = look.apply_to(pad_str(value, 7, Alignment::Right, None)).bold();
        pad_str(&format!("{value} {name}"), CELL, Alignment::Left, None).into_owned()
    };
    cells
        .chunks(a_line)
        .map(|cells| cells.iter().map(cell).collect::<String>().trim_end().to_owned())
        .collect()
}

/// How far the longest bar goes in the end, if it goes on like this.
fn foreseen(snapshot: &Snapshot) -> f64 {
    let longest = snapshot.partitions.iter().map(|partition| partition.sequenced).max().unwrap_or_default();
    (longest as f64 / snapshot.share.max(FORESEEABLE)).max(1.0)
}

/// What is settled, what has its order and waits, and what may come.
fn bar(number: usize, partition: &Partition, end: f64, shows_owner: bool, width: usize) -> String {
    let length = width.saturating_sub(BESIDE_BAR).clamp(SHORTEST_BAR, LONGEST_BAR);
    let cells = |count: u64| to_cells(count as f64 / end, length);
    let sequenced = cells(partition.sequenced);
    // What waits is always seen.
    let settled = cells(partition.settled).min(sequenced.saturating_sub(usize::from(partition.depth() > 0)));
    let waits = sequenced - settled;
    let depth = match partition.depth() {
        0 => String::new(),
        depth => format!("+{depth}"),
    };
    let owner = match partition.owner {
        _ if !shows_owner => String::new(),
        Owner::Nobody => " ".to_owned(),
        Owner::Us => style("1").green().to_string(),
        Owner::Other => style("2").magenta().to_string(),
    };
    format!(
        "{} {}{}{} {:>7} {} {owner}",
        style(format!("{number:>2}")).dim(),
        style("█".repeat(settled)).green(),
        style("█".repeat(waits)).yellow(),
        style("░".repeat(length - sequenced)).dim(),
        HumanCount(partition.settled).to_string(),
        style(format!("{depth:<6}")).yellow(),
    )
}

/// So much of a length, in whole cells.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is between 0 and the length")]
fn to_cells(share: f64, length: usize) -> usize {
    (share.clamp(0.0, 1.0) * length as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use console::{measure_text_width, strip_ansi_codes};

    use super::*;

    fn snapshot() -> Snapshot {
        let partition = |settled, sequenced, owner| Partition {
            settled,
            sequenced,
            oldest: Some(Duration::from_millis(12)),
            owner,
        };
        Snapshot {
            elapsed: Duration::from_secs(6),
            share: 0.5,
            phase: Phase::Placing("of 12.0s".to_owned()),
            enqueued: 10_000_000,
            rolled_back: 7,
            delivered: 1_234,
            rate: 299.6,
            dead_letters: 3,
            kills: Some(5),
            partitions: vec![
                partition(0, 0, Owner::Nobody),
                partition(90, 100, Owner::Us),
                partition(50, 51, Owner::Other),
            ],
        }
    }

    fn plain(width: usize) -> Vec<String> {
        lines("posthaste demo", &snapshot(), width)
            .iter()
            .map(|line| strip_ansi_codes(line).into_owned())
            .collect()
    }

    #[test]
    fn everything_is_there_in_the_usual_width() {
        let (half, bar) = ("░".repeat(30), |filled, empty| "█".repeat(filled) + &"░".repeat(empty));
        let expected = [
            "posthaste demo".to_owned(),
            "6.0s of 12.0s".to_owned(),
            String::new(),
            "10,000,000 enqueued   1,234 delivered       300 a second          7 rolled back".to_owned(),
            "     11 lag            12ms oldest            3 dead letters      5 kills".to_owned(),
            String::new(),
            format!(" 0 {half}{half}       0         "),
            format!(" 1 {}      90 +10    1", bar(30, 30)),
            format!(" 2 {}      50 +1     2", bar(15, 45)),
        ];
        assert_eq!(plain(80), expected);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal() {
        for width in 1..200 {
            for line in lines("a title that is longer than some terminals", &snapshot(), width) {
                assert!(measure_text_width(&line) <= width, "{width}: {line:?}");
            }
        }
    }
}
