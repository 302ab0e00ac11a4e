//! `cargo xtask test`: the gate, or with `--long` the whole suite, on every database.

mod tiers;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::Path,
    process::{Command, Stdio},
};

use clap::Args;
use serde::Deserialize;

use crate::{
    build,
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
    output::say,
    servers::Fleet,
};

#[derive(Args)]
pub struct TestOptions {
    /// Only this database; may be repeated [sqlite, postgres, mariadb, mysql]
    #[arg(long = "db", value_name = "DATABASE")]
    databases: Vec<String>,
    /// Go on, loudly, if this database cannot be had here; may be repeated
    #[arg(long, value_name = "DATABASE")]
    allow_missing: Vec<String>,
    /// Run what the gate leaves out too: torture, large volumes, all of MySQL. For releases
    #[arg(long)]
    long: bool,
    /// Print the tests that would run and those left to --long, and run none
    #[arg(long)]
    list: bool,
    /// Run only the tests whose name contains this, whichever tier they are in
    filter: Option<String>,
}

/// A filter is a part of a test's name, and nothing that nextest would take for something else.
fn check_filter(filter: &str) -> Result<()> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if !filter.is_empty() && filter.chars().all(is_name) {
        return Ok(());
    }
    Err(Failure::CannotRun(format!(
        "{filter:?} is not a part of a test's name: use letters, digits, '_' and ':'; `--list` prints the names"
    )))
}

pub fn run(options: &TestOptions) -> Result<()> {
    options.filter.as_deref().map_or(Ok(()), check_filter)?;
    let databases = Database::parse_all(&options.databases)?;
    let may_be_missing: Vec<_> =
        options.allow_missing.iter().map(|name| Database::parse(name)).collect::<Result<_>>()?;
    require_nextest()?;
    if options.list {
        return list(&Selection::new(options, &databases));
    }
    let fleet = Fleet::gather(&databases, &BTreeMap::new(), &may_be_missing)?;
    for address in &fleet.addresses {
        eprintln!("xtask: {} is {}", address.database, address.description);
    }
    for (database, why) in &fleet.missing {
        eprintln!("xtask: NOT RUN on {database}, as --allow-missing {database} allows: {why}");
    }
    let present: Vec<_> = databases.iter().copied().filter(|db| !fleet.missing.contains_key(db)).collect();
    let selection = Selection::new(options, &present);
    let environment = fleet.environment()?;

    let mut failed = Vec::new();
    let mut tests = selection.nextest("run");
    if options.long {
        tests.args(["--profile", "long"]);
    }
    let mut steps = vec![("tests", tests)];
    if options.filter.is_some() {
        eprintln!("xtask: documentation tests and examples are not run: they have no names to filter by");
    } else {
        let programs = build::programs(&[])?;
        steps.push((
            "documentation tests",
            cargo(&["test", "--quiet", "--doc", "--workspace", "--all-features"]),
        ));
        if present.contains(&Database::Sqlite) {
            steps.push(("example `orders`", example(&programs, "orders", None)));
            steps.push(("example `dead_letters`", example(&programs, "dead_letters", None)));
            let mut metrics = example(&programs, "metrics", None);
            metrics.args(["--seconds", "3"]);
            steps.push(("example `metrics`", metrics));
        }
        for address in &fleet.addresses {
            steps.push(("example `orders`", example(&programs, "orders", Some(&address.url))));
            steps.push(("example `dead_letters`", example(&programs, "dead_letters", Some(&address.url))));
            if address.database == Database::Postgres {
                // The second run finds what the first one left behind.
                for _ in 0..2 {
                    steps.push(("example `audit`", example(&programs, "audit", Some(&address.url))));
                }
            }
        }
    }
    for (what, mut command) in steps {
        // Handlers panic on purpose. A backtrace takes seconds, in which a test does nothing else, and says no more than the line.
        command.env("RUST_BACKTRACE", "0");
        if !interrupt::wait(command.envs(environment.iter().cloned()))?.success() {
            failed.push(what);
        }
    }

    let names = |databases: &[Database]| databases.iter().map(|db| db.name()).collect::<Vec<_>>().join(", ");
    let tier = if options.long { "all tests" } else { "the gate" };
    match &options.filter {
        Some(filter) => eprintln!("xtask: ran the tests called {filter:?} on {}", names(&present)),
        None => eprintln!("xtask: ran {tier} on {}", names(&present)),
    }
    for database in fleet.missing.keys() {
        eprintln!("xtask: NOT RUN on {database}, as said above");
    }
    for (rule, left) in selection.left_by_rule()? {
        eprintln!("xtask: {} tests left to --long: {} ({})", left.len(), rule.what, rule.why);
    }
    if !failed.is_empty() {
        return Err(Failure::Failed(format!("{} failed", failed.join(" and "))));
    }
    Ok(())
}

/// Which tests run.
struct Selection<'o> {
    /// Databases that are not asked for, or cannot be had.
    absent: Vec<Database>,
    takes_long: bool,
    filter: Option<&'o str>,
}

impl<'o> Selection<'o> {
    fn new(options: &'o TestOptions, present: &[Database]) -> Self {
        let absent = Database::ALL.into_iter().filter(|db| !present.contains(db)).collect();
        // A test that is named runs, whichever tier it is in.
        let takes_long = options.long || options.filter.is_some();
        Self { absent, takes_long, filter: options.filter.as_deref() }
    }

