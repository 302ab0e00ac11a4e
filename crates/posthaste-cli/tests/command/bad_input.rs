//! What goes wrong before anything is done: one sentence, the right exit code, and no secret.

use crate::{
    ground::{Ground, Server},
    posthaste::Posthaste,
};

#[test]
fn a_file_that_is_not_there_is_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let sentence = Posthaste::new(&["status"]).in_folder(folder.path()).fails(3);
    assert!(sentence.starts_with("there is no database file posthaste.db: "), "{sentence}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_url_that_cannot_be_is_refused_without_being_repeated() {
    for url in
        ["oracle://scott:tiger@db/x", "tiger", "", "postgres://scott:tiger@db:x/y", "mysql://scott:tiger@:x"]
    {
        let sentence = Posthaste::new(&["status", "--database-url", url]).fails(2);
        assert!(sentence.starts_with("the database URL ") && !sentence.contains("tiger"), "{sentence}");
    }
}

#[test]
fn a_database_in_memory_is_refused() {
    for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite:shop?mode=memory&cache=shared"] {
        let sentence = Posthaste::new(&["migrate", "--database-url", url]).fails(2);
        assert!(sentence.ends_with("name a file"), "{sentence}");
    }
    // A file may have such a name.
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/:memory:x.db", folder.path().display());
    Posthaste::new(&["migrate", "--database-url", &url]).succeeds();
    assert!(folder.path().join(":memory:x.db").exists());
}

