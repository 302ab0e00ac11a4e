//! What cannot be done is refused in one line that says what to do, with exit code 2, and nothing is left running.

use crate::command::{World, refusal};

#[track_caller]
fn refused(world: &World, command: &mut std::process::Command, telling: &[&str]) {
    let (code, line) = refusal(command);
    assert_eq!(code, Some(2), "{line}");
    for part in telling {
        assert!(line.contains(part), "{line:?} should say {part:?}");
    }
    world.assert_nothing_is_left();
}

#[test]
fn an_unknown_database() {
    let world = World::new();
    for arguments in [
        &["servers", "up", "--db", "oracle"][..],
        &["servers", "run", "--db", "oracle", "--", "true"],
        &["test", "--db", "oracle"],
        &["test", "--allow-missing", "oracle"],
        &["mutants", "--db", "oracle"],
        &["servers", "up", "--port", "oracle=1521"],
    ] {
        refused(
            &world,
            &mut world.xtask(arguments),
            &["unknown database \"oracle\"", "sqlite, postgres, mariadb, mysql"],
        );
    }
}

#[test]
fn a_filter_that_is_no_part_of_a_tests_name() {
    let world = World::new();
    for filter in ["", "--no-run", "a b", "test(/x/)"] {
        let telling = [&format!("{filter:?} is not a part of a test's name")[..], "--list"];
        refused(&world, &mut world.xtask(&["test", "--", filter]), &telling);
        refused(&world, &mut world.xtask(&["test", "--list", "--", filter]), &telling);
    }
}

/// Each removes what others abandoned, and must not take a folder that another one has just made for such.
#[test]
fn runs_that_start_at_once_leave_each_others_folders_alone() {
    let world = World::new();
    let runs: Vec<_> = (0..12)
        .map(|_| world.xtask(&["servers", "run", "--db", "sqlite", "--", "true"]).spawn().expect("it runs"))
        .collect();
    for mut run in runs {
        assert!(run.wait().expect("it ends").success());
    }
    world.assert_nothing_is_left();
}

#[test]
fn a_mutant_that_is_none_or_needs_another_database() {
    let world = World::new();
    for (arguments, why) in [
        (
            &["--only", "reason_keeps_its_nul", "--only", "no_such_mutant"][..],
            "unknown mutant \"no_such_mutant\"",
        ),
        (&["--only", "postgres_sequences_in_reverse", "--db", "sqlite"], "need another database"),
    ] {
        refused(&world, world.xtask(&["mutants"]).args(arguments), &[why]);
        refused(&world, world.xtask(&["mutants", "--list"]).args(arguments), &[why]);
    }
}

#[test]
fn a_port_that_is_none() {
    let world = World::new();
    for port in ["postgres", "postgres=", "postgres=0", "postgres=65536", "postgres=http"] {
        refused(&world, &mut world.xtask(&["servers", "up", "--port", port]), &[port, "like postgres=5433"]);
    }
}

#[test]
fn a_server_program_that_is_missing() {
    let world = World::new();
    let empty = tempfile::tempdir().unwrap();
    for (database, variable, program) in [
        ("postgres", "POSTHASTE_POSTGRES_BIN", "postgres"),
        ("mariadb", "POSTHASTE_MARIADB_BIN", "mariadbd"),
        ("mysql", "POSTHASTE_MYSQL_BIN", "mysqld"),
    ] {
        let mut command = world.xtask(&["servers", "up", "--db", database]);
        refused(&world, command.env(variable, empty.path()), &[&format!("no {program} in"), variable]);
    }
}

#[test]
fn a_server_program_that_is_too_old() {
    for (database, variable, program, says, others, telling) in [
        (
            "postgres",
            "POSTHASTE_POSTGRES_BIN",
            "postgres",
            "postgres (PostgreSQL) 12.22 (Debian 12.22-1)",
            &["initdb", "pg_isready"][..],
            ["postgres 12.22", "install 13.0 or later"],
        ),
        (
            "mariadb",
            "POSTHASTE_MARIADB_BIN",
            "mariadbd",
            "mariadbd  Ver 10.5.29-MariaDB for Linux on x86_64",
            &["mariadb-install-db"],
            ["mariadb 10.5.29", "install 10.6 or later"],
        ),
        (
            "mysql",
            "POSTHASTE_MYSQL_BIN",
            "mysqld",
            "mysqld  Ver 5.7.44 for Linux on x86_64 (MySQL Community Server (GPL))",
            &[],
            ["mysql 5.7.44", "install 8.0 or later"],
        ),
    ] {
        let world = World::new();
        let bin = world.fake_programs(program, says, others);
        let mut command = world.xtask(&["servers", "up", "--db", database]);
        refused(&world, command.env(variable, bin), &telling);
    }
}

