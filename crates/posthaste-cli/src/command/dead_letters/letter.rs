//! A dead letter, as it is shown.

use console::{Term, measure_text_width, truncate_str};
use posthaste::DeadLetterMessage;
use serde::Serialize;

use crate::{
    message::{Message, age, cell, cell_or_dash},
    output::{moment, printable, table},
};

/// A dead letter for programs.
#[derive(Debug, Serialize)]
pub struct Letter<'a> {
    #[serde(flatten)]
    message: Message<'a>,
    attempts: u32,
    status: String,
    reason: &'a str,
    rejected_at: String,
    changed_at: String,
    claimed_until: Option<String>,
    redelivered_as: Option<i64>,
}

impl<'a> From<&'a DeadLetterMessage> for Letter<'a> {
    fn from(letter: &'a DeadLetterMessage) -> Self {
        Self {
            message: letter.into(),
            attempts: letter.attempts,
            status: letter.status.to_string(),
            reason: &letter.reason,
            rejected_at: moment(letter.rejected_at),
            changed_at: moment(letter.changed_at),
            claimed_until: letter.claimed_until.map(moment),
            redelivered_as: letter.redelivered_as.map(|id| id.0),
        }
    }
}

const HEADER: [&str; 10] =
    ["ID", "QUEUE", "PARTITION", "SEQ", "KEY", "TYPE", "ATTEMPTS", "STATUS", "AGE", "REASON"];

/// A dead letter in a table; its payload is not in it.
pub fn row(letter: &DeadLetterMessage) -> Vec<String> {
    vec![
        letter.id.to_string(),
        letter.queue.to_string(),
        letter.partition.to_string(),
        letter.seq.to_string(),
        cell_or_dash(letter.key.as_deref()),
        cell(&letter.payload_type),
        letter.attempts.to_string(),
        letter.status.to_string(),
        age(letter.rejected_at),
        printable(&letter.reason),
    ]
}

/// The rows as a table that fits the terminal, as far as cutting the reasons can do that.
pub fn letters(mut rows: Vec<Vec<String>>) -> String {
    /// Of a reason, so much is always shown.
    const LEAST: usize = 20;
    const NO_TERMINAL: usize = 60;
    let last = HEADER.len() - 1;
    let width = Term::stdout().size_checked().map_or(NO_TERMINAL, |(_, columns)| {
        let others: Vec<_> = rows.iter().map(|row| row[..last].to_vec()).collect();
        let widest = table(&HEADER[..last], &others).lines().map(measure_text_width).max();
        usize::from(columns).saturating_sub(widest.unwrap_or(0) + 2).max(LEAST)
    });
    for reason in rows.iter_mut().filter_map(|row| row.get_mut(last)) {
        *reason = truncate_str(reason, width, "…").into_owned();
    }
    table(&HEADER, &rows)
}
