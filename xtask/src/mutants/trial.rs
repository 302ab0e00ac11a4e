//! Building the copy and running some of its tests.
//!
//! What comes of it is told by nextest's exit codes, which are documented, and by the events that it prints for programs.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File},
    path::PathBuf,
};

use serde::Deserialize;

use super::workspace_copy::WorkspaceCopy;
use crate::{
    failure::{Context, Failure, Result},
    interrupt,
    test::cargo,
};

/// What nextest's exit codes mean.
const PASSED: i32 = 0;
const NO_TESTS: i32 = 4;
const TESTS_FAILED: i32 = 100;
const BUILD_FAILED: i32 = 101;
/// What it says of a test that it ended.
const TIME_LIMIT: &str = "time limit exceeded";

/// What came of a mutant.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Killed { by: String },
    Survived,
    TimedOut { test: String },
    DoesNotCompile,
}

pub struct Trial<'c> {
    copy: &'c WorkspaceCopy,
    environment: Vec<(&'static str, OsString)>,
}

/// An event of a run of tests; others than that a test ended say nothing here.
#[derive(Deserialize)]
struct Event {
    event: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    reason: Option<String>,
}

impl Event {
    /// The name of the test, without that of its program; none if it is about all of them.
    fn test(&self) -> Option<&str> {
        Some(self.name.split_once('$')?.1)
    }
}

impl<'c> Trial<'c> {
    pub const fn new(copy: &'c WorkspaceCopy, environment: Vec<(&'static str, OsString)>) -> Self {
        Self { copy, environment }
    }

    /// Runs tests on what was not changed: all of them must be there, and pass.
    pub fn must_pass(&self, tests: &BTreeSet<&str>) -> Result<()> {
        let tests: Vec<_> = tests.iter().copied().collect();
        let (code, events) = self.nextest(&tests, &["--no-fail-fast"])?;
        let (words, said) = (self.words(), self.events());
        let with = |event: &str| -> BTreeSet<_> {
            events.iter().filter(|found| found.event == event).filter_map(Event::test).collect()
        };
        let (passed, failed) = (with("ok"), with("failed"));
        if !failed.is_empty() {
            let names: Vec<_> = failed.into_iter().collect();
            return Err(Failure::Failed(format!(
                "fails without any mutant: {} (see {})",
                names.join(", "),
                said.display()
            )));
        }
        if code == BUILD_FAILED {
            return Err(Failure::Failed(format!("the tests cannot be built: see {}", words.display())));
        }
        if code == PASSED || code == NO_TESTS {
            let missing: Vec<_> = tests.into_iter().filter(|test| !passed.contains(test)).collect();
            return match missing[..] {
                [] => Ok(()),
                _ => Err(Failure::Failed(format!("no such test is run: {}", missing.join(", ")))),
            };
        }
        Err(self.odd(code))
    }

    /// Runs tests on what was changed, until one fails.
    pub fn outcome(&self, tests: &[&str]) -> Result<Outcome> {
        // Those that are under way then are ended: they would be waited for.
        let (code, events) = self.nextest(tests, &["--max-fail=1:immediate"])?;
        judged(code, &events).ok_or_else(|| self.odd(code))
    }

    /// Runs these tests and no others, with their words in files.
    fn nextest(&self, tests: &[&str], how: &[&str]) -> Result<(i32, Vec<Event>)> {
        let (words, said) = (self.words(), self.events());
        let file = |path: &PathBuf| File::create(path).or_cannot(|| format!("write {}", path.display()));
        let filter: Vec<_> = tests.iter().map(|test| format!("test(={test})")).collect();
        let mut command =
            cargo(&["nextest", "run", "--package=posthaste", "--all-features", "--test=conformance"]);
        command.args(["--message-format=libtest-json", "--filterset", &filter.join(" | ")]).args(how);
        command.current_dir(self.copy.tree()).env("CARGO_TARGET_DIR", self.copy.home().join("target"));
        command.env("NEXTEST_EXPERIMENTAL_LIBTEST_JSON", "1");
        // Nobody reads where a mutant panicked, and without it the programs are linked in half the time.
        command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_INCREMENTAL", "1").env("RUST_BACKTRACE", "0");
        command.envs(self.environment.iter().cloned()).stdout(file(&said)?).stderr(file(&words)?);
        let status = interrupt::wait(&mut command)?;
        let events = fs::read_to_string(&said).or_cannot(|| format!("read {}", said.display()))?;
        Ok((status.code().unwrap_or(-1), events_of(&events)?))
    }

    /// Keeps what was said of a mutant, for whoever wants to know why it lives.
    pub fn keep_words_of(&self, name: &str) -> Result<PathBuf> {
        let kept = self.copy.home().join(format!("{name}.txt"));
        let mut text = fs::read(self.words()).or_cannot(|| "read what was said".to_owned())?;
        text.extend(fs::read(self.events()).or_cannot(|| "read what was said".to_owned())?);
        fs::write(&kept, text).or_cannot(|| format!("write {}", kept.display()))?;
        Ok(kept)
    }

    fn words(&self) -> PathBuf {
        self.copy.home().join("words.txt")
    }

    fn events(&self) -> PathBuf {
        self.copy.home().join("events.json")
    }

    fn odd(&self, code: i32) -> Failure {
        let words = self.words();
        Failure::CannotRun(format!("cargo nextest ended with code {code}: see {}", words.display()))
    }
}

