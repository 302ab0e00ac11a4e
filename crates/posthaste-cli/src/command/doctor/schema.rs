//! Whether the tables are there, all of them, and fit this command: the same question on every database.

use std::time::Duration;

use posthaste::{Backend, Outbox, OutboxError};
use sqlx::Pool;

use super::{
    Patient,
    finding::{Examination, Finding},
};

pub const SCHEMA: Examination =
    Examination { code: "schema", fine: "the tables are there, and fit this command" };

/// Why tables are not examined.
pub const NO_TABLES: &str = "the tables are not there";
pub const SEE: &str = "see schema";

/// An outbox somewhere else than where we look.
pub struct Elsewhere {
    /// None where there are no schemas.
    pub schema: Option<String>,
    pub prefix: String,
}

/// How long the library may take to look at the tables: it waits for whoever has locked them, and finds out about poolers.
const PATIENCE: Duration = Duration::from_secs(8);

/// What the library says to the tables.
pub async fn fits<DB: Backend>(
    pool: &Pool<DB>,
    patient: &Patient<'_>,
) -> Result<Option<OutboxError>, sqlx::Error> {
    let connecting = Outbox::connect_with(pool.clone(), patient.tables);
    match tokio::time::timeout(PATIENCE, connecting).await {
        Ok(Ok(_)) => Ok(None),
        Ok(Err(OutboxError::Database(error))) => Err(error),
        Ok(Err(error)) => Ok(Some(error)),
        Err(late) => Err(sqlx::Error::Io(late.into())),
    }
}

/// What is wrong, given which tables are there.
pub fn findings(
    said: Option<&OutboxError>,
    expected: &[String],
    there: &[String],
    elsewhere: &[Elsewhere],
) -> Vec<Finding> {
    match said {
        Some(OutboxError::NotMigrated { found: 0, .. }) => {
            let first = expected.first().map_or("", |name| name);
            vec![Finding::problem(
                format!("the outbox's tables are not there: no {first}"),
                format!("`posthaste migrate` makes them{}", hint(elsewhere)),
            )]
        }
        Some(OutboxError::NotMigrated { found, needed }) => vec![Finding::problem(
            format!("the outbox's tables have version {found}, this command needs {needed}"),
            "run `posthaste migrate`",
        )],
        Some(OutboxError::SchemaTooNew { found, least, ours }) => vec![Finding::problem(
            format!(
                "the outbox's tables have version {found}, which needs a posthaste for version {least} or later, and this one \
                 is for {ours}"
            ),
            "install a newer posthaste, and build the services with a newer library",
        )],
        Some(OutboxError::Configuration(said)) => {
            vec![Finding::problem(said.clone(), format!("leave out --schema{}", hint(elsewhere)))]
        }
        Some(other) => {
            // What the library advises is for who writes Rust.
            let said = other.to_string();
            let said = said.split_once(": run posthaste::").map_or(&*said, |(said, _)| said);
            let advice = format!("run `posthaste migrate`, or name the right --schema{}", hint(elsewhere));
            vec![Finding::problem(said, advice)]
        }
        None => {
            let missing: Vec<_> = expected.iter().filter(|name| !there.contains(name)).cloned().collect();
            if missing.is_empty() {
                return Vec::new();
            }
            vec![Finding::problem(
                format!("{} missing, although the version says that all tables are there", listed(&missing)),
                "somebody has dropped what the outbox needs: restore it from a backup; or drop the other tables too, with what is \
                 in them, and run `posthaste migrate`",
            )]
        }
    }
}

fn hint(elsewhere: &[Elsewhere]) -> String {
    if elsewhere.is_empty() {
        return String::new();
    }
    let places = elsewhere.iter().map(|place| match &place.schema {
        Some(schema) => format!("--schema {schema} --table-prefix {}", place.prefix),
        None => format!("--table-prefix {}", place.prefix),
    });
    format!("; or did you mean {}?", places.collect::<Vec<_>>().join(", or "))
}

/// Names, as a sentence begins with them: `a is`, `a and b are`.
pub fn listed(names: &[String]) -> String {
    match names {
        [one] => format!("{one} is"),
        [first @ .., last] => format!("{} and {last} are", first.join(", ")),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_another_version_are_a_problem_that_says_what_to_do() {
        let advice =
            |error| findings(Some(&error), &["posthaste_meta".to_owned()], &[], &[])[0].advice.clone();
        assert!(advice(OutboxError::NotMigrated { found: 1, needed: 2 }).contains("posthaste migrate"));
        assert!(advice(OutboxError::SchemaTooNew { found: 9, least: 9, ours: 1 }).contains("newer"));
    }

    #[test]
    fn names_are_listed_as_people_do() {
        let names = ["a".to_owned(), "b".to_owned(), "c".to_owned()];
        assert_eq!(listed(&names), "a, b and c are");
        assert_eq!(listed(&names[..1]), "a is");
    }
}
