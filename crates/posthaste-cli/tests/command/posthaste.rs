//! A process of the command.

use std::{
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
};

/// What to run.
pub struct Posthaste {
    command: Command,
    input: Vec<u8>,
}

/// How it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Posthaste {
    pub fn new(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
        command.args(arguments).env_remove("DATABASE_URL").env("NO_COLOR", "1");
        Self { command, input: Vec::new() }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// What it reads from standard input.
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Starts it, for tests that watch it or end it; its output can be read as it comes.
    pub fn start(mut self) -> Child {
        self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().expect("the command starts");
        // It may end without having read any of it.
        child.stdin.take().expect("a pipe").write_all(&self.input).ok();
        child
    }

    /// For tests that start it in their own way.
    pub fn into_command(self) -> Command {
        self.command
    }

    /// Runs it to its end.
    pub fn run(self) -> Ran {
        let output = self.start().wait_with_output().expect("it ends");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let code = output.status.code().expect("it was not killed");
        Ran { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs it, and it says nothing on standard error and ends well; what it printed.
    pub fn succeeds(self) -> String {
        let ran = self.run();
        assert_eq!((ran.code, &*ran.err), (0, ""), "{ran:?}");
        ran.out
    }

    /// The same, for the one object that it prints.
    pub fn json(self) -> serde_json::Value {
        let out = self.succeeds();
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Runs it, and it fails with this code and one sentence on standard error, and prints nothing else; the sentence.
    pub fn fails(self, code: i32) -> String {
        let ran = self.run();
        assert_eq!((ran.code, &*ran.out), (code, ""), "{ran:?}");
        let sentence = ran.err.strip_prefix("posthaste: ").unwrap_or_else(|| panic!("{ran:?}"));
        assert_eq!(sentence.trim_end().lines().count(), 1, "{ran:?}");
        sentence.trim_end().to_owned()
    }
}
