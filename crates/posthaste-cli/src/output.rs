//! Printing: for people, in columns and with colours if it is a terminal; for programs, as JSON.

use std::{
    fmt::Display,
    io::{self, Write},
    time::Duration,
};

use console::{Alignment, measure_text_width, pad_str};
use serde::Serialize;

use crate::failure::Failure;

/// Standard output. A reader who went away is a [`Failure::ClosedPipe`].
pub struct Output {
    pub json: bool,
}

impl Output {
    pub fn line(&self, text: impl Display) -> Result<(), Failure> {
        writeln!(io::stdout().lock(), "{text}").map_err(|error| Failure::output(&error))
    }

    /// One line of JSON.
    pub fn object(&self, value: &impl Serialize) -> Result<(), Failure> {
        let mut text = serde_json::to_string(value).map_err(io::Error::other)?;
        text.push('\n');
        io::stdout().lock().write_all(text.as_bytes()).map_err(|error| Failure::output(&error))
    }

    /// What was done, for programs or for people.
    pub fn report(&self, value: &impl Serialize, text: impl Display) -> Result<(), Failure> {
        let told = if self.json { self.object(value) } else { self.line(text) };
        told.map_err(Failure::though_done)
    }

    /// Rows under a header, in columns as wide as they have to be.
    pub fn table(&self, header: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
        self.line(table(header, rows))
    }

    /// For whoever waits, on standard error: not data.
    pub fn note(&self, text: impl Display) {
        note(text);
    }
}

/// A line on standard error. If nobody can be told, nobody is.
pub fn note(text: impl Display) {
    writeln!(io::stderr(), "{text}").ok();
}

/// Rows under a header, in columns as wide as they have to be. A column of numbers is aligned to the right.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.iter().enumerate().map(|(place, name)| {
        let cells = || rows.iter().filter_map(move |row| row.get(place));
        let width = cells().map(|cell| measure_text_width(cell)).fold(measure_text_width(name), usize::max);
        let is_number = |cell: &String| cell == "-" || console::strip_ansi_codes(cell).parse::<f64>().is_ok();
        let alignment = if cells().all(is_number) { Alignment::Right } else { Alignment::Left };
        (width, alignment)
    });
    let columns: Vec<_> = columns.collect();
    let line = |cells: &[String]| {
        let padded = cells.iter().zip(&columns);
        let padded = padded.map(|(cell, (width, alignment))| pad_str(cell, *width, *alignment, None));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let header: Vec<_> = header.iter().map(|name| console::style(name).bold().to_string()).collect();
    let lines = std::iter::once(line(&header)).chain(rows.iter().map(|row| line(row)));
    lines.collect::<Vec<_>>().join("\n")
}

/// A text from elsewhere, fit for a terminal: what would move the cursor or change colours is shown as what it is.
pub fn printable(text: &str) -> String {
    let is_safe = |c: char| !c.is_control() && !is_invisible(c);
    text.chars().map(|c| if is_safe(c) { c.to_string() } else { c.escape_default().to_string() }).collect()
}

/// Characters that change how what follows is written, without being seen: the overrides of the direction of writing, ends of lines,
/// and what has no width.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// A time span, as short as it can be said: `240ms`, `3.1s`, `12m`, `3h`, `9d`.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{:.1}s", span.as_secs_f64()),
        60..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A moment, in UTC.
pub fn moment(time: std::time::SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_have_to_be_and_numbers_are_aligned_to_the_right() {
        let rows = [vec!["orders".to_owned(), "7".to_owned()], vec!["a".to_owned(), "1200".to_owned()]];
        let table = table(&["queue", "depth"], &rows);
        assert_eq!(console::strip_ansi_codes(&table), "queue   depth\norders      7\na        1200");
    }

    #[test]
    fn what_would_command_a_terminal_is_shown_as_what_it_is() {
        assert_eq!(printable("a\x1b[2J\u{202e}ä\n"), "a\\u{1b}[2J\\u{202e}ä\\n");
        assert_eq!(printable("\u{2028}\u{200b}\u{61c}"), "\\u{2028}\\u{200b}\\u{61c}");
    }

    #[test]
    fn spans_are_short() {
        let spans = [240, 3100, 59_999, 720_000, 10_800_000, 864_000_000];
        let said = spans.map(|ms| span(Duration::from_millis(ms)));
        assert_eq!(said, ["240ms", "3.1s", "60.0s", "12m", "3h", "10d"]);
    }
}
