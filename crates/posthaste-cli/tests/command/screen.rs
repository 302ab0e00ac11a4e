//! What a person sees on the screen of a terminal of a given size.

use std::{
    fs::File,
    io::Read,
    process::{Child, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::pty::{OpenptyResult, Winsize, openpty};
use vt100::Parser;

use crate::posthaste::Posthaste;

/// How long something may take to be seen.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command that runs on a terminal of its own.
pub struct OnScreen {
    child: Child,
    screen: Arc<Mutex<Parser>>,
    reader: JoinHandle<()>,
}

impl OnScreen {
    /// Starts a command on a terminal of this size.
    pub fn start(posthaste: Posthaste, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let OpenptyResult { master, slave } = openpty(&size, None).expect("a terminal");
        let mut command = posthaste.into_command();
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
        let end = || Stdio::from(slave.try_clone().expect("a handle"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("the command starts");
        drop((command, slave));
        let screen = Arc::new(Mutex::new(Parser::new(rows, columns, 0)));
        let seen = Arc::clone(&screen);
        let reader = std::thread::spawn(move || {
            let (mut master, mut buffer) = (File::from(master), [0; 4096]);
            // It fails once nobody has the other end any more.
            while let Ok(read @ 1..) = master.read(&mut buffer) {
                seen.lock().expect("nobody panicked").process(&buffer[..read]);
            }
        });
        Self { child, screen, reader }
    }

    /// What is on the screen when it is as `expected`, and the same at two looks: not a frame that is being drawn.
    pub fn see(&self, what: &str, expected: impl Fn(&str) -> bool) -> vt100::Screen {
        let (began, mut before) = (Instant::now(), String::new());
        loop {
            let screen = self.screen.lock().expect("nobody panicked").screen().clone();
            // Row by row: what is as wide as the terminal is not the beginning of the next row.
            let text = screen.rows(0, screen.size().1).collect::<Vec<_>>().join("\n");
            if expected(&text) && text == before {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "never seen: {what}\n{text}");
            before = text;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its exit code, and the screen that it leaves.
    pub fn end(mut self) -> (i32, vt100::Screen) {
        let code = self.child.wait().expect("it ends").code().expect("it was not killed");
        self.reader.join().expect("it is read to the end");
        let screen = self.screen.lock().expect("nobody panicked").screen().clone();
        (code, screen)
    }
}
