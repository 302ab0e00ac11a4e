//! `cargo xtask test`: the whole suite, on every database.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    process::{Command, Stdio},
};

use clap::Args;

use crate::{
    database::Database,
    failure::{Context, Failure, Result},
    interrupt,
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
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

pub fn run(options: &TestOptions) -> Result<()> {
    let databases = Database::parse_all(&options.databases)?;
    let may_be_missing: Vec<_> =
        options.allow_missing.iter().map(|name| Database::parse(name)).collect::<Result<_>>()?;
    let fleet = Fleet::gather(&databases, &BTreeMap::new(), &may_be_missing)?;
    for address in &fleet.addresses {
        eprintln!("xtask: {} is {}", address.database, address.description);
    }
    for (database, why) in &fleet.missing {
        eprintln!("xtask: NOT RUN on {database}, as --allow-missing {database} allows: {why}");
    }
    let present: Vec<_> = databases.iter().copied().filter(|db| !fleet.missing.contains_key(db)).collect();
    let absent: Vec<_> = Database::ALL.into_iter().filter(|db| !present.contains(db)).collect();
    let environment = fleet.environment()?;

    let mut failed = Vec::new();
    let filter = options.filter.as_deref();
    let tests = if has_nextest() { nextest(&absent, filter) } else { cargo_test(&absent, filter)? };
    let mut steps = vec![("tests", tests)];
    if filter.is_some() {
        eprintln!("xtask: documentation tests and examples are not run: they have no names to filter by");
    } else {
        steps.push((
            "documentation tests",
            cargo(&["test", "--quiet", "--doc", "--workspace", "--all-features"]),
        ));
        if present.contains(&Database::Sqlite) {
            steps.push(("example `orders`", example("orders", None)));
            steps.push(("example `dead_letters`", example("dead_letters", None)));
            let mut metrics = example("metrics", None);
            metrics.args(["--seconds", "3"]);
            steps.push(("example `metrics`", metrics));
        }
        for address in &fleet.addresses {
            steps.push(("example `orders`", example("orders", Some(&address.url))));
            steps.push(("example `dead_letters`", example("dead_letters", Some(&address.url))));
            if address.database == Database::Postgres {
                // The second run finds what the first one left behind.
                for _ in 0..2 {
                    steps.push(("example `audit`", example("audit", Some(&address.url))));
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
    eprintln!("xtask: ran on {}", names(&present));
    for database in fleet.missing.keys() {
        eprintln!("xtask: NOT RUN on {database}, as said above");
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::Failed(format!("{} failed", failed.join(" and ")))) }
}

fn example(name: &str, url: Option<&str>) -> Command {
    let mut example = cargo(&["run", "--quiet", "--package", "posthaste", "--example", name, "--"]);
    example.args(url).env_remove("DATABASE_URL").stdout(Stdio::null());
    example
}

/// The tests of a database are in a module of its name. What is not asked for is left out here, by name; a test whose
/// database is merely not there fails.
fn nextest(absent: &[Database], filter: Option<&str>) -> Command {
    let mut command = cargo(&["nextest", "run", "--workspace", "--all-features"]);
    let wanted: Vec<_> =
        absent.iter().map(|db| format!("not (kind(test) and test(/(^|::){db}::/))")).collect();
    if !wanted.is_empty() {
        command.arg("--filterset").arg(wanted.join(" and "));
    }
    command.args(filter);
    command
}

/// One test at a time: what is promised of an idle system is measured on one.
fn cargo_test(absent: &[Database], filter: Option<&str>) -> Result<Command> {
    let listed =
        cargo_test_with(absent, filter).arg("--list").output().or_cannot(|| "run cargo test".to_owned())?;
    interrupt::check()?;
    let found = String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.ends_with(": test"));
    if listed.status.success() && !found {
        // cargo test itself would call that a success.
        return Err(Failure::Failed(format!("no test is called {:?}", filter.unwrap_or_default())));
    }
    let mut command = cargo_test_with(absent, filter);
    command.arg("--test-threads=1");
    Ok(command)
}

fn cargo_test_with(absent: &[Database], filter: Option<&str>) -> Command {
    let mut command =
        cargo(&["test", "--workspace", "--all-features", "--lib", "--bins", "--tests", "--no-fail-fast"]);
    command.arg("--").args(filter);
    for database in absent {
        command.args(["--skip", &format!("{database}::")]);
    }
    command
}

/// Cargo, as if a person had typed it: there are build scripts that look at what a cargo around us said of our own package, and that
/// would be run again, with all that depends on them, whenever somebody else calls.
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

pub fn has_nextest() -> bool {
    cargo(&["nextest", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}
