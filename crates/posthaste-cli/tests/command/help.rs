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

#[test]
fn pages_and_completions_are_of_what_is_for_people() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Posthaste::new(&["man", "--to", "pages"]).in_folder(folder.path()).run();
    assert_eq!((ran.code, &*ran.out), (0, ""), "{ran:?}");
    let pages = std::fs::read_dir(folder.path().join("pages")).unwrap();
    let pages: Vec<_> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    for page in ["posthaste.1", "posthaste-status.1", "posthaste-dead-letters-list.1"] {
        assert!(pages.iter().any(|other| other == page), "{page} is not in {pages:?}");
    }
    assert!(!pages.iter().any(|page| page.contains("help") || page.contains("demo-worker")), "{pages:?}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let completions = Posthaste::new(&["completions", shell]).succeeds();
        assert!(completions.contains("dead-letters") && !completions.contains("demo-worker"), "{shell}");
    }
}
