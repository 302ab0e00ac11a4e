//! The statements, rendered once with the names of the tables.

use crate::store::{Tables, statements::statements, tables::Names};

statements!(
    acquire,
    begin_to_write,
    browse,
    bury,
    change_dead_letters,
    clock,
    count_dead_letters,
    count_on,
    delete_dead_letters,
    enqueue,
    find_queue,
    forget_count,
    ids,
    is_paused,
    lag,
    look,
    mark_redelivered,
    news,
    orphans,
    pause,
    peek,
    pick_dead_letters,
    read_dead_letters,
    register_cursors,
    register_partitions,
    register_queue,
    segments,
    settle,
    strays,
    survey,
    suspects,
    take,
    tick,
    unsequenced,
    unsettled,
    vacuum_links,
    vacuum_look,
    vacuum_messages,
    vacuum_segments,
    vacuum_ticks,
    waiting,
);

/// The database's clock, in microseconds since 1970. SQLite keeps milliseconds; a Julian day is exact to some 40 µs, so
/// rounding finds the millisecond that was meant. Within a statement it stands still.
const NOW: &str = "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)";

/// In the main database: a temporary table of the same name would come first otherwise.
pub(super) fn names(tables: &Tables) -> Names {
    Names::new(Some("main"), tables, '"')
}

/// A statement with the names filled in.
pub(super) fn fill(names: &Names, sql: &str) -> String {
    let incoming = names.unqualified("incoming").replace('"', "").replace('\'', "''");
    let sql = sql.replace("{criteria}", include_str!("sql/dead_letter_criteria.sql"));
    names
        .fill(&sql)
        .replace("{now}", NOW)
        .replace("{queue_name}", &names.unqualified("queue"))
        .replace("{dead_letter_name}", &names.unqualified("dead_letter"))
        .replace("{dead_letter_queue}", &names.table("dead_letter_queue"))
        .replace("{dead_letter_status}", &names.table("dead_letter_status"))
        .replace("{incoming_literal}", &format!("'{incoming}'"))
}
