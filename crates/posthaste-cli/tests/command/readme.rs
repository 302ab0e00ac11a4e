//! The README's five minutes are what really happens, but for the numbers.

use std::{
    path::Path,
    process::{Command, Stdio},
};

const README: &str = include_str!("../../../../README.md");

/// A command, and what the README says it prints.
struct Step {
    command: String,
    printed: Vec<String>,
}

/// What is in the blocks for consoles, in order.
fn steps() -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for block in README.split("```console\n").skip(1) {
        let (lines, _) = block.split_once("```").expect("an end");
        for line in lines.lines() {
            match (line.strip_prefix("$ "), steps.last_mut()) {
                (Some(command), _) => steps.push(Step { command: command.to_owned(), printed: Vec::new() }),
                (None, step) => step.expect("a command first").printed.push(line.to_owned()),
            }
        }
    }
    steps
}

/// A line without what differs from run to run: numbers, spans, the room between columns, the name of a folder.
fn constant(line: &str) -> String {
    let words = line.split_whitespace().map(|word| match word.split_once("posthaste-demo-") {
        // The folder's name ends where the file's begins, or the sentence goes on.
        Some((_, rest)) => format!("posthaste-demo-#{}", rest.find(['/', ';']).map_or("", |at| &rest[at..])),
        None => {
            let bare = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
            let is_span = bare.ends_with(|c: char| c.is_ascii_digit())
                && bare.starts_with(|c: char| c.is_ascii_digit());
            let word = if is_span { bare } else { word };
            let mut text = word.replace(|c: char| c.is_ascii_digit(), "#").replace("#.#", "##");
            while text.contains("##") {
                text = text.replace("##", "#").replace("#.#", "#");
            }
            text
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Whether these lines were printed; `…` stands for any.
fn is_printed(expected: &[String], printed: &[String]) -> bool {
    match (expected, printed) {
        ([], []) => true,
        ([any, rest @ ..], _) if any == "…" => {
            (0..=printed.len()).any(|skipped| is_printed(rest, &printed[skipped..]))
        }
        ([one, expected @ ..], [other, printed @ ..]) if one == other => is_printed(expected, printed),
        _ => false,
    }
}

#[test]
fn five_minutes_are_as_the_readme_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let binary = Path::new(env!("CARGO_BIN_EXE_posthaste")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let mut database = None;
    let steps = steps();
    assert!(steps.len() >= 10, "there is a tour");
    for Step { command, printed } in steps {
        if command.starts_with("export DATABASE_URL=") {
            assert!(database.is_some(), "the demo has said where");
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).current_dir(folder.path()).env("PATH", &path).env_remove("DATABASE_URL");
        shell.env("TMPDIR", folder.path()).envs(database.iter().map(|url| ("DATABASE_URL", url)));
        let ran = shell.stdin(Stdio::null()).output().unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        assert!(
            ran.status.success() && ran.stderr.is_empty(),
            "{command}: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        let expected: Vec<_> = printed.iter().map(|line| constant(line)).collect();
        let found: Vec<_> = out.lines().map(constant).collect();
        assert!(
            is_printed(&expected, &found),
            "{command} printed\n{out}\nand the README says\n{}",
            printed.join("\n")
        );
        let url = out
            .split_whitespace()
            .find(|word| word.starts_with("sqlite:") && word.contains("posthaste-demo-"));
        database = url.map(str::to_owned).or(database);
    }
}

#[test]
fn only_what_differs_from_run_to_run_is_left_out() {
    assert_eq!(constant("  1  customer-7   54ms  {\"order\":1}"), "# customer-# # {\"order\":#}");
    assert_eq!(
        constant("it is kept in /tmp/posthaste-demo-6q; look"),
        "it is kept in posthaste-demo-#; look"
    );
    assert_eq!(
        constant("--database-url sqlite:/tmp/posthaste-demo-6q/shop.db"),
        "--database-url posthaste-demo-#/shop.db"
    );
    assert_eq!(constant("SQLite 3.51.3"), "SQLite #");
    assert_ne!(constant("0 lost"), constant("0 found"));
}
