//! A process that is not given the processor for long may lose its leases, and it is nobody's deed.

use std::time::Duration;

use crate::{
    clock::{millis, now},
    history::{Line, Pen},
};

/// A thread that wanted to sleep for this long.
const BEAT: Duration = Duration::from_millis(20);
/// If it slept for so much longer, others may have taken over what the process had.
const STARVED: u64 = millis(100);

/// From now on, writes down when this process was not given the processor for long.
pub fn notice(process: u32, pen: Pen) {
    std::thread::spawn(move || {
        loop {
            let from = now();
            std::thread::sleep(BEAT);
            let until = now();
            if until - from > STARVED {
                pen.write(&[Line::Starved { process, from, until }]).ok();
            }
        }
    });
}
