//! The line of results.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What one run of one system came to. Costs are a message's share, from the first transaction (or the start of the workers,
/// where messages wait) until what was delivered is removed from the tables.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    pub workload: String,
    pub variant: Option<String>,
    pub messages: u64,
    /// All arrived, once and in order, and were removed if the system ever does that.
    pub ok: bool,
    pub missing: u64,
    pub duplicates: u64,
    pub out_of_order: u64,
    /// Transactions that failed and were tried again by the producer.
    pub producer_errors: u64,
    /// From the first transaction, or the start of the workers, to the last arrival.
    pub per_s: f64,
    /// The same until what was delivered is gone from the tables; none if the system leaves it there.
    pub per_s_clean: Option<f64>,
    /// From commit to handler.
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub max_ms: Option<f64>,
    pub wal_bytes: f64,
    pub statements: Option<f64>,
    pub commits: Option<f64>,
    /// Where they were counted.
    pub round_trips: Option<f64>,
    pub server_cpu_us: Option<f64>,
    pub client_cpu_us: f64,
    /// Of all client processes together.
    pub peak_mb: f64,
    /// How long what was delivered stayed in the tables after the last arrival.
    pub clean_after_s: Option<f64>,
}

/// The value that this share of the sorted ones do not exceed.
pub fn percentile(sorted: &[Duration], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).map(|value| value.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let sorted: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        assert_eq!(
            (percentile(&sorted, 50), percentile(&sorted, 99), percentile(&sorted, 100)),
            (Some(100.0), Some(198.0), Some(200.0))
        );
        assert_eq!((percentile(&sorted[..1], 99), percentile(&[], 99)), (Some(1.0), None));
    }
}
