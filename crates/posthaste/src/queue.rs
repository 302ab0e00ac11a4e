//! Queues and their partitions.

use std::fmt;

use md5::{Digest, Md5};

use crate::{
    OutboxError,
    limits::{MAX_PARTITIONS, MAX_QUEUE_NAME},
    message::excerpt,
};

/// Refuses what is not a queue's name.
pub(crate) fn check_name(name: &str) -> Result<(), OutboxError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=MAX_QUEUE_NAME).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(OutboxError::InvalidQueueName(excerpt(name)))
}

/// The partition of `count` that a key's messages go to.
pub(crate) fn partition_of(key: &str, count: u32) -> u32 {
    let [a, b, c, d, ..] = Md5::digest(key.as_bytes()).0;
    u32::from_be_bytes([a, b, c, d]) % count
}

/// How many partitions a queue has: a power of two from 1 to 64. It never changes once the queue is registered.
///
/// A count that is not allowed does not compile in a constant:
///
/// ```
/// use posthaste::Partitions;
///
/// const ORDERS: Partitions = Partitions::of(4);
/// assert_eq!(ORDERS.count(), 4);
/// ```
///
/// ```compile_fail
/// const ODD: posthaste::Partitions = posthaste::Partitions::of(3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Partitions(u32);

impl Partitions {
    /// That many partitions.
    ///
    /// # Panics
    ///
    /// Unless `count` is a power of two from 1 to 64.
    #[must_use]
    pub const fn of(count: u32) -> Self {
        assert!(
            count.is_power_of_two() && count <= MAX_PARTITIONS,
            "Partitions: the count must be a power of two from 1 to 64",
        );
        Self(count)
    }

    /// How many.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0
    }

    /// The partition that a key's messages go to: the first four bytes of the MD5 of the key, big-endian, modulo the
    /// count. Any client can compute it; PostgreSQL and MySQL can too.
    #[must_use]
    pub fn for_key(self, key: &str) -> u32 {
        partition_of(key, self.0)
    }
}

impl fmt::Display for Partitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_powers_of_two_up_to_64_are_counts() {
        let counts = (0..=130).chain([1 << 16, 1 << 31, u32::MAX]);
        let allowed: Vec<_> =
            counts.filter(|n| std::panic::catch_unwind(|| Partitions::of(*n)).is_ok()).collect();
        assert_eq!(allowed, [1, 2, 4, 8, 16, 32, 64]);
    }

    #[test]
    fn a_key_goes_where_md5_says() {
        // md5('') = d41d8cd9…, md5('customer-7') = 0ddc4d69…, md5('Zürich') = 103a821a…
        for (key, first_four_bytes) in
            [("", 0xd41d_8cd9), ("customer-7", 0x0ddc_4d69), ("Zürich", 0x103a_821a_u32)]
        {
            for count in [1, 2, 4, 8, 16, 32, 64] {
                assert_eq!(
                    Partitions::of(count).for_key(key),
                    first_four_bytes % count,
                    "{key:?} of {count}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn a_key_always_goes_to_a_partition_that_exists(key in ".*", power in 0..=6_u32) {
            let partitions = Partitions::of(1 << power);
            prop_assert!(partitions.for_key(&key) < partitions.count());
        }
    }
}
