//! The mutants: what each changes, the promise that it breaks, and the tests that must notice.
//!
//! Each is one place in one file, changed as a slip or a well-meant simplification would change it. The tests are those that fail soonest;
//! where the code is shared, on SQLite, which is fastest.

mod mysql;
mod postgres;
mod shared;
mod sqlite;

use crate::database::Database;

pub struct Mutant {
    pub name: &'static str,
    /// What is wrong then, in one sentence.
    pub breaks: &'static str,
    /// The numbers of the guarantees that it breaks.
    pub guarantees: &'static [u8],
    pub file: &'static str,
    /// What the file says, once, and what it says instead.
    pub old: &'static str,
    pub new: &'static str,
    /// The full names of tests of the library's suite `conformance`. At least one must fail.
    pub tests: &'static [&'static str],
}

pub fn all() -> impl Iterator<Item = &'static Mutant> {
    [shared::MUTANTS, sqlite::MUTANTS, postgres::MUTANTS, mysql::MUTANTS].into_iter().flatten()
}

impl Mutant {
    /// What its tests need: they are in modules of their databases' names.
    pub fn databases(&self) -> impl Iterator<Item = Database> + use<> {
        self.tests
            .iter()
            .flat_map(|test| test.split("::"))
            .filter_map(|part| Database::ALL.into_iter().find(|database| database.name() == part))
    }

    pub fn promises(&self) -> String {
        self.guarantees.iter().map(|number| format!("G{number}")).collect::<Vec<_>>().join(", ")
    }

    /// A file's text with the change; or why there is none.
    pub fn applied_to(&self, text: &str) -> Result<String, String> {
        match text.matches(self.old).count() {
            1 => Ok(text.replacen(self.old, self.new, 1)),
            n => {
                Err(format!("mutant {}: what it changes is {n} times in {}, not once", self.name, self.file))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    fn root() -> &'static Path {
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
    }

    #[test]
    fn each_mutant_still_has_the_place_that_it_changes() {
        for mutant in all() {
            let text = fs::read_to_string(root().join(mutant.file)).expect(mutant.file);
            let changed = mutant.applied_to(&text).unwrap_or_else(|why| panic!("{why}"));
            assert_ne!(changed, text, "{} changes nothing", mutant.name);
        }
    }

    #[test]
    fn each_guarantee_has_a_mutant_and_each_mutant_a_name_of_its_own() {
        let names: BTreeSet<_> = all().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), all().count());
        assert!(names.len() >= 24, "{}", names.len());
        let guarantees: BTreeSet<u8> = all().flat_map(|mutant| mutant.guarantees).copied().collect();
        assert_eq!(guarantees, (1..=16).chain([19]).collect());
        for mutant in all() {
            let is_plain = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            assert!(is_plain(mutant.name), "{}", mutant.name);
            assert!(mutant.breaks.ends_with('.') && !mutant.guarantees.is_empty(), "{}", mutant.name);
        }
    }

    #[test]
    fn mutants_are_of_production_code_and_of_every_database() {
        for mutant in all() {
            assert!(mutant.file.starts_with("crates/") && mutant.file.contains("/src/"), "{}", mutant.name);
        }
        for folder in ["postgres", "mysql", "sqlite"] {
            let of_it = all().filter(|mutant| mutant.file.contains(&format!("/store/{folder}/")));
            assert!(of_it.count() >= 4, "{folder}");
        }
    }

    fn texts(folder: PathBuf) -> String {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries
            .map(|path| if path.is_dir() { texts(path) } else { fs::read_to_string(path).unwrap() })
            .collect()
    }

    /// That they are run is seen when they are; that they are there, already here.
    #[test]
    fn each_test_is_there_and_says_which_database_it_needs() {
        let suite = texts(root().join("crates/posthaste/tests/conformance"));
        for mutant in all() {
            assert!(!mutant.tests.is_empty(), "{}", mutant.name);
            assert_eq!(mutant.databases().count(), mutant.tests.len(), "{}: a database a test", mutant.name);
            for test in mutant.tests {
                let name = test.rsplit("::").next().unwrap();
                let is_there = suite
                    .match_indices(&format!("async fn {name}"))
                    .any(|(place, found)| suite[place + found.len()..].starts_with(['(', '<']));
                assert!(is_there, "{}: no test is called {name}", mutant.name);
            }
        }
    }
}
