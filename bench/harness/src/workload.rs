//! What is sent, by how many, and what is done with it: the same for every system.

use std::time::Duration;

use clap::ValueEnum;

/// Loads that differ in what they show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 8 producers, 100 messages a transaction, delivered meanwhile
    Batch,
    /// 16 producers, one message a transaction, delivered meanwhile
    Single,
    /// 200 transactions a second, whether or not the ones before were delivered
    Latency,
    /// Messages that wait before the first worker starts, then drained
    Backlog,
    /// As backlog, through handlers that insert a row for each message in the transaction that settles it
    Transactional,
    /// As batch, while a session pins the snapshot horizon (PostgreSQL)
    Held,
    /// As batch, with the workers in four processes of their own
    Processes,
    /// As backlog, of several sizes
    Scale,
    /// As batch, with payloads of 16 KiB
    Payload,
    /// One message at a time in an idle system, from the process of the workers
    Wake,
    /// As wake, from transactions that stay open for 1.2 s after their enqueue
    WakeOpen,
    /// As wake, from another process
    WakeProcess,
    /// As wake, from another process, behind a transaction pooler (PostgreSQL)
    WakePooler,
}

/// The numbers of a workload.
#[derive(Debug, Clone, PartialEq)]
pub struct Load {
    pub producers: u32,
    pub per_transaction: u32,
    pub messages: u64,
    pub partitions: u32,
    pub payload_bytes: usize,
    /// Transactions a second of all producers together; none is as fast as they can.
    pub rate: Option<f64>,
    /// How long a transaction stays open after its enqueue, if it does not commit at once.
    pub open_for: Option<Duration>,
    /// The shortest pause of a producer between two transactions, in which the system becomes idle.
    pub idle: Option<Duration>,
    /// All is sent before the first worker starts.
    pub waiting: bool,
    pub transactional: bool,
    pub horizon_pinned: bool,
    /// All connections are those of a transaction pooler.
    pub pooled: bool,
    /// Processes that deliver; 0 is the one that sends.
    pub worker_processes: u32,
}

impl Workload {
    pub fn load(self) -> Load {
        let batch = Load {
            producers: 8,
            per_transaction: 100,
            messages: 100_000,
            partitions: 16,
            payload_bytes: 200,
            rate: None,
            open_for: None,
            idle: None,
            waiting: false,
            transactional: false,
            horizon_pinned: false,
            pooled: false,
            worker_processes: 0,
        };
        let wake = Load {
            producers: 1,
            per_transaction: 1,
            messages: 200,
            idle: Some(Duration::from_millis(50)),
            ..batch
        };
        match self {
            Self::Batch => batch,
            Self::Single => Load { producers: 16, per_transaction: 1, messages: 30_000, ..batch },
            Self::Latency => Load { per_transaction: 1, messages: 2_000, rate: Some(200.0), ..batch },
            Self::Backlog | Self::Scale => Load { messages: 200_000, waiting: true, ..batch },
            Self::Transactional => Load { messages: 200_000, waiting: true, transactional: true, ..batch },
            Self::Held => Load { horizon_pinned: true, ..batch },
            Self::Processes => Load { worker_processes: 4, ..batch },
            Self::Payload => {
                Load { messages: 10_000, per_transaction: 10, payload_bytes: 16 * 1024, ..batch }
            }
            Self::Wake => wake,
            Self::WakeOpen => Load { messages: 100, open_for: Some(Duration::from_millis(1_200)), ..wake },
            Self::WakeProcess => Load { worker_processes: 1, ..wake },
            Self::WakePooler => Load { pooled: true, worker_processes: 1, ..wake },
        }
    }

    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

impl Load {
    /// How many messages this producer sends: all of them together send what is asked for, to the last one.
    pub fn share_of(&self, producer: u32) -> u64 {
        let producers = u64::from(self.producers);
        self.messages / producers + u64::from(u64::from(producer) < self.messages % producers)
    }

    /// How long a producer pauses before this message: from the shortest pause to seven times as long, so that the polls of a
    /// system and the messages do not fall into step.
    pub fn pause_before(&self, number: u64) -> Option<Duration> {
        let steps = u32::try_from(number * 37 % 100).unwrap_or_default();
        self.idle.map(|idle| idle + idle * 6 * steps / 100)
    }

    /// The partition of a producer's message: each goes round all partitions, and no two in step.
    pub fn partition(&self, producer: u32, number: u64) -> u32 {
        let partitions = u64::from(self.partitions);
        u32::try_from((u64::from(producer) + number) % partitions).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_the_shortest_and_seven_times_as_long() {
        let load = Workload::Wake.load();
        let pauses: Vec<_> = (0..100).filter_map(|number| load.pause_before(number)).collect();
        let idle = load.idle.expect("it is idle in between");
        assert_eq!(pauses.iter().min(), Some(&idle));
        assert!(pauses.len() == 100 && pauses.iter().all(|pause| *pause < idle * 7));
        assert_eq!(Workload::Batch.load().pause_before(7), None);
    }

    #[test]
    fn the_producers_shares_are_the_whole_load() {
        for messages in [1, 7, 100, 30_001] {
            let load = Load { messages, ..Workload::Single.load() };
            assert_eq!((0..load.producers).map(|producer| load.share_of(producer)).sum::<u64>(), messages);
        }
    }
}
