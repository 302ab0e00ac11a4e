//! Statements about dead letters, whose text depends on what is asked for.
//!
//! The text is static and in `sql/`; a value is named in it as `:name`. A line that names a value which is not given is left
//! out; a name in a comment, `/* :name */`, only says whether its line is wanted. So there is one text for all questions, and
//! none of them makes the database plan for criteria that nobody has asked for.

use std::time::{Duration, SystemTime};

use uuid::Uuid;

use super::{Change, Lock, RowState, Selection};
use crate::{DeadLetterStatus, OutboxMessageId};

/// The latest time that every database knows, in microseconds since 1970: the end of the year 9999.
const LATEST: i64 = 253_402_300_799_000_000;
/// The longest age: a century.
const LONGEST: i64 = 100 * 365 * 86_400 * 1_000_000;

/// A value of a statement.
#[derive(Debug, Clone)]
pub(super) enum Value {
    /// The line that names it is wanted, and that is all.
    Wanted,
    Number(i64),
    Numbers(Vec<i64>),
    /// Numbers as the text of an array.
    Array(Vec<i64>),
    Text(String),
    /// A text of ASCII letters that does not end in spaces, and by which an index may be used.
    Word(String),
    Token(Uuid),
}

/// Values by the names that the text calls them.
#[derive(Debug, Default)]
pub(super) struct Values(Vec<(&'static str, Value)>);

impl Values {
    fn with(mut self, name: &'static str, value: Value) -> Self {
        self.0.push((name, value));
        self
    }

    fn with_some(self, name: &'static str, value: Option<Value>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    /// What is asked of dead letters.
    pub(super) fn of(selection: &Selection<'_>, lock: Lock) -> Self {
        let Selection { scope, after, state, limit } = selection;
        let text = |text: &Option<String>| text.clone().map(Value::Text);
        let wanted = |is_wanted: bool| is_wanted.then_some(Value::Wanted);
        let values = Self::default()
            .with("limit", Value::Number(*limit))
            .with_some("after", after.map(|id| Value::Number(id.0)))
            .with_some(
                "ids",
                scope.ids.as_ref().map(|ids| Value::Numbers(ids.iter().map(|id| id.0).collect())),
            )
            .with_some("queue", scope.queue.clone().map(Value::Word))
            .with_some("partition", scope.partition.map(|partition| Value::Number(partition.into())))
            .with_some("key", text(&scope.key))
            .with_some("payload_type", text(&scope.payload_type))
            .with_some("from", scope.rejected_from.map(|time| Value::Number(micros(time))))
            .with_some("before", scope.rejected_before.map(|time| Value::Number(micros(time))))
            .with_some("older", scope.older_than.map(|age| Value::Number(age_micros(age))))
            .with_some("unchanged", scope.unchanged_for.map(|age| Value::Number(age_micros(age))))
            .with_some("unchanged_since", scope.unchanged_since.map(|time| Value::Number(micros(time))))
            .with_some("reason", text(&scope.reason));
        let status = match state {
            None => None,
            Some(RowState::Pending) => Some(DeadLetterStatus::Pending),
            Some(RowState::Claimed | RowState::ClaimRanOut) => Some(DeadLetterStatus::Reprocessing),
            Some(RowState::Resolved) => Some(DeadLetterStatus::Resolved),
            Some(RowState::Discarded) => Some(DeadLetterStatus::Discarded),
        };
        let values = values
            .with_some("status", status.map(|status| Value::Word(status.to_string())))
            .with_some("is_running", wanted(*state == Some(RowState::Claimed)))
            .with_some("has_run_out", wanted(*state == Some(RowState::ClaimRanOut)));
        values
            .with_some("skips_locked", wanted(lock == Lock::Skip))
            .with_some("waits_for_locked", wanted(lock == Lock::Wait))
    }

    /// Just these.
    pub(super) fn these(ids: &[i64]) -> Self {
        Self::default().with("ids", Value::Numbers(ids.to_vec())).with("array", Value::Array(ids.to_vec()))
    }

    /// The same, as they are now.
    pub(super) fn locked(ids: &[i64]) -> Self {
        Self::these(ids).with("is_locked", Value::Wanted)
    }

    /// Dead letters, and what they were sent back as.
    pub(super) fn sent(sent: &[(OutboxMessageId, OutboxMessageId)]) -> Self {
        let (old, new): (Vec<_>, Vec<_>) = sent.iter().map(|(old, new)| (old.0, new.0)).unzip();
        Self::these(&old).with("new_ids", Value::Numbers(new))
    }

    /// What becomes of these.
    pub(super) fn changing(ids: &[i64], change: &Change<'_>) -> Self {
        let values = Self::these(ids);
        let values = match change {
            Change::Claim { token, timeout } => values
                .with("token", Value::Token(*token))
                .with("claim_us", Value::Number(age_micros(*timeout))),
            _ => values.with("lets_go", Value::Wanted),
        };
        let values = match change {
            Change::Reject { reason } => values.with("reason", Value::Text((*reason).to_owned())),
            _ => values,
        };
        let values = match change {
            Change::Resolve => values,
            _ => values.with("has_failed", Value::Wanted),
        };
        let status = match change {
            Change::Claim { .. } => DeadLetterStatus::Reprocessing,
            Change::Resolve => DeadLetterStatus::Resolved,
            Change::Reject { .. } => DeadLetterStatus::Pending,
            Change::Discard => DeadLetterStatus::Discarded,
        };
        values.with("status", Value::Word(status.to_string()))
    }
}

fn micros(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).map_or(LATEST, |micros| micros.min(LATEST))
}

fn age_micros(age: Duration) -> i64 {
    i64::try_from(age.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// The text with what `place` makes of each value, and the values to bind, in their order. A value that `place` has written out
/// itself is not bound.
pub(super) fn render<'v>(
    sql: &str,
    values: &'v Values,
    mut place: impl FnMut(&'v Value) -> Option<String>,
) -> String {
    let mut text = String::with_capacity(sql.len());
    for line in sql.lines() {
        if names(line).any(|name| values.get(name).is_none()) {
            continue;
        }
        let mut rest = line;
        while let Some((before, name, behind)) = next_name(rest) {
            text.push_str(before);
            match values.get(name).and_then(&mut place) {
                Some(placed) => text.push_str(&placed),
                None => text.push_str(name),
            }
            rest = behind;
        }
        text.push_str(rest);
        text.push('\n');
    }
    text
}

fn names(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let (_, name, behind) = next_name(rest)?;
        rest = behind;
        Some(name)
    })
}

/// What is before the first `:name`, the name, and what is behind it. Two colons are a cast.
fn next_name(text: &str) -> Option<(&str, &str, &str)> {
    let bytes = text.as_bytes();
    let is_letter =
        |place: usize| bytes.get(place).is_some_and(|byte| byte.is_ascii_lowercase() || *byte == b'_');
    let begins = (0..bytes.len()).find(|place| {
        bytes[*place] == b':' && is_letter(place + 1) && (*place == 0 || bytes[place - 1] != b':')
    })?;
    let ends = (begins + 1..bytes.len()).find(|place| !is_letter(*place)).unwrap_or(bytes.len());
    Some((&text[..begins], &text[begins + 1..ends], &text[ends..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_lines_that_are_asked_for_are_there() {
        let sql = "SELECT 1::text\nWHERE a = :a\n  AND b IN (:b, :a)\n  AND c = :c\nFOR UPDATE /* :d */\nSKIP /* :e */";
        let values = Values::default()
            .with("a", Value::Number(7))
            .with("b", Value::Number(8))
            .with("d", Value::Wanted);
        let mut bound = Vec::new();
        let text = render(sql, &values, |value| match value {
            Value::Number(number) => {
                bound.push(*number);
                Some(format!("${}", bound.len()))
            }
            _ => None,
        });
        assert_eq!(text, "SELECT 1::text\nWHERE a = $1\n  AND b IN ($2, $3)\nFOR UPDATE /* d */\n");
        assert_eq!(bound, [7, 8, 7]);
    }
}