#[test]
fn no_secret_is_repeated_wherever_it_was_put() {
    let misplaced = "postgres://scott:tiger@db/shop";
    let nobody = "postgres://scott@127.0.0.1:1/shop";
    for (arguments, code) in [
        (&["queues", misplaced][..], 2),
        (&["peek", "orders", "-n", misplaced], 2),
        (&["status", "--database-url", "postgres://db/shop?sslmode=tiger"], 2),
        (&["status", "--database-url", "mysql://db/shop?ssl-mode=tiger"], 2),
        (&["status", "--database-url", "sqlite:shop.db?mode=tiger"], 2),
        (&["status", "-vv", "--database-url", &format!("{nobody}?pasword=tiger")], 3),
        (
            &[
                "status",
                "-vv",
                "--database-url",
                &format!("{}?pasword=tiger", nobody.replace("postgres", "mysql")),
            ],
            3,
        ),
    ] {
        let ran = Posthaste::new(arguments).run();
        assert_eq!((ran.code, &*ran.out), (code, ""), "{ran:?}");
        assert!(!ran.err.contains("tiger") && !ran.err.is_empty(), "{ran:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_variable_that_cannot_be_read_is_not_taken_for_none() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    for command in ["migrate", "status", "bench"] {
        let mut command = Posthaste::new(&[command]).in_folder(folder.path()).into_command();
        let ended =
            command.env("DATABASE_URL", std::ffi::OsStr::from_bytes(b"postgres://\xff")).output().unwrap();
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
        assert!(ended.stderr.starts_with(b"posthaste: DATABASE_URL is not UTF-8"), "{ended:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn durations_that_no_clock_counts_are_refused() {
    for arguments in [
        &["status", "--connect-timeout", "18446744073709551615s"][..],
        &["status", "--watch=2h"],
        &["tail", "orders", "--interval", "18446744073709551615s"],
    ] {
        let ran = Posthaste::new(arguments).run();
        assert_eq!(ran.code, 2, "{ran:?}");
        assert!(ran.err.contains("more than a"), "{ran:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_standard_error_that_cannot_be_written_changes_nothing() {
    for arguments in [&["status"][..], &["status", "-vv"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Posthaste::new(arguments).in_folder(folder.path()).into_command();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        assert_eq!(command.stderr(full).status().unwrap().code(), Some(3), "{arguments:?}");
    }
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn what_was_done_is_said_to_be_done_although_it_cannot_be_printed() {
    let ground = Ground::empty(Server::Sqlite).await;
    ground.register("orders", posthaste::Partitions::of(1)).await;
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let fails = |arguments: &[&str]| {
        let ended = ground.posthaste(arguments).into_command().stdout(full()).output().unwrap();
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    };
    let said = fails(&["enqueue", "orders", "x"]);
    assert!(said.starts_with("posthaste: cannot write to standard output: "), "{said}");
    assert!(said.ends_with("; what was to be done is done\n"), "{said}");
    assert_eq!(ground.count("posthaste_incoming").await, 1);
    let said = fails(&["queues"]);
    assert!(
        said.starts_with("posthaste: cannot write to standard output: ") && !said.contains("done"),
        "{said}"
    );
    ground.remove().await;
}

#[test]
fn nobody_there() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://scott:tiger@127.0.0.1:{port}/shop");
        let sentence = Posthaste::new(&["status"]).env("DATABASE_URL", &url).fails(3);
        assert!(sentence.starts_with("the database is out of reach: "), "{sentence}");
        assert!(!sentence.contains("tiger"), "{sentence}");
    }
}

#[test]
fn somebody_there_who_does_not_answer() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    for scheme in ["postgres", "mysql"] {
        let url = format!("{scheme}://scott:tiger@{}/shop", silent.local_addr().unwrap());
        let sentence =
            Posthaste::new(&["status", "--connect-timeout", "300ms"]).env("DATABASE_URL", &url).fails(3);
        assert_eq!(sentence, "the database is out of reach: no answer within 300ms");
    }
}

on_every_database!(empty: a_database_that_is_not_there, tables_of_a_later_version, a_url_is_no_queue);

async fn a_url_is_no_queue(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    for command in [&["status"][..], &["peek"], &["pause"], &["enqueue", "--partition", "0"]] {
        let misplaced = "postgres://scott:tiger@db/shop";
        let arguments = [command, &[misplaced]].concat();
        let ran = ground.posthaste(&arguments).input("x").run();
        assert_eq!((ran.code, &*ran.out), (2, ""), "{ran:?}");
        assert!(!ran.err.contains("tiger") && ran.err.contains("(a URL)"), "{ran:?}");
    }
}

async fn a_database_that_is_not_there(ground: &Ground) {
    let url = ground.url.replace("/posthaste_", "/nothing_").replace("test.db", "nothing.db");
    let sentence = ground.posthaste(&["status"]).env("DATABASE_URL", &url).fails(3);
    let expected = if ground.server == Server::Sqlite {
        "there is no database file"
    } else {
        "the database does not let us in"
    };
    assert!(sentence.starts_with(expected), "{sentence}");
}

async fn tables_of_a_later_version(ground: &Ground) {
    ground.posthaste(&["migrate"]).succeeds();
    ground.sql("UPDATE posthaste_meta SET schema_version = 900, least_library = 800").await;
    for command in [
        &["queues"][..],
        &["peek", "orders"],
        &["tail", "orders"],
        &["enqueue", "orders", "x"],
        &["dead-letters", "list"],
        &["dead-letters", "redeliver", "--all"],
        &["migrate"],
    ] {
        let sentence = ground.posthaste(command).fails(1);
        let expected =
            "the outbox's tables have version 900, which needs a posthaste for version 800 or later";
        assert!(sentence.starts_with(expected), "{command:?}: {sentence}");
    }
}

/// The same server, as somebody else. Without its parameters: MySQL takes no password over a connection for which they say no TLS.
fn as_user(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let server = rest.split_once('@').map_or(rest, |(_, server)| server);
    let server = server.split_once('?').map_or(server, |(server, _)| server);
    format!("{scheme}://{user}:{password}@{server}")
}

fn is_kept_out(ground: &Ground, user: &str) {
    let url = as_user(&ground.url, user, "tiger");
    for command in [&["queues"][..], &["tail", "orders"], &["enqueue", "orders", "x"], &["migrate"]] {
        let sentence = ground.posthaste(command).env("DATABASE_URL", &url).fails(3);
        assert!(sentence.starts_with("the database does not let us in: "), "{sentence}");
        assert!(!sentence.contains("tiger"), "{sentence}");
    }
}

/// A name for a user that nobody has, not even a test that failed.
fn new_name() -> String {
    format!("cli_{:x}", std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos())
}

async fn a_wrong_password_on(server: Server) {
    let ground = Ground::empty(server).await;
    let user = new_name();
    ground.sql(&format!("CREATE USER {user} IDENTIFIED BY 'right'")).await;
    is_kept_out(&ground, &user);
    ground.sql(&format!("DROP USER {user}")).await;
    ground.remove().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_on_mysql() {
    a_wrong_password_on(Server::Mysql).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_on_mariadb() {
    a_wrong_password_on(Server::Mariadb).await;
}

/// A server may be set up to ask nobody for a password; a role that cannot log in is kept out all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_may_not_log_in_on_postgres() {
    let ground = Ground::empty(Server::Postgres).await;
    let role = new_name();
    ground.sql(&format!("CREATE ROLE {role} NOLOGIN")).await;
    is_kept_out(&ground, &role);
    ground.sql(&format!("DROP ROLE {role}")).await;
    is_kept_out(&ground, &role);
    ground.remove().await;
}
