//! What `--help` says, of every command.

use crate::{posthaste::Posthaste, snapshots::assert_snapshot};

#[test]
fn the_help_is_what_was_agreed_on() {
    for command in [
        "",
        "demo",
        "migrate",
        "status",
        "queues",
        "register",
        "peek",
        "tail",
        "enqueue",
        "dead-letters",
        "dead-letters list",
        "dead-letters show",
        "dead-letters redeliver",
        "dead-letters discard",
        "dead-letters cleanup",
        "vacuum",
        "pause",
        "resume",
        "doctor",
        "bench",
        "completions",
        "man",
    ] {
        let mut arguments: Vec<_> = command.split_whitespace().collect();
        arguments.push("--help");
        let name = format!("help {command}");
        assert_snapshot(
            &format!("{}.txt", name.trim().replace(' ', "-")),
            &Posthaste::new(&arguments).succeeds(),
        );
    }
}
