//! Whole workers in virtual time: the clock stands still while anything can run, and jumps when nothing can.

mod backoff;
mod cancel;
mod directive;
mod limits;
mod listeners;
mod pacing;
mod panics;
mod stage;
mod task_set;
mod wake;
