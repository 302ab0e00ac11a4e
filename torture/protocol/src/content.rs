//! What producers send. All of it follows from the seed, the producer's number and the transaction's: the ledger needs only those two, and
//! the judge works out for itself what was to be delivered.

use std::hash::{DefaultHasher, Hash, Hasher};

use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// How messages are delivered; each mode has a queue of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    Leased,
    Transactional,
}

impl Mode {
    pub const ALL: [Self; 2] = [Self::Leased, Self::Transactional];

    /// The name of its queue, which is as like the other's as names can be.
    pub const fn queue(self) -> &'static str {
        match self {
            Self::Leased => "torture.a_b",
            Self::Transactional => "torture.A_b",
        }
    }

    pub fn of_queue(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.queue() == name)
    }
}

/// What all processes of an episode know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shape {
    pub seed: u64,
    /// The queues that there are, with the number of their partitions.
    pub queues: Vec<(Mode, u32)>,
    /// Whether messages have neither keys nor headers, and none is ever rejected: not every outbox has keys, headers and dead letters that
    /// the judge could read.
    #[serde(default)]
    pub is_plain: bool,
}

/// Which message it is: of which producer's which transaction, and its place there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name {
    pub producer: u32,
    pub transaction: u64,
    pub place: u32,
}

/// A message as it is enqueued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    pub name: Name,
    pub mode: Mode,
    /// None if its key decides.
    pub partition: Option<u32>,
    pub key: Option<String>,
    pub payload_type: String,
    pub headers: Vec<(String, String)>,
    pub payload: Vec<u8>,
}

/// The most messages of a transaction.
const MOST: u32 = 150;
/// The bytes that say which message it is.
const NAME_BYTES: usize = 16;

fn mixed(parts: &[u64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    hasher.finish()
}

impl Shape {
    /// What a producer's transaction enqueues, in this order.
    pub fn transaction(&self, producer: u32, transaction: u64) -> Vec<Content> {
        let mut rng = Rng::with_seed(mixed(&[self.seed, producer.into(), transaction]));
        let count = if rng.u32(..4) == 0 { rng.u32(1..=MOST) } else { rng.u32(1..=8) };
        (0..count).map(|place| self.content(&mut rng, Name { producer, transaction, place })).collect()
    }

    fn content(&self, rng: &mut Rng, name: Name) -> Content {
        let (mode, partitions) = self.queues[rng.usize(..self.queues.len())];
        let key = (!self.is_plain && rng.u32(..4) == 0).then(|| format!("key {}", rng.u32(..20)));
        let partition = key.is_none().then(|| rng.u32(..partitions));
        let filling = match rng.u32(..200) {
            0 => rng.usize(..20_000),
            1..20 => 0,
            _ => rng.usize(..300),
        };
        let mut payload = Vec::with_capacity(NAME_BYTES + filling);
        payload.extend(name.producer.to_le_bytes());
        payload.extend(name.transaction.to_le_bytes());
        payload.extend(name.place.to_le_bytes());
        payload.extend((0..filling).map(|_| rng.u8(..)));
        let payload_type = ["order.created", "application/octet-stream", "x"][rng.usize(..3)].to_owned();
        let headers = if self.is_plain { 0 } else { rng.usize(..3) };
        let headers = (0..headers).map(|n| (format!("h{n}"), format!("ä{}", rng.u32(..)))).collect();
        Content { name, mode, partition, key, payload_type, headers, payload }
    }

    /// Whether every handler rejects it.
    pub fn is_poison(&self, name: Name) -> bool {
        let number = mixed(&[self.seed, name.producer.into(), name.transaction, name.place.into(), 1]);
        !self.is_plain && number.is_multiple_of(300)
    }
}

impl Content {
    pub fn digest(&self) -> u64 {
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        digest(self.mode.queue(), &self.payload_type, self.key.as_deref(), headers, &self.payload)
    }
}

/// A number that stands for all of a message that must arrive unchanged.
pub fn digest<'a>(
    queue: &str,
    payload_type: &str,
    key: Option<&str>,
    headers: impl Iterator<Item = (&'a str, &'a str)>,
    payload: &[u8],
) -> u64 {
    let mut hasher = DefaultHasher::new();
    (queue, payload_type, key, payload).hash(&mut hasher);
    headers.for_each(|header| header.hash(&mut hasher));
    hasher.finish()
}

/// Which message a payload says it is, if it is one of ours.
pub fn name_of(payload: &[u8]) -> Option<Name> {
    let (producer, rest) = payload.split_first_chunk()?;
    let (transaction, rest) = rest.split_first_chunk()?;
    let (place, _) = rest.split_first_chunk()?;
    Some(Name {
        producer: u32::from_le_bytes(*producer),
        transaction: u64::from_le_bytes(*transaction),
        place: u32::from_le_bytes(*place),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_follows_from_the_seed() {
        let shape = |seed| Shape {
            seed,
            queues: vec![(Mode::Leased, 3), (Mode::Transactional, 64)],
            is_plain: false,
        };
        let sent = shape(7).transaction(2, 9);
        assert_eq!(sent, shape(7).transaction(2, 9));
        assert_ne!(sent, shape(8).transaction(2, 9));
        for (place, content) in sent.iter().enumerate() {
            let name = Name { producer: 2, transaction: 9, place: u32::try_from(place).unwrap() };
            assert_eq!((content.name, name_of(&content.payload)), (name, Some(name)));
        }
        assert_eq!(name_of(b"short"), None);
    }

    #[test]
    fn digests_tell_messages_apart() {
        let sent = Shape { seed: 1, queues: vec![(Mode::Leased, 1)], is_plain: false }.transaction(1, 1);
        let content = &sent[0];
        let mut other = content.clone();
        other.mode = Mode::Transactional;
        assert_ne!(content.digest(), other.digest());
        let mut other = content.clone();
        other.payload.push(0);
        assert_ne!(content.digest(), other.digest());
        let mut other = content.clone();
        other.headers.push(("a".to_owned(), "b".to_owned()));
        assert_ne!(content.digest(), other.digest());
    }

    #[test]
    fn plain_messages_have_a_partition_and_nothing_to_be_rejected_for() {
        let shape = Shape { seed: 3, queues: vec![(Mode::Leased, 4)], is_plain: true };
        for content in (0..200).flat_map(|transaction| shape.transaction(1, transaction)) {
            assert!(content.partition.is_some_and(|partition| partition < 4));
            assert_eq!((content.key, content.headers.len()), (None, 0));
            assert!(!shape.is_poison(content.name));
        }
    }
}
