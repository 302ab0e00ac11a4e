//! How far a change of many dead letters is.

use indicatif::ProgressBar;

use super::verb::count;

/// How far it is: a bar on a terminal if it takes more than one page, and a sentence if it does not come to its end.
pub struct Progress {
    bar: ProgressBar,
    verb: &'static str,
    pub done: u64,
    of: u64,
}

impl Progress {
    pub fn new(verb: &'static str, of: u64, page: u32) -> Self {
        let bar = if of > u64::from(page) { ProgressBar::new(of) } else { ProgressBar::hidden() };
        Self { bar, verb, done: 0, of }
    }

    pub fn add(&mut self, done: u64) {
        self.done += done;
        self.bar.inc(done);
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
        if self.of > 0 && self.done > 0 {
            eprintln!("{} {} of {}, then it ended", self.verb, self.done, count(self.of));
        }
    }
}
