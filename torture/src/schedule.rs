//! What is done to an episode, and when. All of it is drawn from the seed, and written down before it begins.

use anyhow::{Result, bail};
use clap::ValueEnum;
use fastrand::Rng;
use posthaste::Tables;
use serde::{Deserialize, Serialize};

use crate::{
    content::{Mode, Shape},
    proxy::{Cut, Weather},
};

/// The kinds of faults, as they are named on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum)]
pub enum Kind {
    /// Workers are killed at any moment
    Kill,
    /// Processes are killed at each kill point
    Point,
    /// Producers are killed at any moment
    Producer,
    /// Workers are paused past their lease
    Pause,
    /// Workers are stopped in good order
    Stop,
    /// Eight processes start at once
    Starters,
    /// Handlers panic, hang, block their thread past the lease and talk nonsense
    Handler,
    /// The server crashes and starts again
    Crash,
    /// The server is lost for good, and its synchronous standby takes over (PostgreSQL)
    Promote,
    /// Sessions are ended by the server
    Session,
    /// Connections are cut at their COMMIT
    Cut,
    /// The disk of the database is full for a while (needs root)
    Disk,
    /// The clock of the database jumps, by a second or by a day
    Clock,
    /// The network delays, slices, swallows and resets
    Network,
}

impl Kind {
    /// Those that have a turn to be alone: what concerns everybody at once, and pauses.
    const fn has_turns(self) -> bool {
        matches!(
            self,
            Self::Pause
                | Self::Crash
                | Self::Promote
                | Self::Session
                | Self::Cut
                | Self::Disk
                | Self::Clock
                | Self::Network
        )
    }

    /// As on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |kind| kind.get_name().to_owned())
    }

    /// Those that need a server.
    pub const fn needs_server(self) -> bool {
        matches!(self, Self::Crash | Self::Promote | Self::Session | Self::Cut | Self::Network)
    }
}

/// Something to do to an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deed {
    Kill {
        worker: usize,
    },
    KillProducer {
        producer: usize,
    },
    Pause {
        worker: usize,
        past_lease_ms: u64,
    },
    Stop {
        worker: usize,
    },
    Starters,
    Crash,
    Promote {
        /// How long the server and its standby are there together.
        both_for_ms: u64,
    },
    FillDisk {
        ms: u64,
    },
    /// From now on, the clock is so many seconds ahead of ours.
    Clock {
        ahead: i64,
    },
    Sessions {
        most: u32,
    },
    Cut {
        cut: Cut,
        count: u32,
    },
    Weather {
        weather: Weather,
        ms: u64,
    },
    Reset,
}

