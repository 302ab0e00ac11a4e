//! Percentiles of what was measured.

/// The smallest value that so many percent of them are not above; they must be sorted. None if there are none.
pub fn percentile<T: Copy>(sorted: &[T], percent: usize) -> Option<T> {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_list() {
        let values: Vec<_> = (1..=200).collect();
        assert_eq!(
            [0, 50, 99, 100].map(|percent| percentile(&values, percent)),
            [1, 100, 198, 200].map(Some)
        );
        assert_eq!(percentile(&values[..1], 50), Some(1));
        assert_eq!(percentile::<u64>(&[], 50), None);
    }
}
