//! Killing oneself at a kill point.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use posthaste::kill_points::{self, KillPoint};

use crate::history::{Line, Pen};

/// Those of a producer itself: before its commit is sent, and after it was answered.
pub const COMMIT_BEFORE: &str = "commit.before";
pub const COMMIT_AFTER: &str = "commit.after";

/// Where and when a process kills itself.
pub struct Fuse {
    point: String,
    left: AtomicU32,
    pen: Pen,
}

impl Fuse {
    /// If it is to: from now on it does, the `nth` time that it is there.
    pub fn light(kill_at: Option<&(String, u32)>, pen: Pen) -> Result<Option<&'static Self>> {
        let Some((point, nth)) = kill_at else { return Ok(None) };
        let is_ours = [COMMIT_BEFORE, COMMIT_AFTER].contains(&point.as_str());
        let known = KillPoint::ALL.iter().find(|known| known.name() == point);
        anyhow::ensure!(is_ours || known.is_some(), "there is no kill point {point:?}");
        let fuse = Self { point: point.clone(), left: AtomicU32::new(*nth), pen };
        // It burns as long as the process does.
        let fuse: &'static Self = Box::leak(Box::new(fuse));
        kill_points::listen(|reached| fuse.reached(reached.name()));
        Ok(Some(fuse))
    }

    pub fn reached(&self, point: &str) {
        let is_it = point == self.point && self.left.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_it {
            self.pen.write(&[Line::KilledAt(point.to_owned())]).ok();
            kill(Pid::this(), Signal::SIGKILL).ok();
        }
    }
}
