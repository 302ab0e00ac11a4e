//! Messages that have no seq yet. Those whose ids follow each other without a hole, as those of one call mostly do, are one row of
//! `pending`, a run: so most messages cost nothing there, neither when they are written nor when a tick takes them.

use sqlx::{Row, mysql::MySqlRow};

use super::text::ending_with;
use crate::{
    limits::SEGMENT,
    store::{Result, segments::json},
};

/// The messages from `id` on, by their partitions.
pub(super) struct Run {
    id: i64,
    partitions: Vec<i32>,
}

impl Run {
    pub(super) fn of(row: &MySqlRow) -> Result<Self> {
        Ok(Self { id: row.try_get(0)?, partitions: serde_json::from_str(row.try_get(1)?)? })
    }

    /// The id that no longer is in it.
    fn end(&self) -> i64 {
        self.id + i64::try_from(self.partitions.len()).unwrap_or(i64::MAX)
    }

    /// Its key, and the key of a run that follows without a hole.
    pub(super) fn bounds(&self) -> (i64, Option<i64>) {
        (self.id, Some(self.end()))
    }

    pub(super) fn messages(&self) -> impl Iterator<Item = (i64, i32)> + '_ {
        (self.id..).zip(self.partitions.iter().copied())
    }

    /// As a row of a statement, whatever character set the session is set to: there are some in which a bracket is a letter.
    fn row(&self) -> String {
        format!("({}, {}, _utf8mb4'{}')", self.id, self.end() - 1, json(&self.partitions))
    }
}

/// What makes messages pending, in the order of their ids.
pub(super) fn pend(sql: &str, messages: impl IntoIterator<Item = (i64, i32)>) -> String {
    let rows: Vec<_> = runs(messages).iter().map(Run::row).collect();
    ending_with(sql, "{rows}", &rows.join(", "))
}

/// The id behind which a run may begin that has messages behind this one.
pub(super) fn first_run(after_id: i64) -> i64 {
    after_id.saturating_sub(SEGMENT)
}

fn runs(messages: impl IntoIterator<Item = (i64, i32)>) -> Vec<Run> {
    let most = usize::try_from(SEGMENT).unwrap_or(usize::MAX);
    let mut runs: Vec<Run> = Vec::new();
    for (id, partition_id) in messages {
        match runs.last_mut() {
            Some(run) if run.end() == id && run.partitions.len() < most => run.partitions.push(partition_id),
            _ => runs.push(Run { id, partitions: vec![partition_id] }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_whose_ids_follow_each_other_are_one_row() {
        let sql = |messages: &[(i64, i32)]| pend("VALUES {rows}", messages.iter().copied());
        assert_eq!(sql(&[(5, 2)]), "VALUES (5, 5, _utf8mb4'[2]')");
        assert_eq!(
            sql(&[(5, 2), (6, 1), (7, 2), (9, 3)]),
            "VALUES (5, 7, _utf8mb4'[2,1,2]'), (9, 9, _utf8mb4'[3]')"
        );
    }

    #[test]
    fn a_run_has_an_end() {
        let messages: Vec<_> = (1..=SEGMENT * 2 + 1).map(|id| (id, 1)).collect();
        let runs = runs(messages.iter().copied());
        assert_eq!(
            runs.iter().map(Run::bounds).collect::<Vec<_>>(),
            [(1, Some(257)), (257, Some(513)), (513, Some(514))]
        );
        assert_eq!(runs.iter().flat_map(Run::messages).collect::<Vec<_>>(), messages);
    }
}
