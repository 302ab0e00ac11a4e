//! What a server program says its version is.

use std::{path::Path, process::Command};

use crate::{
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
};

/// Asks a command that prints its version, and refuses one that is too old.
pub fn check(database: Database, command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let program = Path::new(&program).display();
    let output = command.output().or_cannot(|| format!("run {program}"))?;
    // Ctrl-C reaches it too, and then it has nothing to say.
    interrupt::check()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = find_number(&text).filter(|_| database.is_named_in(&text)).ok_or_else(|| {
        let said = text.lines().next().unwrap_or_default();
        Failure::CannotRun(format!("{program} does not say which version of {database} it is, but {said:?}"))
    })?;
    let (major, minor) = database.oldest();
    if parts(&version) >= (major, minor) {
        return Ok(version);
    }
    Err(Failure::CannotRun(format!(
        "{database} {version} ({program}) is too old: install {major}.{minor} or later, or name a server in {}",
        database.url_variable().unwrap_or_default()
    )))
}

/// The first thing in a text that looks like a version: `15.18` in `postgres (PostgreSQL) 15.18 (Debian …)`.
fn find_number(text: &str) -> Option<String> {
    text.split_whitespace()
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        .map(|word| word.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or(word).to_owned())
}

fn parts(version: &str) -> (u32, u32) {
    let mut numbers = version.split('.').map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_the_servers_print() {
        for (text, version) in [
            ("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", "15.18"),
            ("postgres (PostgreSQL) 19beta1", "19"),
            (
                "mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64 (Debian 12)",
                "10.11.14",
            ),
            ("/usr/sbin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))", "9.7.4"),
        ] {
            assert_eq!(find_number(text).as_deref(), Some(version));
        }
        assert_eq!(find_number("no version here"), None);
    }

    #[test]
    fn versions_compare_by_number() {
        assert!(parts("10.11.14") > parts("10.6"));
        assert!(parts("9.7.4") > parts("8.0"));
        assert!(parts("12.22") < parts("13"));
    }
}