    /// The tests of the databases that are there, as far as the filter selects them.
    fn of_databases(&self) -> String {
        let named = self.filter.map_or_else(|| "all()".to_owned(), |name| format!("test(~{name})"));
        let not = self.absent.iter().map(|database| format!(" and not ({})", tiers::of(*database)));
        format!("{named}{}", not.collect::<String>())
    }

    fn filterset(&self) -> String {
        let databases = self.of_databases();
        if self.takes_long { databases } else { format!("{databases} and not ({})", tiers::long()) }
    }

    fn nextest(&self, command: &str) -> Command {
        let mut nextest = cargo(&["nextest", command, "--workspace", "--all-features"]);
        nextest.arg("--filterset").arg(self.filterset());
        nextest
    }

    /// The tests that each rule leaves out. One that several rules leave out is the first one's.
    fn left_by_rule(&self) -> Result<Vec<(&'static tiers::Rule, Vec<String>)>> {
        if self.takes_long {
            return Ok(Vec::new());
        }
        let (databases, mut seen) = (self.of_databases(), BTreeSet::new());
        tiers::LONG
            .iter()
            .map(|rule| {
                let mut left = listed(&format!("{databases} and ({})", rule.tests))?.run;
                left.retain(|name| seen.insert(name.clone()));
                Ok((rule, left))
            })
            .collect()
    }
}

/// The tests that would run, by name; then those that are left out, with the rule that leaves them out.
fn list(selection: &Selection<'_>) -> Result<()> {
    let print = |names: &[String]| names.iter().for_each(|name| say!("  {name}"));
    let Tests { run, cannot_hold } = listed(&selection.filterset())?;
    if run.is_empty() {
        return Err(Failure::Failed("no test is called so".to_owned()));
    }
    say!("runs, {} tests:", run.len());
    print(&run);
    for (rule, left) in selection.left_by_rule()? {
        say!("\nleft to --long, {} tests: {} ({}):", left.len(), rule.what, rule.why);
        print(&left);
    }
    say!("\ncannot hold on their database, {} tests (`except` in the test says why):", cannot_hold.len());
    print(&cannot_hold);
    Ok(())
}

/// What `cargo nextest list` prints for programs, as far as it is needed.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Listed {
    rust_suites: BTreeMap<String, Suite>,
}

#[derive(Deserialize)]
struct Suite {
    #[serde(default)]
    testcases: BTreeMap<String, Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Case {
    ignored: bool,
    filter_match: FilterMatch,
}

#[derive(Deserialize)]
struct FilterMatch {
    status: String,
    /// Why it does not match.
    reason: Option<String>,
}

/// The full names of the tests that a filterset selects.
struct Tests {
    run: Vec<String>,
    /// Those that are ignored because their promise cannot hold on their database.
    cannot_hold: Vec<String>,
}

fn listed(filterset: &str) -> Result<Tests> {
    let arguments =
        ["nextest", "list", "--workspace", "--all-features", "--message-format", "json", "--filterset"];
    let output = cargo(&arguments)
        .arg(filterset)
        .stderr(Stdio::inherit())
        .output()
        .or_cannot(|| "run cargo nextest".to_owned())?;
    interrupt::check()?;
    if !output.status.success() {
        return Err(Failure::Failed("listing the tests failed, as said above".to_owned()));
    }
    let listed: Listed = serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::CannotRun(format!("cargo nextest list printed no JSON: {error}")))?;
    let mut tests = Tests { run: Vec::new(), cannot_hold: Vec::new() };
    for (suite, Suite { testcases }) in &listed.rust_suites {
        for (name, case) in testcases {
            let list = match &case.filter_match {
                FilterMatch { status, .. } if status == "matches" => &mut tests.run,
                FilterMatch { reason: Some(reason), .. } if case.ignored && reason == "ignored" => {
                    &mut tests.cannot_hold
                }
                _ => continue,
            };
            list.push(format!("{suite} {name}"));
        }
    }
    Ok(tests)
}

/// The names of the tests that the gate runs, without the names of their suites.
pub fn gate_tests() -> Result<BTreeSet<String>> {
    let names = listed(&format!("not ({})", tiers::long()))?.run;
    Ok(names.iter().filter_map(|name| name.split_once(' ')).map(|(_, test)| test.to_owned()).collect())
}

fn example(programs: &Path, name: &str, url: Option<&str>) -> Command {
    let mut example = Command::new(programs.join("examples").join(name));
    example.args(url).env_remove("DATABASE_URL").stdout(Stdio::null());
    example
}

/// Cargo without the variables that describe this package. Some build scripts read them, and would run again, with all
/// that depends on them, whenever `cargo xtask` and a plain `cargo` alternate.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(arguments);
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    command
}

/// The tests need `cargo-nextest`, which is installed if it is missing.
pub fn require_nextest() -> Result<()> {
    let is_there = || {
        let version = cargo(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    if is_there() {
        return Ok(());
    }
    eprintln!("xtask: cargo-nextest is missing; installing it with cargo, which takes minutes");
    interrupt::wait(&mut cargo(&["install", "--locked", "--quiet", "cargo-nextest"]))?;
    if is_there() {
        return Ok(());
    }
    Err(Failure::CannotRun("cargo-nextest is missing: `cargo install --locked cargo-nextest`".to_owned()))
}
