//! The statements, rendered once with the names of the tables.

use crate::store::{Tables, statements::statements, tables::Names};

statements!(
    acquire,
    browse,
    change_dead_letters,
    clock,
    count_dead_letters,
    delete_dead_letters,
    enqueue,
    enqueue_one,
    find_queue,
    is_paused,
    lag,
    lock,
    look,
    mark_redelivered,
    pause,
    peek,
    pick_dead_letters,
    read_dead_letters,
    recover,
    register_queue,
    settle,
    strays,
    survey,
    suspects,
    tick,
    unsequenced,
    unsettled,
    vacuum,
    waiting,
);

/// In a schema, or wherever the search path leads.
pub(super) fn names(schema: Option<&str>, tables: &Tables) -> Names {
    Names::new(schema, tables, '"')
}

/// A statement with the names filled in.
pub(super) fn fill(names: &Names, sql: &str) -> String {
    let incoming = names.table("incoming").replace('\'', "''");
    let sql = sql
        .replace("{criteria}", include_str!("sql/dead_letter_criteria.sql"))
        .replace("{places}", include_str!("sql/places.sql"));
    names
        .fill(&sql)
        .replace("{incoming_stamp}", &names.unqualified("incoming_stamp"))
        .replace("{dead_letter_queue}", &names.unqualified("dead_letter_queue"))
        .replace("{dead_letter_status}", &names.unqualified("dead_letter_status"))
        .replace("{incoming_literal}", &format!("'{incoming}'"))
}
