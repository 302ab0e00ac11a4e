//! A message of the benchmark: who sent it, as its how-manieth, and filler.

use anyhow::{Context, Result, ensure};

use crate::workload::Load;

/// Producer, number, and how long all of it is.
const HEADER: usize = 4 + 8 + 4;

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
        payload.extend(length(load.payload_bytes.max(HEADER)));
        let filler = noise(self.number).take(load.payload_bytes.saturating_sub(HEADER).div_ceil(8));
        payload.extend(filler.flatten());
        payload.truncate(load.payload_bytes.max(HEADER));
        Outgoing { partition: load.partition(self.producer, self.number), payload }
    }

    pub fn of(payload: &[u8]) -> Result<Self> {
        let (producer, rest) = payload.split_first_chunk().context("a payload without a producer")?;
        let (number, rest) = rest.split_first_chunk().context("a payload without a number")?;
        let number = u64::from_be_bytes(*number);
        let filler = rest.strip_prefix(&length(payload.len())).context("a payload of another length")?;
        let is_whole = filler.chunks(8).zip(noise(number)).all(|(part, sent)| sent.starts_with(part));
        ensure!(is_whole, "a payload that is not the one that was sent");
        Ok(Self { producer: u32::from_be_bytes(*producer), number })
    }
}

fn length(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// Nothing that a database could compress away, and the same again for the same number.
fn noise(number: u64) -> impl Iterator<Item = [u8; 8]> {
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |noise: &u64| {
        let noise = noise ^ (noise << 13);
        let noise = noise ^ (noise >> 7);
        Some(noise ^ (noise << 17))
    };
    std::iter::successors(Some(seed), next).skip(1).map(u64::to_be_bytes)
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
        let mut changed = message.payload;
        *changed.last_mut().expect("it has bytes") ^= 1;
        assert!(Origin::of(&changed).is_err());
        changed.pop();
        assert!(Origin::of(&changed).is_err());
    }
}
