//! Gathering what is known of an episode: what its processes wrote down, what lies in the test's own tables, and the dead letters, which
//! the outbox is asked for as anybody may.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::Path,
};

use anyhow::{Context, Result};
use posthaste::{DeadLetterFilter, Outbox, Tables};
use sqlx::Pool;

use crate::{
    content::{Mode, Shape, digest, name_of},
    database::Ground,
    history::{self, Line, Noticed},
    judge::{Complaint, DeadLetter, Evidence, Fault, Where},
};

/// The fault that a process was paused.
pub const PAUSE: &str = "a pause";

/// Reads all that is known of an episode.
pub async fn gather<DB: Ground>(
    pool: &Pool<DB>,
    tables: &Tables,
    folder: &Path,
    shape: &Shape,
    leases: HashMap<u32, u64>,
    faults: Vec<Fault>,
    has_one_writer: bool,
) -> Result<Evidence> {
    let mut evidence = Evidence {
        shape: shape.clone(),
        ledger: DB::read_ledger(pool).await?,
        produced: Vec::new(),
        handled: Vec::new(),
        effects: DB::read_effects(pool).await?,
        // Where nothing is ever rejected, the outbox may be another, which has no tables to ask.
        dead: if shape.is_plain { Vec::new() } else { dead_letters(pool, tables).await? },
        rejected: HashSet::new(),
        leases,
        abandoned: HashSet::new(),
        faults,
        complaints: Vec::new(),
        slow_batches: 0,
        starved: 0,
    };
    // While it lasts there is a line again and again: the last one says most.
    let (mut slow, mut held) = (Lasting::new(), Lasting::new());
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "history") {
            continue;
        }
        for line in history::read(&path)? {
            match line {
                Line::Handled(handling) => evidence.handled.push(handling),
                Line::Produced(produced) => evidence.produced.push(produced),
                Line::Rejected { process, call, name } => {
                    evidence.rejected.insert((process, call, name));
                }
                Line::Abandoned { process, call } => {
                    evidence.abandoned.insert((process, call));
                }
                Line::Refused { producer, from, until, why } => {
                    let what = format!("producer {producer} could not enqueue: {why}");
                    evidence.complaints.push(Complaint { from, until, what });
                }
                Line::Starved(starved) => {
                    let mut fault = noticed("a process that was not given the processor", &starved);
                    if is_paused(&evidence.faults, &starved) {
                        // Then the pause says who has to wait for it.
                        fault.others_since = Some(starved.from);
                    } else {
                        evidence.starved += 1;
                    }
                    evidence.faults.push(fault);
                }
                Line::Slow(Noticed { process, place, from, until }) => {
                    let last = slow.entry((process, place, from)).or_default();
                    *last = until.max(*last);
                }
                Line::Held(Noticed { process, place, from, until }) => {
                    let last = held.entry((process, place, from)).or_default();
                    *last = until.max(*last);
                }
                Line::KilledAt(_) | Line::Ready => {}
            }
        }
    }
    for ((process, place, from), until) in slow {
        evidence.slow_batches += 1;
        let slow = Noticed { process, place, from, until };
        // Nobody has to wait for it when its lease is over, unless it has the partition in a transaction.
        let until = match place {
            Some((Mode::Leased, _)) => {
                until.min(from + evidence.leases.get(&process).copied().unwrap_or_default())
            }
            _ => until,
        };
        let own = Noticed { until, ..slow };
        evidence.faults.push(noticed("a batch that took longer than its handler had", &own));
        if has_one_writer {
            // It waited for its turn to write, as everybody does then; but nobody else has its duplicates.
            let waiting = noticed("more to write than one writer can", &slow);
            evidence.faults.push(Fault { process: None, place: None, explains: false, ..waiting });
        }
    }
    for ((process, place, from), until) in held {
        // Whose settlement had to wait for it for too long has noticed that itself.
        let held = noticed("a handler that took long", &Noticed { process, place, from, until });
        let fault = Fault { explains: false, ..held };
        let is_transaction = place.is_none_or(|(mode, _)| mode == Mode::Transactional);
        evidence.faults.push(if has_one_writer && is_transaction {
            Fault { process: None, place: None, ..fault }
        } else {
            fault
        });
    }
    Ok(evidence)
}

/// Of which process, where, since when; and until when at least.
type Lasting = BTreeMap<(u32, Option<Where>, u64), u64>;

/// What nobody did, but a process noticed: it explains what comes again, and nothing has to recover from it.
fn noticed(what: &'static str, noticed: &Noticed) -> Fault {
    let Noticed { process, place, from, until } = *noticed;
    Fault { place, is_own: true, recovery: 0, ..Fault::of_one(what, process, 0, from, until) }
}

/// Whether somebody did it on purpose.
fn is_paused(faults: &[Fault], starved: &Noticed) -> bool {
    let is_of = |fault: &&Fault| fault.what == PAUSE && fault.process == Some(starved.process);
    faults.iter().filter(is_of).any(|pause| pause.from <= starved.until && pause.until >= starved.from)
}

async fn dead_letters<DB: Ground>(pool: &Pool<DB>, tables: &Tables) -> Result<Vec<DeadLetter>> {
    let outbox = Outbox::connect_with(pool.clone(), tables).await?;
    let mut dead = Vec::new();
    let mut filter = DeadLetterFilter::default().limit(1000);
    loop {
        let page = outbox.dead_letter_list(pool, &filter).await?;
        let Some(last) = page.last() else { break };
        filter = filter.after(last.id);
        for letter in &page {
            let headers = letter.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
            let key = letter.key.as_deref();
            dead.push(DeadLetter {
                mode: Mode::of_queue(&letter.queue).with_context(|| format!("a queue {:?}", letter.queue))?,
                partition: letter.partition,
                seq: letter.seq,
                id: letter.id.0,
                name: name_of(&letter.payload),
                digest: digest(&letter.queue, &letter.payload_type, key, headers, &letter.payload),
                call: call_of(&letter.reason),
            });
        }
    }
    outbox.close().await;
    Ok(dead)
}

/// Which call rejected it: a reason begins with its process and its number.
fn call_of(reason: &str) -> Option<(u32, u64)> {
    let (process, call) = reason.split_once(' ')?.0.split_once('.')?;
    Some((process.parse().ok()?, call.parse().ok()?))
}
