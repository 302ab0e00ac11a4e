//! How many messages a partition takes at once. Poison isolation is like TCP's slow start: after failures it takes smaller
//! batches, so that the guilty message soon comes alone; each success doubles them. Where it may adapt to the load, full
//! batches make what is normal larger, and nearly empty ones smaller.

/// The payloads of a batch that adapts to the load: it does not grow beyond so many bytes.
const LIGHT: usize = 4 * 1024 * 1024;

/// The batch size of one partition. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Poison {
    /// What is normal, in this range.
    configured: u32,
    least: u32,
    most: u32,
    threshold: u32,
    size: u32,
    failures: u32,
}

impl Poison {
    pub(crate) const fn new(configured: u32, threshold: u32) -> Self {
        Self { configured, least: configured, most: configured, threshold, size: configured, failures: 0 }
    }

    /// Lets it take up to so many when there is enough to take.
    pub(crate) const fn adapting(mut self, most: u32) -> Self {
        self.most = if most > self.configured { most } else { self.configured };
        self
    }

    /// How many messages to take next.
    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Retries in a row.
    pub(crate) const fn failures(&self) -> u32 {
        self.failures
    }

    /// A batch of `taken` messages, so many bytes together, succeeded.
    pub(crate) fn succeeded(&mut self, taken: usize, bytes: usize) {
        self.failures = 0;
        let taken = u32::try_from(taken).unwrap_or(u32::MAX);
        let is_light = bytes <= LIGHT / 2;
        if self.size == self.configured && taken >= self.configured && is_light {
            self.configured = self.configured.saturating_mul(2).min(self.most);
        } else if taken < self.configured / 4 || bytes > LIGHT {
            self.configured = (self.configured / 2).max(self.least);
        }
        self.size = self.size.saturating_mul(2).min(self.configured);
    }

    /// `processed` messages were done before the one that is retried.
    pub(crate) fn retried(&mut self, processed: usize) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= self.threshold {
            self.degrade(processed);
        }
    }

    /// A message was rejected.
    pub(crate) fn rejected(&mut self, processed: usize) {
        self.failures = 0;
        self.degrade(processed);
    }

    /// A message behind `sound` good ones took them down with it: next time they come without it.
    pub(crate) fn broke_behind(&mut self, sound: usize) {
        self.failures = self.failures.saturating_add(1);
        self.degrade(sound);
    }

    /// Some message of a call is to be given up: each comes alone, until it is found.
    pub(crate) fn isolate(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.degrade(0);
    }

    fn degrade(&mut self, processed: usize) {
        self.size = u32::try_from(processed).unwrap_or(u32::MAX).clamp(1, self.configured);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn it_degrades_at_the_threshold_and_doubles_back() {
        let mut poison = Poison::new(10, 2);
        poison.retried(0);
        assert_eq!((poison.size(), poison.failures()), (10, 1), "one retry is below the threshold");
        poison.retried(3);
        assert_eq!(poison.size(), 3);
        poison.retried(0);
        assert_eq!(poison.size(), 1);
        let sizes: Vec<_> = (0..5)
            .map(|_| {
                poison.succeeded(1, 1);
                poison.size()
            })
            .collect();
        assert_eq!(sizes, [2, 4, 8, 10, 10]);
        assert_eq!(poison.failures(), 0);
    }

    #[test]
    fn a_reject_degrades_at_once_and_resets_the_failures() {
        let mut poison = Poison::new(100, 3);
        poison.retried(0);
        poison.rejected(7);
        assert_eq!((poison.size(), poison.failures()), (7, 0));
        poison.rejected(0);
        assert_eq!(poison.size(), 1);
    }

    #[test]
    fn full_batches_make_it_take_more_and_nearly_empty_ones_less() {
        let mut poison = Poison::new(10, 2).adapting(100);
        let mut after = |taken| {
            poison.succeeded(taken, taken);
            poison.size()
        };
        assert_eq!([10, 20, 40, 80, 100, 200].map(&mut after), [20, 40, 80, 100, 100, 100]);
        assert_eq!([99, 25, 24, 12, 11, 3, 0].map(&mut after), [100, 100, 50, 50, 25, 12, 10]);
        poison.rejected(3);
        poison.succeeded(3, 3);
        assert_eq!(poison.size(), 6, "a small batch after a failure says nothing of the load");
    }

    #[test]
    fn heavy_messages_do_not_make_it_take_more() {
        let mut poison = Poison::new(10, 2).adapting(100);
        let mut after = |(taken, bytes)| {
            poison.succeeded(taken, bytes);
            poison.size()
        };
        let mib = 1024 * 1024;
        assert_eq!([(10, 2 * mib), (20, 3 * mib), (20, 4 * mib)].map(&mut after), [20, 20, 20]);
        assert_eq!([(20, 5 * mib), (10, 10 * mib)].map(&mut after), [10, 10], "but never less than at first");
    }

    proptest! {
        #[test]
        fn the_size_is_always_allowed(
            configured in 1..1000_u32,
            threshold in 1..5_u32,
            events in prop::collection::vec((0..5_u8, 0..2000_usize), 0..100),
        ) {
            let mut poison = Poison::new(configured, threshold);
            for (event, processed) in events {
                match event {
                    0 => poison.succeeded(processed, processed),
                    1 => poison.retried(processed),
                    2 => poison.broke_behind(processed),
                    3 => poison.isolate(),
                    _ => poison.rejected(processed),
                }
                prop_assert!((1..=configured).contains(&poison.size()));
            }
            for _ in 0..10 {
                poison.succeeded(1, 1);
            }
            prop_assert_eq!(poison, Poison::new(configured, threshold), "ten successes make it as new");
        }
    }
}
