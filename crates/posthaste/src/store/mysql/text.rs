//! Statements as text, several of them in one round trip. Their values are numbers and bytes of ours: none of them can be taken
//! for SQL.

use std::fmt;

use futures_util::TryStreamExt;
use sqlx::{AssertSqlSafe, Either, MySqlConnection, mysql::MySqlRow};

use crate::store::{READER, Result, segments::array};

/// A value in the text of a statement.
pub(super) enum Value<'v> {
    Number(i64),
    Bytes(&'v [u8]),
    /// An array of numbers, and of arrays of them, as JSON.
    Array(&'v str),
    Reader,
    Null,
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Bytes(bytes) => {
                const DIGITS: [char; 16] =
                    ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'];
                let digit = |half: u8| DIGITS.get(usize::from(half)).copied().unwrap_or_default();
                let hex = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
                write!(f, "x'{}'", hex.collect::<String>())
            }
            Self::Array(array) => write!(f, "'{array}'"),
            Self::Reader => write!(f, "'{READER}'"),
            Self::Null => f.write_str("NULL"),
        }
    }
}

/// A statement with its values, for each question mark one; those in names are none.
pub(super) fn filled<const N: usize>(sql: &str, values: [Value<'_>; N]) -> String {
    let mut values = values.into_iter();
    let parts = sql.split('`').enumerate().map(|(place, part)| {
        // Every other part is a name.
        if place % 2 == 1 {
            return part.to_owned();
        }
        let mut texts = part.split('?');
        let first = texts.next().unwrap_or_default().to_owned();
        texts.fold(first, |text, part| {
            // Without a value it is no statement, and the server says so.
            let value = values.next().map_or_else(|| "?".to_owned(), |value| value.to_string());
            format!("{text}{value}{part}")
        })
    });
    parts.collect::<Vec<_>>().join("`")
}

/// A statement with this text in this place, which is the last one that is called so: a name may look like it.
pub(super) fn ending_with(sql: &str, place: &str, text: &str) -> String {
    sql.rsplit_once(place).map_or_else(|| sql.to_owned(), |(before, after)| format!("{before}{text}{after}"))
}

/// What came of one of several statements.
pub(super) struct Done {
    pub(super) rows: Vec<MySqlRow>,
    pub(super) affected: u64,
}

/// Runs the statements of a text.
pub(super) async fn run(conn: &mut MySqlConnection, text: String) -> Result<Vec<Done>> {
    let (mut done, mut rows) = (Vec::new(), Vec::new());
    let mut answers = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(conn);
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Right(row) => rows.push(row),
            Either::Left(end) => {
                done.push(Done { rows: std::mem::take(&mut rows), affected: end.rows_affected() });
            }
        }
    }
    Ok(done)
}

/// From how many rows that follow each other on a range is cheaper than a probe for each.
const LEAST_RUN: usize = 8;

/// What removes rows, which are sorted, by their ids, each with the id that follows it without a hole: where several follow each
/// other, as a range. No row of anybody else's is in one, and it ends after as many rows as are to go, so that it does not look at,
/// and wait for, the row behind it. The rest by a probe for each; so are those that may be gone already, which have no id behind
/// them: a range would go on looking for them.
pub(super) fn removals(run: &str, probes: &str, rows: &[(i64, Option<i64>)]) -> Vec<String> {
    let (mut statements, mut rest) = (Vec::new(), Vec::new());
    for rows in rows.chunk_by(|(_, end), (next, is_there)| *end == Some(*next) && is_there.is_some()) {
        match rows {
            [(first, _), .., (last, _)] if rows.len() >= LEAST_RUN => {
                let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
                statements.push(filled(run, [*first, *last, count].map(Value::Number)));
            }
            rows => rest.extend(rows.iter().map(|(id, _)| *id)),
        }
    }
    if !rest.is_empty() {
        statements.push(filled(probes, [Value::Array(&array(&rest))]));
    }
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_so_that_none_can_be_taken_for_sql() {
        let values = [
            Value::Number(-1),
            Value::Bytes(b"'; \xff"),
            Value::Array("[1,[2]]"),
            Value::Reader,
            Value::Null,
        ];
        let text = filled("a ? b ? c ? d ? e ? f", values);
        assert_eq!(text, "a -1 b x'273b20ff' c '[1,[2]]' d 'default' e NULL f");
        let odd = filled("`odd?`.`a``?` = ? AND ?", [Value::Number(1), Value::Number(2)]);
        assert_eq!(odd, "`odd?`.`a``?` = 1 AND 2");
        assert_eq!(ending_with("`{most}` LIMIT {most}", "{most}", "7"), "`{most}` LIMIT 7");
    }

    #[test]
    fn ids_in_a_row_are_removed_as_a_range_and_the_others_one_by_one() {
        let removals = |ids: &[i64]| {
            let rows: Vec<_> = ids.iter().map(|id| (*id, Some(id + 1))).collect();
            removals("run ? ? ?", "probes ?", &rows)
        };
        assert!(removals(&[]).is_empty());
        assert_eq!(removals(&[7]), ["probes '[7]'"]);
        let ids: Vec<_> = [3].into_iter().chain(10..18).chain(19..26).chain(30..40).collect();
        let rest = "probes '[3,19,20,21,22,23,24,25]'";
        assert_eq!(removals(&ids), ["run 10 17 8", "run 30 39 10", rest]);
        let tens: Vec<_> = (1..10).map(|n| (n * 10, Some(n * 10 + 10))).collect();
        assert_eq!(super::removals("run ? ? ?", "", &tens), ["run 10 90 9"]);
        let gone: Vec<_> = (1..20).map(|id| (id, (id > 10).then_some(id + 1))).collect();
        let expected = ["run 11 19 9", "probes '[1,2,3,4,5,6,7,8,9,10]'"];
        assert_eq!(super::removals("run ? ? ?", "probes ?", &gone), expected);
    }
}
