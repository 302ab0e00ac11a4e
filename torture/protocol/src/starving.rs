//! A process that is not given the processor for long may lose its leases, and it is nobody's deed.

use std::time::Duration;

use crate::{
    clock::now,
    history::{Line, Noticed, Pen},
};

/// A thread that wanted to sleep for this long.
const BEAT: Duration = Duration::from_millis(20);
/// If it slept for so much of a lease, others may have taken over what the process had: it is what is left of one for settling.
const STARVED: u32 = 4;

/// From now on, writes down when this process, whose leases are that long, was not given the processor for long.
pub fn notice(process: u32, lease: Duration, pen: Pen) {
    let limit = u64::try_from((lease / STARVED).as_micros()).unwrap_or(u64::MAX);
    std::thread::spawn(move || {
        loop {
            let from = now();
            std::thread::sleep(BEAT);
            let until = now();
            if until - from > limit {
                pen.write(&[Line::Starved(Noticed { process, place: None, from, until })]).ok();
            }
        }
    });
}