impl Deed {
    pub const fn kind(self) -> Kind {
        match self {
            Self::Kill { .. } => Kind::Kill,
            Self::KillProducer { .. } => Kind::Producer,
            Self::Pause { .. } => Kind::Pause,
            Self::Stop { .. } => Kind::Stop,
            Self::Starters => Kind::Starters,
            Self::Crash => Kind::Crash,
            Self::Promote { .. } => Kind::Promote,
            Self::FillDisk { .. } => Kind::Disk,
            Self::Clock { .. } => Kind::Clock,
            Self::Sessions { .. } => Kind::Session,
            Self::Cut { .. } => Kind::Cut,
            Self::Weather { .. } | Self::Reset => Kind::Network,
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Step {
    /// How long to wait before it, in milliseconds.
    pub after: u64,
    pub deed: Deed,
    /// And after it.
    pub rest: u64,
}

/// An episode: queues of its own, processes, and what is done to them.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    pub number: u32,
    /// What the settings of its processes are drawn from.
    pub seed: u64,
    /// The number of its first process: what producers send follows from theirs.
    pub first_process: u32,
    pub shape: Shape,
    pub workers: usize,
    pub producers: usize,
    /// Handlers behave badly now and then.
    pub misbehaves: bool,
    /// Processes are killed at each kill point.
    pub points: bool,
    pub steps: Vec<Step>,
}

/// How often each thing is done in an episode. What a run of a thousand kills must have at least is in these proportions.
pub const KILLS: usize = 20;
/// The suite needs 50 in two episodes, and now and then one does not come to it.
const CUTS: u32 = 30;
/// How often processes are killed at every kill point.
const POINTS_EVERY: u32 = 10;
/// How often a standby takes over; it takes seconds to make one.
const PROMOTES_EVERY: u32 = 3;

/// Long enough for the end of a worker to be over, if leases are short and it was the only one.
const CALM: u64 = 4500;
/// The same of what concerns everybody.
const CALM_OF_ALL: u64 = 5500;
/// By how much a pause is longer that is alone: others must have gone on long before it is over.
const LONG_PAUSE: u64 = 6000;
/// How often the end of an episode is so long that a partition which stands still is noticed before its workers are replaced.
const LONG_END_EVERY: u32 = 3;

impl Plan {
    /// Of its outbox's tables.
    pub fn prefix(&self) -> String {
        format!("t{}_", self.number)
    }

    pub fn tables(&self) -> Result<Tables> {
        Ok(Tables::default().prefix(&self.prefix())?)
    }

    pub fn draw(seed: u64, number: u32, modes: &[Mode], kinds: &[Kind]) -> Self {
        let mut rng = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(number.into()));
        // In turn: each mode by itself, then all of them.
        let turn = usize::try_from(number).unwrap_or_default() % (modes.len() + 1);
        let is_first = usize::try_from(number).is_ok_and(|number| number <= modes.len());
        let modes = modes.get(turn..=turn).unwrap_or(modes);
        let queues = modes.iter().map(|mode| (*mode, partitions(&mut rng))).collect();
        let shape = Shape { seed: rng.u64(..), queues, is_plain: false };
        // They take their time, so not in each.
        let points = kinds.contains(&Kind::Point) && (is_first || number.is_multiple_of(POINTS_EVERY));
        let (workers, producers) = (rng.usize(if points { 3 } else { 1 }..=4), 2);
        let mut deeds = deeds(&mut rng, workers, producers);
        if number.is_multiple_of(PROMOTES_EVERY) {
            deeds.push(Deed::Promote { both_for_ms: 300 + u64::from(number) * 97 % 1200 });
        }
        deeds.retain(|deed| kinds.contains(&deed.kind()));
        rng.shuffle(&mut deeds);
        let mut alone = [take_of(Some(Kind::Kill), &mut deeds), take_of(turn_of(number, &deeds), &mut deeds)];
        if let Some(Deed::Pause { past_lease_ms, .. }) = &mut alone[1] {
            *past_lease_ms += LONG_PAUSE;
        }
        let mut steps: Vec<Step> =
            deeds.into_iter().map(|deed| Step { after: rng.u64(30..=400), deed, rest: 0 }).collect();
        // Then one by one, so that recovery can be measured.
        let mut calm_before = CALM_OF_ALL;
        for (deed, rest) in alone.into_iter().zip([CALM, CALM_OF_ALL]) {
            steps.extend(deed.map(|deed| Step { after: calm_before, deed, rest }));
            calm_before = if deed.is_some() { 0 } else { calm_before };
        }
        if let Some(last) = steps.last_mut().filter(|_| number % LONG_END_EVERY == LONG_END_EVERY - 1) {
            last.rest += CALM_OF_ALL;
        }
        let misbehaves = kinds.contains(&Kind::Handler);
        Self { number, seed, first_process: 1, shape, workers, producers, misbehaves, points, steps }
    }

    /// Refuses one that somebody wrote who did not know what it means.
    pub fn check(&self) -> Result<()> {
        if self.workers == 0 || self.shape.queues.is_empty() {
            bail!("a plan needs workers and queues");
        }
        for step in &self.steps {
            let (place, of) = match step.deed {
                Deed::Kill { worker } | Deed::Pause { worker, .. } | Deed::Stop { worker } => {
                    (worker, self.workers)
                }
                Deed::KillProducer { producer } => (producer, self.producers),
                _ => continue,
            };
            if place >= of {
                bail!("{:?}: there are {of} of them", step.deed);
            }
        }
        Ok(())
    }
}

/// Which kind has its turn to be alone in this episode.
fn turn_of(number: u32, deeds: &[Deed]) -> Option<Kind> {
    let kinds = Kind::value_variants().iter().copied();
    let there: Vec<Kind> =
        kinds.filter(|kind| kind.has_turns() && deeds.iter().any(|deed| deed.kind() == *kind)).collect();
    let turn = usize::try_from(number).ok()?.checked_rem(there.len())?;
    there.get(turn).copied()
}

fn take_of(kind: Option<Kind>, deeds: &mut Vec<Deed>) -> Option<Deed> {
    let place = deeds.iter().position(|deed| Some(deed.kind()) == kind)?;
    Some(deeds.remove(place))
}

/// Few in most episodes, so that there is something to wait for in each.
fn partitions(rng: &mut Rng) -> u32 {
    1 << if rng.bool() { rng.u32(..4) } else { rng.u32(..=6) }
}

/// From a second to a day, either way.
fn jump(rng: &mut Rng) -> i64 {
    let most = [1, 10, 600, 86_400][rng.usize(..4)];
    let seconds = rng.i64(1..=most);
    if rng.bool() { seconds } else { -seconds }
}

fn deeds(rng: &mut Rng, workers: usize, producers: usize) -> Vec<Deed> {
    let mut deeds: Vec<Deed> = (0..KILLS).map(|_| Deed::Kill { worker: rng.usize(..workers) }).collect();
    deeds.extend((0..producers).map(|producer| Deed::KillProducer { producer }));
    for _ in 0..2 {
        deeds.push(Deed::Pause { worker: rng.usize(..workers), past_lease_ms: rng.u64(100..=1500) });
    }
    deeds.push(Deed::Stop { worker: rng.usize(..workers) });
    deeds.push(Deed::Starters);
    deeds.extend([Deed::Crash, Deed::Crash]);
    deeds.push(Deed::Clock { ahead: jump(rng) });
    deeds.push(Deed::FillDisk { ms: rng.u64(100..=2000) });
    deeds.extend((0..2).map(|_| Deed::Sessions { most: rng.u32(1..=8) }));
    let mut cuts = CUTS;
    while cuts > 0 {
        let count = rng.u32(1..=8).min(cuts);
        cuts -= count;
        deeds.push(Deed::Cut { cut: if rng.bool() { Cut::Before } else { Cut::After }, count });
    }
    let weather = [Weather::Delays(rng.u64(5..=80)), Weather::Slices, Weather::Swallows];
    deeds.push(Deed::Weather { weather: weather[rng.usize(..3)], ms: rng.u64(300..=2000) });
    deeds.push(Deed::Reset);
    deeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_follows_from_its_seed_and_has_what_was_asked_for() {
        let json = |seed, number, kinds: &[Kind]| {
            serde_json::to_string(&Plan::draw(seed, number, &Mode::ALL, kinds)).unwrap()
        };
        let all = Kind::value_variants();
        assert_eq!(json(7, 1, all), json(7, 1, all));
        assert_ne!(json(7, 1, all), json(7, 2, all));
        assert_ne!(json(7, 1, all), json(8, 1, all));
        let plan = Plan::draw(7, 0, &Mode::ALL, &[Kind::Kill]);
        assert!(plan.steps.iter().all(|step| matches!(step.deed, Deed::Kill { .. })));
        assert_eq!((plan.steps.len(), plan.points, plan.misbehaves), (KILLS, false, false));
        let modes = |number| {
            let plan = Plan::draw(7, number, &Mode::ALL, all);
            plan.shape.queues.iter().map(|(mode, _)| *mode).collect::<Vec<_>>()
        };
        assert_eq!(modes(0), [Mode::Leased]);
        assert_eq!(modes(1), [Mode::Transactional]);
        assert_eq!(modes(2), Mode::ALL);
        let cuts = |deed: &Deed| if let Deed::Cut { count, .. } = deed { *count } else { 0 };
        let plan = Plan::draw(9, 3, &Mode::ALL, all);
        plan.check().unwrap();
        assert_eq!(plan.steps.iter().map(|step| cuts(&step.deed)).sum::<u32>(), CUTS);
    }

    #[test]
    fn each_kind_that_has_turns_is_alone_in_its_own() {
        let all = Kind::value_variants();
        let alone = |number| {
            let steps = Plan::draw(7, number, &Mode::ALL, all).steps;
            let [.., kill, last] = steps.as_slice() else { panic!("few steps") };
            assert_eq!(kill.deed.kind(), Kind::Kill);
            assert!(kill.after >= CALM_OF_ALL && kill.rest >= CALM && last.rest >= CALM_OF_ALL);
            last.deed.kind()
        };
        let seen: std::collections::HashSet<_> = (0..30).map(alone).collect();
        assert_eq!(seen.len(), all.iter().filter(|kind| kind.has_turns()).count());
    }

    #[test]
    fn a_plan_that_cannot_be_is_refused() {
        let mut plan = Plan::draw(7, 0, &Mode::ALL, &[Kind::Kill]);
        plan.workers = 0;
        assert!(plan.check().is_err());
        plan.workers = 1;
        plan.steps = vec![Step { after: 0, deed: Deed::Pause { worker: 1, past_lease_ms: 1 }, rest: 0 }];
        assert!(plan.check().unwrap_err().to_string().contains("there are 1"));
    }
}
