//! The database's clock against this machine's.

use std::time::{Duration, Instant, SystemTime};

use super::finding::{Examination, Finding};

pub const CLOCK: Examination =
    Examination { code: "clock", fine: "the database's clock and this machine's agree" };

/// More than this is a finding: less is hard to tell from a slow network, and hurts nobody.
const TOLERATED: Duration = Duration::from_secs(1);

/// How often to look: the quickest answer is the one that says most.
pub const LOOKS: u32 = 3;

/// What the database's clock said, and when.
pub struct Look {
    asked: SystemTime,
    took: Duration,
    /// Seconds since 1970.
    said: f64,
}

/// Asks for the database's time, in seconds since 1970.
pub async fn look<E>(ask: impl Future<Output = Result<f64, E>>) -> Result<Look, E> {
    let (asked, began) = (SystemTime::now(), Instant::now());
    let said = ask.await?;
    Ok(Look { asked, took: began.elapsed(), said })
}

impl Look {
    /// By how many seconds the database is ahead of us, and by how many that may be wrong.
    fn difference(&self) -> (f64, f64) {
        // It looked at its clock some time between the question and the answer.
        let half = self.took.as_secs_f64() / 2.0;
        let asked = self.asked.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        (self.said - (asked + half), half)
    }
}

pub fn findings(looks: &[Look]) -> Vec<Finding> {
    let Some(best) = looks.iter().min_by_key(|look| look.took) else { return Vec::new() };
    let (ahead, error) = best.difference();
    if ahead.abs() - error <= TOLERATED.as_secs_f64() {
        return Vec::new();
    }
    let which = if ahead > 0.0 { "ahead of" } else { "behind" };
    vec![Finding::warning(
        format!("the database's clock is {:.1} s {which} this machine's", ahead.abs()),
        "let NTP look after both. Leases and ages are by the database's clock alone and are right; it is the times in the logs \
         of this machine that do not fit the rows",
    )]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(ahead: f64, took: f64) -> Vec<Finding> {
        let asked = SystemTime::now();
        let now = asked.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let took = Duration::from_secs_f64(took);
        findings(&[Look { asked, took, said: now + took.as_secs_f64() / 2.0 + ahead }])
    }

    #[test]
    fn a_clock_that_agrees_is_no_finding() {
        for (ahead, took) in [(0.0, 0.001), (0.9, 0.001), (-0.9, 0.001), (2.0, 4.0), (-2.0, 4.0)] {
            assert_eq!(found(ahead, took), [], "{ahead} {took}");
        }
    }

    #[test]
    fn a_clock_that_is_wrong_is_found_on_either_side() {
        assert!(found(30.0, 0.001)[0].summary.contains("30.0 s ahead of"));
        assert!(found(-1.5, 0.001)[0].summary.contains("1.5 s behind"));
        assert!(found(3600.0, 4.0)[0].summary.contains("ahead"), "however slow the network");
    }

    #[test]
    fn the_quickest_answer_counts() {
        let now = SystemTime::now();
        let said = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
        let slow = Look { asked: now, took: Duration::from_secs(3), said: said + 60.0 };
        let quick = Look { asked: now, took: Duration::from_millis(1), said };
        assert_eq!(findings(&[slow, quick]), []);
    }
}
