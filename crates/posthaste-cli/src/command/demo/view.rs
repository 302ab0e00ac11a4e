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

/// Whoever reads what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    Looks,
    HasSeenEnough,
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
    last: Snapshot,
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
        let last = Snapshot::default();
        Self::Live(Live { title, term: Term::stdout(), multi, lines: Vec::new(), last })
    }

    /// Whether anybody still looks; if not, nothing is shown any more.
    pub fn show(&mut self, snapshot: &Snapshot, context: &Context) -> Result<Audience, Failure> {
        let shown = match self {
            Self::Live(live) => {
                live.show(snapshot);
                Ok(())
            }
            Self::Lines(lines) => lines.show(snapshot, context),
            Self::Silent => Ok(()),
        };
        self.audience(shown)
    }

    /// Says at once that somebody interrupted it, before anything is known that is newer than what was shown last.
    pub fn interrupted(&mut self, context: &Context) -> Result<Audience, Failure> {
        let shown = match self {
            Self::Live(live) => {
                let last = Snapshot { phase: Phase::Interrupted, ..live.last.clone() };
                live.show(&last);
                Ok(())
            }
            Self::Lines(lines) => lines.interrupted(context),
            Self::Silent => Ok(()),
        };
        self.audience(shown)
    }

    fn audience(&mut self, shown: Result<(), Failure>) -> Result<Audience, Failure> {
        match shown {
            Ok(()) => Ok(Audience::Looks),
            Err(Failure::ClosedPipe) => {
                *self = Self::Silent;
                Ok(Audience::HasSeenEnough)
            }
            Err(failure) => Err(failure),
        }
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
        self.last = snapshot.clone();
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
        if snapshot.phase == Phase::Interrupted {
            self.interrupted(context)?;
        }
        if snapshot.elapsed >= self.next {
            self.next = Duration::from_secs(snapshot.elapsed.as_secs() + 1);
            context.out.line(line(snapshot))?;
        }
        Ok(())
    }

    fn interrupted(&mut self, context: &Context) -> Result<(), Failure> {
        if self.is_interrupted {
            return Ok(());
        }
        self.is_interrupted = true;
        context.out.line("interrupted: delivering the rest; once more to end at once")
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
