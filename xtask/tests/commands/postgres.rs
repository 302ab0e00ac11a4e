//! The life of servers, shown on the one that starts fastest.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::command::{World, has_ended, refusal};

fn stdout(command: &mut Command) -> String {
    let output = command.output().expect("xtask runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// `servers run` with a command that says when it has begun, and then waits for long; and that command's pid.
fn begin_long_run(world: &World) -> (LongRun, Pid) {
    let script = "echo $$ $POSTHASTE_TEST_POSTGRES_URL; exec sleep 600";
    let mut child = world
        .xtask(&["servers", "run", "--db", "postgres", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .map(LongRun)
        .expect("xtask runs");
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    let (pid, url) = line.split_once(' ').expect("two words");
    assert!(url.starts_with("postgres://"), "{line:?}");
    assert_eq!(world.servers().len(), 1);
    (child, Pid::from_raw(pid.parse().expect("a pid")))
}

/// Ended with the test, also when that fails.
struct LongRun(Child);

impl Drop for LongRun {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            send(&self.0, Signal::SIGTERM);
            self.0.wait().ok();
        }
    }
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().try_into().expect("a pid")), signal).expect("it runs");
}

#[test]
fn up_status_down() {
    let world = World::new();
    let up = stdout(&mut world.xtask(&["servers", "up", "--db", "postgres"]));
    let url = up.split('\'').nth(1).expect("an URL in quotes");
    assert_eq!(up, format!("export POSTHASTE_TEST_POSTGRES_URL='{url}'\n"));

    let status = stdout(&mut world.xtask(&["servers", "status"]));
    assert!(status.contains("up") && status.contains(url), "{status}");
    let again = stdout(&mut world.xtask(&["servers", "up", "--db", "postgres"]));
    assert!(again.contains("already up") && again.contains(url), "{again}");
    assert_eq!(world.servers().len(), 1);

    let run = ["servers", "run", "--db", "postgres", "--", "sh", "-c", "echo $POSTHASTE_TEST_POSTGRES_URL"];
    assert_eq!(stdout(&mut world.xtask(&run)).trim(), url, "what is up is used");

    stdout(&mut world.xtask(&["servers", "down"]));
    world.assert_nothing_is_left();
    let status = stdout(&mut world.xtask(&["servers", "status"]));
    assert!(status.contains("no servers are up"), "{status}");
}

#[test]
fn a_server_that_ended_by_itself_is_reported_and_replaced() {
    let world = World::new();
    stdout(&mut world.xtask(&["servers", "up", "--db", "postgres"]));
    let pid = Pid::from_raw(world.servers()[0].try_into().unwrap());
    kill(pid, Signal::SIGQUIT).unwrap();
    while !has_ended(pid) {
        std::thread::yield_now();
    }
    let (code, line) = refusal(&mut world.xtask(&["servers", "status"]));
    assert_eq!(code, Some(1));
    assert!(line.contains("postgres ended by itself"), "{line}");

    stdout(&mut world.xtask(&["servers", "up", "--db", "postgres"]));
    assert_eq!(world.servers().len(), 1);
    stdout(&mut world.xtask(&["servers", "down"]));
    world.assert_nothing_is_left();
}

#[test]
fn a_command_finds_its_server_and_leaves_nothing_behind() {
    let world = World::new();
    let script = "touch \"$TMPDIR/rubbish\"; echo $POSTHASTE_TEST_POSTGRES_URL";
    let url = stdout(&mut world.xtask(&["servers", "run", "--db", "postgres", "--", "sh", "-c", script]));
    assert!(url.starts_with("postgres://postgres@127.0.0.1:"), "{url}");
    world.assert_nothing_is_left();
}

#[test]
fn a_command_that_fails_leaves_nothing_behind() {
    let world = World::new();
    let (code, line) = refusal(&mut world.xtask(&["servers", "run", "--db", "postgres", "--", "false"]));
    assert_eq!(code, Some(1));
    assert!(line.contains("false failed"), "{line}");
    world.assert_nothing_is_left();
}

#[test]
fn ctrl_c_and_its_like_leave_nothing_behind() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let world = World::new();
        let (mut child, _) = begin_long_run(&world);
        send(&child.0, signal);
        assert_eq!(child.0.wait().unwrap().code(), Some(130), "{signal}");
        world.assert_nothing_is_left();
    }
}

