//! `xtask mutants`, as far as that takes no time: which mutants there are.

use crate::command::World;

fn listed(world: &World, arguments: &[&str]) -> String {
    let output = world.xtask(&["mutants", "--list"]).args(arguments).output().expect("xtask runs");
    assert!(output.status.success(), "{output:?}");
    world.assert_nothing_is_left();
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn all_mutants_are_listed_with_what_they_break_and_for_which_tests() {
    let list = listed(&World::new(), &[]);
    for part in [
        "\nsqlite_removes_what_is_unsettled (G1, G16): Vacuum ",
        "\n    in crates/posthaste/src/store/sqlite/sql/vacuum_messages.sql\n",
        "\n    for vacuum::sqlite::g16_nothing_unsettled_is_removed\n",
        "\npostgres_sequences_in_reverse (G5): ",
        "\nmysql_sequences_in_reverse (G5): ",
    ] {
        assert!(list.contains(part), "{part:?} is not in {list}");
    }
}

#[test]
fn those_that_are_asked_for_are_listed() {
    let world = World::new();
    let names = |arguments: &[&str]| -> Vec<String> {
        let list = listed(&world, arguments);
        let heads = list.lines().filter(|line| !line.starts_with(' '));
        heads.filter_map(|line| Some(line.split_once(' ')?.0.to_owned())).collect()
    };
    assert_eq!(names(&["--only", "tries_never_add_up"]), ["tries_never_add_up"]);
    let on_sqlite = names(&["--db", "sqlite"]);
    assert!(on_sqlite.contains(&"sqlite_cuts_payloads".to_owned()), "{on_sqlite:?}");
    assert!(!on_sqlite.iter().any(|name| name.starts_with("postgres") || name.starts_with("mysql")));
}
