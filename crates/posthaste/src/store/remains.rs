//! Rows into what vacuum may find to remove.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::{Remains, Result};

/// The columns are called as in `survey.sql`.
pub(super) fn remains<R>(rows: &[R]) -> Result<Vec<Remains>>
where
    R: Row,
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i32: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let remains = rows.iter().map(|row| {
        let newest_epoch = row.try_get("epoch")?;
        let head_seq = row.try_get("head")?;
        Ok(Remains {
            partition_id: row.try_get("id")?,
            first_epoch: row.try_get::<Option<i64>, _>("first_epoch")?.unwrap_or(newest_epoch),
            newest_epoch,
            first_seq: row.try_get::<Option<i64>, _>("first_seq")?.unwrap_or(head_seq + 1),
            settled_seq: row.try_get("processed_seq")?,
            head_seq,
        })
    });
    Ok(remains.collect::<Result<_, sqlx::Error>>()?)
}
