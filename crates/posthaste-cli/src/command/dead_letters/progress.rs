//! How far a change of many dead letters is.

use indicatif::ProgressBar;

use super::verb::count;
use crate::output::note;

/// How far it is: a bar on a terminal if it takes more than one page, and a sentence if it does not come to its end.
pub struct Progress {
    bar: ProgressBar,
    verb: &'static str,
    pub done: u64,
    of: u64,
    /// The size of a page of which nobody knows whether it was done.
    cut_off: u32,
}

impl Progress {
    pub fn new(verb: &'static str, of: u64, page: u32) -> Self {
        let bar = if of > u64::from(page) { ProgressBar::new(of) } else { ProgressBar::hidden() };
        Self { bar, verb, done: 0, of, cut_off: 0 }
    }

    pub fn add(&mut self, done: u64) {
        self.done += done;
        self.bar.inc(done);
    }

    /// It ends in the midst of a page of so many.
    pub const fn cut_off(&mut self, page: u32) {
        self.cut_off = page;
    }

    pub fn end(mut self) -> u64 {
        self.of = 0;
        self.done
    }
}

/// Interrupted or failed: what was done stays done.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.of == 0 || self.done + u64::from(self.cut_off) == 0 {
            return;
        }
        let perhaps = match self.cut_off {
            0 => String::new(),
            page => format!("; perhaps the next {page} too"),
        };
        note(format_args!("{} {} of {}, then it ended{perhaps}", self.verb, self.done, count(self.of)));
    }
}
