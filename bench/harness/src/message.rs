//! A message of the benchmark: who sent it, as its how-manieth, and filler.

use anyhow::{Context, Result};

use crate::workload::Load;

const HEADER: usize = 12;

/// A message to send.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub partition: u32,
    pub payload: Vec<u8>,
}

/// Where a message comes from, as its payload says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    pub producer: u32,
    /// 0, 1, 2 … of this producer.
    pub number: u64,
}

impl Origin {
    pub fn message(self, load: &Load) -> Outgoing {
        let mut payload = Vec::with_capacity(load.payload_bytes.max(HEADER));
        payload.extend(self.producer.to_be_bytes());
        payload.extend(self.number.to_be_bytes());
        // Nothing that a database could compress away.
        let mut noise = self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while payload.len() < load.payload_bytes {
            noise ^= noise << 13;
            noise ^= noise >> 7;
            noise ^= noise << 17;
            payload.extend(noise.to_be_bytes());
        }
        payload.truncate(load.payload_bytes.max(HEADER));
        Outgoing { partition: load.partition(self.producer, self.number), payload }
    }

    pub fn of(payload: &[u8]) -> Result<Self> {
        let (producer, rest) = payload.split_first_chunk().context("a payload without a producer")?;
        let (number, _) = rest.split_first_chunk().context("a payload without a number")?;
        Ok(Self { producer: u32::from_be_bytes(*producer), number: u64::from_be_bytes(*number) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn a_payload_says_where_it_comes_from_and_has_its_size() {
        let load = Workload::Batch.load();
        let origin = Origin { producer: 7, number: 12_345 };
        let message = origin.message(&load);
        assert_eq!(
            (Origin::of(&message.payload).expect("it has a header"), message.payload.len()),
            (origin, 200)
        );
    }
}