#[test]
fn ctrl_c_while_servers_start_leaves_nothing_behind() {
    // At several moments: while the cluster is made, while the server starts, and in between.
    for delay in [0, 100, 300, 600, 900] {
        let world = World::new();
        let mut command = world.xtask(&["servers", "up", "--db", "postgres"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        send(&child, Signal::SIGINT);
        match child.wait().unwrap().code() {
            // Killed before it could listen, or interrupted: either way before there was a server.
            None | Some(130) => {}
            // It was done already.
            Some(0) => drop(stdout(&mut world.xtask(&["servers", "down"]))),
            code => panic!("exit code {code:?}"),
        }
        world.assert_nothing_is_left();
    }
}

#[test]
fn kill_9_takes_the_server_along_and_the_next_run_removes_the_folder() {
    let world = World::new();
    let (mut child, orphan) = begin_long_run(&world);
    send(&child.0, Signal::SIGKILL);
    child.0.wait().unwrap();
    kill(orphan, Signal::SIGKILL).unwrap();
    let killed = Instant::now();
    while !world.servers().is_empty() {
        assert!(killed.elapsed() < Duration::from_secs(20), "the server outlives its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(world.left_behind().len(), 1);
    stdout(&mut world.xtask(&["servers", "run", "--db", "sqlite", "--", "true"]));
    world.assert_nothing_is_left();
}

#[test]
fn a_port_in_use_is_refused_and_its_owner_left_alone() {
    let world = World::new();
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = owner.local_addr().unwrap().port();
    let mut command =
        world.xtask(&["servers", "up", "--db", "postgres", "--port", &format!("postgres={port}")]);
    let (code, line) = refusal(&mut command);
    assert_eq!(code, Some(2));
    assert!(line.contains(&format!("port {port} is in use")), "{line}");
    world.assert_nothing_is_left();
}

#[test]
fn a_server_that_is_named_is_used_and_none_is_started() {
    let world = World::new();
    let named = "postgres://somebody@127.0.0.1:1/else";
    let script = "ls -A \"$TMPDIR/..\" && echo $POSTHASTE_TEST_POSTGRES_URL";
    let mut command = world.xtask(&["servers", "run", "--db", "postgres", "--", "sh", "-c", script]);
    let out = stdout(command.env("POSTHASTE_TEST_POSTGRES_URL", named));
    assert_eq!(out, format!("scratch\n{named}\n"));
    world.assert_nothing_is_left();
}

/// Standard output is a pipe that nobody reads.
fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer
}

#[test]
fn a_closed_pipe_keeps_nobody_from_their_work() {
    let world = World::new();
    assert!(
        world.xtask(&["servers", "up", "--db", "postgres"]).stdout(closed_pipe()).status().unwrap().success()
    );
    assert_eq!(world.servers().len(), 1);
    assert!(world.xtask(&["servers", "status"]).stdout(closed_pipe()).status().unwrap().success());
    assert!(world.xtask(&["servers", "down"]).stdout(closed_pipe()).status().unwrap().success());
    world.assert_nothing_is_left();
}

#[test]
fn kill_9_during_up_leaves_a_server_that_down_finds() {
    let world = World::new();
    let mut child =
        world.xtask(&["servers", "up", "--db", "postgres"]).stdout(Stdio::null()).spawn().unwrap();
    // As soon as there is a server, whether it is ready or not.
    while world.servers().iter().all(|pid| !is_server(*pid)) {
        assert!(child.try_wait().unwrap().is_none(), "it was done before a server was seen");
    }
    // It is written down right after it is started.
    let registry = world.tmp().join(format!("posthaste-servers-{}/servers.json", nix::unistd::geteuid()));
    while !registry.exists() {
        assert!(child.try_wait().unwrap().is_none(), "it was done without writing anything down");
    }
    send(&child, Signal::SIGKILL);
    child.wait().unwrap();
    stdout(&mut world.xtask(&["servers", "down"]));
    world.assert_nothing_is_left();
}

/// The server itself, not what prepares it.
fn is_server(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.windows(5).any(|part| part == b"port="))
}

#[test]
fn servers_that_a_killed_command_started_are_stopped_with_its_run() {
    let world = World::new();
    let script =
        format!("{} servers up --db postgres && echo up && exec sleep 600", env!("CARGO_BIN_EXE_xtask"));
    let mut child = world
        .xtask(&["servers", "run", "--db", "sqlite", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line == "up"));
    assert_eq!(world.servers().len(), 1);
    send(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    world.assert_nothing_is_left();
}