fn events_of(text: &str) -> Result<Vec<Event>> {
    text.lines()
        .map(|line| serde_json::from_str(line).or_cannot(|| format!("understand what nextest says: {line}")))
        .collect()
}

/// The first test that failed is the one that noticed: those behind it were ended because of it.
fn judged(code: i32, events: &[Event]) -> Option<Outcome> {
    let mut failed = events.iter().filter(|event| event.event == "failed");
    match (code, failed.find_map(|event| Some((event, event.test()?)))) {
        (PASSED, None) => Some(Outcome::Survived),
        (BUILD_FAILED, None) => Some(Outcome::DoesNotCompile),
        (TESTS_FAILED, Some((event, test))) => {
            let test = test.to_owned();
            let is_late = event.reason.as_deref() == Some(TIME_LIMIT);
            Some(if is_late { Outcome::TimedOut { test } } else { Outcome::Killed { by: test } })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_test_that_fails_is_what_killed_a_mutant_and_a_late_one_proves_nothing() {
        let failed = |reason: &str| {
            format!(
                "{{\"type\":\"suite\",\"event\":\"started\",\"test_count\":2}}\n\
                 {{\"type\":\"test\",\"event\":\"ok\",\"name\":\"a::b$x::sqlite::fine\",\"exec_time\":1.5}}\n\
                 {{\"type\":\"test\",\"event\":\"failed\",\"name\":\"a::b$x::sqlite::first\"{reason}}}\n\
                 {{\"type\":\"test\",\"event\":\"failed\",\"name\":\"a::b$x::sqlite::ended\"}}\n\
                 {{\"type\":\"suite\",\"event\":\"failed\",\"passed\":1,\"failed\":2}}"
            )
        };
        let judged = |code, text: &str| judged(code, &events_of(text).unwrap());
        let first = "x::sqlite::first".to_owned();
        assert_eq!(judged(100, &failed("")), Some(Outcome::Killed { by: first.clone() }));
        let late = failed(",\"reason\":\"time limit exceeded\"");
        assert_eq!(judged(100, &late), Some(Outcome::TimedOut { test: first }));
        assert_eq!(judged(0, ""), Some(Outcome::Survived));
        assert_eq!(judged(101, ""), Some(Outcome::DoesNotCompile));
        for code in [4, 94, 96, 100, -1] {
            assert_eq!(judged(code, ""), None, "{code} is no verdict");
        }
    }
}
