//! The statements, rendered once with the names of the tables. MySQL and MariaDB share all but those that end in their names.

use crate::store::{Tables, statements::statements, tables::Names};

statements!(
    acquire,
    acquire_transactional,
    browse,
    bury,
    change_dead_letters,
    clock,
    count_dead_letters,
    delete_dead_letters,
    enqueue_mariadb,
    enqueue_mysql,
    enqueue_one_mariadb,
    enqueue_one_mysql,
    enqueued_mysql,
    find_queue,
    head,
    is_paused,
    lag,
    lock,
    lock_dead_letters,
    look,
    mark_redelivered,
    news,
    pause,
    peek,
    pend,
    pended,
    pick_dead_letters,
    read,
    read_dead_letters,
    recover,
    register_cursors,
    register_partitions,
    register_queue,
    segments,
    settle,
    strays,
    survey,
    suspects,
    take,
    take_back_message,
    take_back_run,
    taken,
    taken_run,
    tick,
    unsequenced,
    unsettled,
    vacuum_links,
    vacuum_look,
    vacuum_message_run,
    vacuum_messages,
    vacuum_read,
    vacuum_segments,
    vacuum_tick_ends,
    vacuum_ticks,
    waiting,
);

/// The server's clock, whatever the session's time zone.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// How many messages a statement of MariaDB's has, largest first: each of these texts may stay prepared in a caller's session, with
/// some 4 KB a message on the server.
const SIZES: [usize; 7] = [100, 50, 20, 10, 5, 2, 1];

/// The statements that write so many messages on MariaDB.
pub(super) fn enqueues_mariadb(statement: &str) -> Vec<(usize, std::sync::Arc<str>)> {
    let row = format!("({NOW}, ?, ?, CONVERT(? USING utf8mb4), CONVERT(? USING utf8mb4), ?)");
    let text = |size| statement.replace("{rows}", &vec![row.as_str(); size].join(", "));
    SIZES.map(|size| (size, text(size).into())).to_vec()
}

/// In a database, or in the connection's own.
pub(super) fn names(database: Option<&str>, tables: &Tables) -> Names {
    Names::new(database, tables, '`')
}

/// A statement with the names filled in.
pub(super) fn fill(names: &Names, sql: &str) -> String {
    let sql = sql.replace("{criteria}", include_str!("sql/dead_letter_criteria.sql"));
    names.fill(&sql).replace("{now}", NOW)
}
