//! A process on a terminal of its own.

use std::{
    fs::File,
    io::{Read, Write},
    process::{Child, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::posthaste::Posthaste;

pub struct OnTerminal {
    child: Child,
    terminal: File,
    /// What it has shown.
    pub shown: String,
}

impl OnTerminal {
    pub fn start(command: Posthaste) -> Self {
        let pair = nix::pty::openpty(None, None).expect("a terminal");
        let side = || Stdio::from(pair.slave.try_clone().expect("its other side"));
        let mut command = command.into_command();
        let child = command.stdin(side()).stdout(side()).stderr(side()).spawn().expect("the command starts");
        Self { child, terminal: File::from(pair.master), shown: String::new() }
    }

    /// Reads what it shows until that has been shown.
    pub fn until(&mut self, text: &str) {
        let mut bytes = [0; 1024];
        while !self.shown.contains(text) {
            let read = self.terminal.read(&mut bytes).unwrap_or(0);
            assert!(read > 0, "it ended without {text:?}: {}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
    }

    pub fn types(&mut self, text: &str) {
        self.terminal.write_all(text.as_bytes()).expect("it is typed");
    }

    pub fn interrupt(&self) {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).expect("it is there");
    }

    /// Its exit code, and all that it has shown.
    pub fn ends(mut self) -> (Option<i32>, String) {
        let mut bytes = [0; 1024];
        // When nobody has its other side any more, reading is an error.
        while let Ok(read @ 1..) = self.terminal.read(&mut bytes) {
            self.shown.push_str(&String::from_utf8_lossy(&bytes[..read]));
        }
        (self.child.wait().expect("it ends").code(), self.shown)
    }
}
