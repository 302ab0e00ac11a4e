//! Ctrl-C and its like: the command under way is ended, and everything is cleaned up on the way out.
//!
//! A signal never ends this process by itself. It is passed on to the commands that are running, which makes their
//! `wait` return; the ordinary return path then drops the servers and their folder.

use std::{
    process::{Child, Command, ExitStatus},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::failure::{Context, Failure, Result};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// From now on, signals are passed on instead of ending this process.
pub fn listen() -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).or_cannot(|| "listen for signals".to_owned())?;
    thread::spawn(move || {
        for signal in signals.forever() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            for pid in RUNNING.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                send(*pid, Signal::try_from(signal).unwrap_or(Signal::SIGTERM));
            }
        }
    });
    Ok(())
}

/// An error once somebody has asked this process to end.
pub fn check() -> Result<()> {
    if INTERRUPTED.load(Ordering::SeqCst) { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Sends a signal to a process that this one started; it may have ended already.
pub fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid) {
        kill(Pid::from_raw(pid), signal).ok();
    }
}

/// Runs a command to its end; a signal to this process reaches it too.
pub fn wait(command: &mut Command) -> Result<ExitStatus> {
    check()?;
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.spawn().or_cannot(|| format!("run {name}"))?;
    wait_for(child, &name)
}

fn wait_for(mut child: Child, name: &str) -> Result<ExitStatus> {
    let pid = child.id();
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).push(pid);
    // A signal that came before the line above was not passed on.
    if INTERRUPTED.load(Ordering::SeqCst) {
        send(pid, Signal::SIGTERM);
    }
    let status = child.wait().or_cannot(|| format!("wait for {name}"));
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).retain(|running| *running != pid);
    check()?;
    status
}
