//! What is shown while it runs: bars on a terminal, a line a second otherwise, nothing if a program reads it.

use std::time::Duration;

use console::Term;
use indicatif::{HumanCount, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{
    screen,
    snapshot::{Phase, Snapshot},
};
use crate::{Context, failure::Failure, output::span};

pub enum View {
    Live(Live),
    Lines(Lines),
    Silent,
}

/// A line a second.
pub struct Lines {
    next: Duration,
    is_interrupted: bool,
}

/// Bars that are drawn anew in their place.
pub struct Live {
    title: String,
    term: Term,
    multi: MultiProgress,
    lines: Vec<ProgressBar>,
}

impl View {
    pub fn new(title: String, context: &Context) -> Self {
        if context.out.json {
            return Self::Silent;
        }
        let multi = MultiProgress::with_draw_target(ProgressDrawTarget::stdout());
        if multi.is_hidden() {
            return Self::Lines(Lines { next: Duration::from_secs(1), is_interrupted: false });
        }
        Self::Live(Live { title, term: Term::stdout(), multi, lines: Vec::new() })
    }

    pub fn show(&mut self, snapshot: &Snapshot, context: &Context) -> Result<(), Failure> {
        match self {
            Self::Live(live) => live.show(snapshot),
            Self::Lines(lines) => lines.show(snapshot, context)?,
            Self::Silent => {}
        }
        Ok(())
    }

    /// Leaves what was shown last where it is.
    pub fn end(&mut self) {
        if let Self::Live(live) = self
            && !live.lines.is_empty()
        {
            live.lines.iter().for_each(ProgressBar::abandon);
            // The cursor stays behind the last of them.
            live.lines.clear();
            live.term.write_line("").ok();
        }
    }
}

impl Live {
    fn show(&mut self, snapshot: &Snapshot) {
        // A character in the last column would make some terminals go to the next line.
        let width = usize::from(self.term.size().1).saturating_sub(1).max(1);
        let lines = screen::lines(&self.title, snapshot, width);
        while self.lines.len() < lines.len() {
            let line = self.multi.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{msg}") {
                line.set_style(style);
            }
            self.lines.push(line);
        }
        let texts = lines.into_iter().chain(std::iter::repeat(String::new()));
        for (line, text) in self.lines.iter().zip(texts) {
            // A line with nothing in it would be left out.
            line.set_message(if text.is_empty() { " ".to_owned() } else { text });
        }
    }
}

impl Lines {
    fn show(&mut self, snapshot: &Snapshot, context: &Context) -> Result<(), Failure> {
        if snapshot.phase == Phase::Interrupted && !self.is_interrupted {
            self.is_interrupted = true;
            context.out.line("interrupted: delivering the rest; once more to end at once")?;
        }
        if snapshot.elapsed >= self.next {
            self.next = Duration::from_secs(snapshot.elapsed.as_secs() + 1);
            context.out.line(line(snapshot))?;
        }
        Ok(())
    }
}

fn line(snapshot: &Snapshot) -> String {
    let mut line = format!(
        "{:>3}s  {} enqueued, {} delivered, {:.0} a second, lag {}, oldest {}, dead letters {}",
        snapshot.elapsed.as_secs(),
        HumanCount(snapshot.enqueued),
        HumanCount(snapshot.delivered),
        snapshot.rate,
        HumanCount(snapshot.lag()),
        snapshot.oldest().map_or_else(|| "-".to_owned(), span),
        HumanCount(snapshot.dead_letters),
    );
    if let Some(kills) = snapshot.kills {
        line.push_str(&format!(", kills {kills}"));
    }
    line
}