#[test]
fn a_url_of_another_database() {
    let world = World::new();
    let mut command = world.xtask(&["servers", "run", "--db", "postgres", "--", "true"]);
    let url = "mysql://me:hush@127.0.0.1/test";
    refused(&world, command.env("POSTHASTE_TEST_POSTGRES_URL", url), &["must start with postgres://"]);
    let mut command = world.xtask(&["servers", "run", "--db", "postgres", "--", "true"]);
    let (_, line) = refusal(command.env("POSTHASTE_TEST_POSTGRES_URL", url));
    assert!(!line.contains("hush"), "a password is not for the terminal: {line}");
}

#[test]
fn a_port_for_a_server_that_is_not_started_or_the_same_port_twice() {
    let world = World::new();
    for (arguments, why) in [
        (&["--db", "postgres", "--port", "mysql=25001"][..], "no such server is started"),
        (&["--db", "sqlite", "--port", "sqlite=25001"], "no such server is started"),
        (
            &["--db", "postgres", "--port", "postgres=25001", "--port", "postgres=25002"],
            "one port of its own",
        ),
        (
            &["--db", "postgres", "--db", "mysql", "--port", "postgres=25001", "--port", "mysql=25001"],
            "one port of its own",
        ),
        (&["--db", "postgres", "--port", "postgres=80"], "port 80 is reserved"),
    ] {
        refused(&world, world.xtask(&["servers", "up"]).args(arguments), &[why]);
    }
}

#[test]
fn a_standby_of_nothing() {
    let world = World::new();
    refused(
        &world,
        &mut world.xtask(&["servers", "promote"]),
        &["no PostgreSQL is up", "servers up --db postgres"],
    );
}

#[test]
fn a_server_program_of_another_kind() {
    let world = World::new();
    let bin = world.fake_programs("mysqld", "mysqld  Ver 10.11.14-MariaDB for debian-linux-gnu", &[]);
    let mut command = world.xtask(&["servers", "up", "--db", "mysql"]);
    refused(&world, command.env("POSTHASTE_MYSQL_BIN", bin), &["does not say which version of mysql it is"]);
}

/// A program that says it is MySQL, and then fails as one would whose options have changed.
fn broken_mysql(world: &World) -> std::path::PathBuf {
    let script = "case \"$*\" in *--version*) echo \"mysqld  Ver 9.9.9 for Linux on x86_64\";; \
                  *) echo \"[ERROR] unknown option\"; exit 7;; esac";
    world.fake_program("mysqld", script)
}

#[test]
fn a_server_that_does_not_start() {
    let world = World::new();
    let mut command = world.xtask(&["servers", "up", "--db", "mysql"]);
    refused(&world, command.env("POSTHASTE_MYSQL_BIN", broken_mysql(&world)), &["[ERROR] unknown option"]);
}

#[test]
fn a_server_that_does_not_start_but_may_be_missing_is_reported_loudly() {
    let world = World::new();
    // No test has this name, so that the suite does not run itself: what is shown is that it gets that far.
    let mut command =
        world.xtask(&["test", "--db", "mysql", "--allow-missing", "mysql", "no_test_has_this_name"]);
    let output = command.env("POSTHASTE_MYSQL_BIN", broken_mysql(&world)).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("NOT RUN on mysql, as --allow-missing mysql allows"), "{stderr}");
    assert!(stderr.contains("[ERROR] unknown option"), "{stderr}");
    assert_eq!(output.status.code(), Some(1), "nothing ran, and that is not a success: {stderr}");
    world.assert_nothing_is_left();
}
