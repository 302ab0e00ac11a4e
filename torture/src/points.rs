//! Which kill points can be reached by whom, on which database, in which mode.

use crate::{
    circumstances::Role,
    content::{Mode, Shape},
    kill::{COMMIT_AFTER, COMMIT_BEFORE},
};

const WORKER: [&str; 13] = [
    "vacuum.before",
    "vacuum.after",
    "dead-letter.before",
    "dead-letter.within",
    "dead-letter.after",
    "tick.before",
    "tick.after",
    "acquire.before",
    "acquire.after",
    "handler.before",
    "handler.after",
    "tick.before-commit",
    "vacuum.before-commit",
];
const LEASED: [&str; 3] = ["settle.before", "settle.after", "dead-letter.before-commit"];
const TRANSACTIONAL: [&str; 4] =
    ["transaction.begun", "transaction.kept", "transaction.before-commit", "transaction.after-commit"];
const PRODUCER: [&str; 4] = ["enqueue.before", "enqueue.after", COMMIT_BEFORE, COMMIT_AFTER];
const STARTER: [&str; 3] = ["migrate.before", "migrate.within", "migrate.after"];

/// PostgreSQL ticks, settles and removes in one statement, which is its own transaction.
const NOT_ON_POSTGRES: [&str; 4] =
    ["tick.before-commit", "vacuum.before-commit", "dead-letter.within", "dead-letter.before-commit"];

/// Those that a process of this role must be killed at.
pub fn of(role: Role, database: &str, shape: &Shape) -> impl Iterator<Item = &'static str> + use<> {
    let has = |mode| shape.queues.iter().any(|(queue, _)| *queue == mode);
    let points = match role {
        Role::Producer => PRODUCER.to_vec(),
        Role::Starter => STARTER.to_vec(),
        Role::Worker => {
            let leased = LEASED.into_iter().filter(|_| has(Mode::Leased));
            let transactional = TRANSACTIONAL.into_iter().filter(|_| has(Mode::Transactional));
            WORKER.into_iter().chain(leased).chain(transactional).collect()
        }
    };
    let is_postgres = database == "postgres";
    points.into_iter().filter(move |point| !(is_postgres && NOT_ON_POSTGRES.contains(point)))
}

/// Whether it is reached only now and then, so that its first time must do.
pub fn is_rare(point: &str) -> bool {
    ["vacuum", "dead-letter", "migrate"].iter().any(|rare| point.starts_with(rare))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use posthaste::kill_points::KillPoint;

    use super::*;

    #[test]
    fn every_kill_point_is_reached_by_somebody() {
        let shape =
            Shape { seed: 0, queues: vec![(Mode::Leased, 1), (Mode::Transactional, 1)], is_plain: false };
        let roles = [Role::Producer, Role::Starter, Role::Worker];
        let reached: BTreeSet<_> = roles.into_iter().flat_map(|role| of(role, "sqlite", &shape)).collect();
        let mut known: BTreeSet<_> = KillPoint::ALL.iter().map(|point| point.name()).collect();
        known.extend([COMMIT_BEFORE, COMMIT_AFTER]);
        assert_eq!(reached, known);
    }
}
