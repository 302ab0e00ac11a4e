//! `cargo xtask mutants`: the test of the tests.
//!
//! Each mutant of the [`catalogue`] is our own code with one promise broken. It is made in a copy of the working tree, its tests are
//! run there, and one of them must fail: a mutant that nobody notices is a promise that nobody tests. First the same tests are run on
//! what was not changed, for a test that fails anyway proves nothing.

mod catalogue;
mod trial;
mod workspace_copy;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Instant,
};

use clap::Args;
use serde::Serialize;

use self::{
    catalogue::Mutant,
    trial::{Outcome, Trial},
    workspace_copy::WorkspaceCopy,
};
use crate::{
    build,
    database::Database,
    failure::{Failure, Result},
    output::say,
    servers::Fleet,
    test::{gate_tests, require_nextest},
};

#[derive(Args)]
pub struct MutantsOptions {
    /// Say which mutants there are and what each breaks, and run none
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Only this mutant; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only the mutants whose tests need no other database than these; may be repeated [sqlite, postgres, mariadb, mysql]
    #[arg(long = "db", value_name = "DATABASE")]
    databases: Vec<String>,
    /// End with one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// What became of a mutant.
#[derive(Serialize)]
struct Line {
    name: &'static str,
    guarantees: Vec<String>,
    file: &'static str,
    killed: bool,
    /// The test that failed first.
    by: Option<String>,
    /// Whether the gate runs that test, or only `cargo xtask test --long`.
    tier: Option<Tier>,
    /// Why it does not count as killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// How long building and testing took.
    seconds: u64,
}

/// Which run of the suite notices a mutant.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum Tier {
    Gate,
    Long,
}

impl Tier {
    const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate",
            Self::Long => "--long",
        }
    }
}

impl Line {
    fn new(mutant: &Mutant, outcome: Outcome, seconds: u64, gate: &BTreeSet<String>) -> Self {
        let (by, why) = match outcome {
            Outcome::Killed { by } => (Some(by), None),
            Outcome::Survived => (None, Some("it survived: all its tests pass".to_owned())),
            Outcome::TimedOut { test } => {
                (None, Some(format!("{test} took too long, which proves nothing: it may have hung anywhere")))
            }
            Outcome::DoesNotCompile => (None, Some("it does not compile".to_owned())),
        };
        let guarantees = mutant.guarantees.iter().map(|number| format!("G{number}")).collect();
        let tier = by.as_ref().map(|test| if gate.contains(test) { Tier::Gate } else { Tier::Long });
        Self {
            name: mutant.name,
            guarantees,
            file: mutant.file,
            killed: by.is_some(),
            by,
            tier,
            why,
            seconds,
        }
    }

    fn verdict(&self) -> String {
        match (&self.by, self.tier, &self.why) {
            (Some(by), tier, _) => format!("killed by {by} ({})", tier.map_or("", Tier::name)),
            (None, _, why) => format!("NOT KILLED: {}", why.as_deref().unwrap_or_default()),
        }
    }
}

pub fn run(options: &MutantsOptions) -> Result<()> {
    let mutants = selected(options)?;
    if options.list {
        list(&mutants);
        return Ok(());
    }
    require_nextest()?;
    let root = build::root();
    let copy = WorkspaceCopy::refresh(root, &home(root)?)?;
    let fleet = gather(&mutants)?;
    let trial = Trial::new(&copy, fleet.environment()?);

    let lines = try_all(&copy, &trial, &mutants, &gate_tests()?)?;
    let ok = lines.iter().all(|line| line.killed);
    if options.json {
        say!("{}", serde_json::json!({ "ok": ok, "mutants": lines }));
    } else {
        table(&lines);
    }
    if ok {
        return Ok(());
    }
    let names: Vec<_> = lines.iter().filter(|line| !line.killed).map(|line| line.name).collect();
    Err(Failure::Failed(format!("not killed: {}", names.join(", "))))
}

/// The mutants that were asked for, in the order of the catalogue.
fn selected(options: &MutantsOptions) -> Result<Vec<&'static Mutant>> {
    for name in &options.only {
        if catalogue::all().all(|mutant| mutant.name != name) {
            return Err(Failure::CannotRun(format!(
                "unknown mutant {name:?}: `cargo xtask mutants --list` says which there are"
            )));
        }
    }
    let databases = Database::parse_all(&options.databases)?;
    let mutants: Vec<_> = catalogue::all()
        .filter(|mutant| options.only.is_empty() || options.only.iter().any(|name| mutant.name == name))
        .filter(|mutant| mutant.databases().all(|database| databases.contains(&database)))
        .collect();
    if mutants.is_empty() {
        return Err(Failure::CannotRun(
            "no mutant is left: their tests need another database; name it with --db too".to_owned(),
        ));
    }
    Ok(mutants)
}

fn list(mutants: &[&Mutant]) {
    for mutant in mutants {
        say!("{} ({}): {}", mutant.name, mutant.promises(), mutant.breaks);
        say!("    in {}", mutant.file);
        for test in mutant.tests {
            say!("    for {test}");
        }
    }
}

/// Where the copy and what is built of it are kept, so that the next run builds little.
fn home(root: &Path) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    std::path::absolute(target.join("mutants"))
        .map_err(|error| Failure::CannotRun(format!("cannot tell where {} is: {error}", target.display())))
}

/// One set of servers for all of them.
fn gather(mutants: &[&Mutant]) -> Result<Fleet> {
    let databases: BTreeSet<_> = mutants.iter().flat_map(|mutant| mutant.databases()).collect();
    let databases: Vec<_> = databases.into_iter().collect();
    let fleet = Fleet::gather(&databases, &BTreeMap::new(), &[])?;
    for address in &fleet.addresses {
        eprintln!("xtask: {} is {}", address.database, address.description);
    }
    Ok(fleet)
}

fn try_all(
    copy: &WorkspaceCopy,
    trial: &Trial<'_>,
    mutants: &[&Mutant],
    gate: &BTreeSet<String>,
) -> Result<Vec<Line>> {
    let tests: BTreeSet<_> = mutants.iter().flat_map(|mutant| mutant.tests).copied().collect();
    eprint!("xtask: {} tests on what was not changed (the first build takes minutes) … ", tests.len());
    let began = Instant::now();
    trial.must_pass(&tests)?;
    eprintln!("all pass, in {} s", began.elapsed().as_secs());

    let mut lines = Vec::new();
    for (place, mutant) in mutants.iter().enumerate() {
        eprint!("[{:>2}/{}] {} ({}) … ", place + 1, mutants.len(), mutant.name, mutant.promises());
        let began = Instant::now();
        let outcome = {
            let _mutated = copy.mutate(mutant)?;
            trial.outcome(mutant.tests)?
        };
        let line = Line::new(mutant, outcome, began.elapsed().as_secs(), gate);
        eprintln!("{} in {} s", line.verdict(), line.seconds);
        if !line.killed {
            eprintln!("xtask: what was said is in {}", trial.keep_words_of(mutant.name)?.display());
        }
        lines.push(line);
    }
    Ok(lines)
}

fn table(lines: &[Line]) {
    let width = |text: fn(&Line) -> usize| lines.iter().map(text).max().unwrap_or_default();
    let (names, promises) = (width(|line| line.name.len()), width(|line| line.guarantees.join(" ").len()));
    for line in lines {
        let guarantees = line.guarantees.join(" ");
        say!("{:<names$}  {guarantees:<promises$}  {:>4} s  {}", line.name, line.seconds, line.verdict());
    }
    let killed = lines.iter().filter(|line| line.killed).count();
    say!("{killed} of {} mutants were killed", lines.len());
}
