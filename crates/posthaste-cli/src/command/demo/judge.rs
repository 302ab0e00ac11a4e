//! The verdict: what the shop's books say of the outbox. It asks nobody: books in, verdict out.

use serde::Serialize;

use super::{
    ledger::{Delivery, Process},
    order::{CUSTOMERS, Order, OrderId},
};
use crate::percentile::percentile;

/// Everything that was written down, each by who knew it first hand.
#[derive(Debug, Default)]
pub struct Books {
    /// When the first order could be placed, in microseconds since 1970.
    pub began: u64,
    /// The orders in the shop's table, in the order of their ids.
    pub committed: Vec<Order>,
    /// When the commit of each returned, in microseconds since 1970, as the shop noted it. Of an order that is neither here nor
    /// rolled back nobody knows what became of it, and the table decides.
    pub committed_at: Vec<(OrderId, u64)>,
    /// As the shop noted it.
    pub rolled_back: Vec<OrderId>,
    /// In the order in which it happened.
    pub deliveries: Vec<Delivery>,
    /// How many dead letters the outbox counts.
    pub dead_letters: u64,
    /// What they are; none if it cannot be read.
    pub dead: Vec<Option<OrderId>>,
    pub kills: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub ok: bool,
    pub committed: u64,
    pub rolled_back: u64,
    /// Orders, each counted once.
    pub delivered: u64,
    /// Committed, with a good card, and not delivered; or committed, and not in the table any more.
    pub lost: u64,
    /// Delivered or dead, and not in the table; or in the table, and rolled back.
    pub phantom: u64,
    /// Delivered for the first time behind a later order of the same customer.
    pub out_of_order: u64,
    pub duplicates: u64,
    pub dead_letters: u64,
    pub per_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub kills: u64,
    /// Committed orders with a declined card: as many dead letters should there be.
    #[serde(skip)]
    pub declined: u64,
    /// Orders with a declined card that are no dead letters.
    #[serde(skip)]
    pub missing_dead_letters: u64,
    /// Dead letters that are none of those.
    #[serde(skip)]
    pub surplus_dead_letters: u64,
    /// Deliveries by the process that is killed.
    #[serde(skip)]
    pub by_second: u64,
}

/// What is known of a committed order.
struct Entry {
    order: Order,
    is_delivered: bool,
    is_dead: bool,
    committed_at: Option<u64>,
}

pub fn judge(books: &Books) -> Verdict {
    let mut entries: Vec<_> = books
        .committed
        .iter()
        .map(|order| Entry { order: *order, is_delivered: false, is_dead: false, committed_at: None })
        .collect();
    let find =
        |entries: &[Entry], id: OrderId| entries.binary_search_by_key(&id, |entry| entry.order.id).ok();
    // A database that takes back what it said was committed has lost it, even if it lost the message with it.
    let mut vanished = 0;
    for (id, at) in &books.committed_at {
        match find(&entries, *id) {
            Some(place) => entries[place].committed_at = Some(*at),
            None => vanished += 1,
        }
    }

    let (mut phantoms, mut out_of_order, mut duplicates) = (Vec::new(), 0, 0);
    let risen = books.rolled_back.iter().filter(|id| find(&entries, **id).is_some()).count() as u64;
    let mut latencies = Vec::new();
    let mut latest = vec![0; CUSTOMERS as usize];
    for Delivery { order, at, .. } in &books.deliveries {
        let Some(place) = find(&entries, *order) else {
            phantoms.push(*order);
            continue;
        };
        let entry = &mut entries[place];
        if entry.is_delivered {
            duplicates += 1;
            continue;
        }
        entry.is_delivered = true;
        latencies.extend(entry.committed_at.map(|committed| at.saturating_sub(committed)));
        if let Some(latest) = latest.get_mut(order.customer as usize) {
            out_of_order += u64::from(order.number < *latest);
            *latest = order.number.max(*latest);
        }
    }

    let (mut unreadable, mut surplus_dead_letters) = (0, 0);
    for dead in &books.dead {
        match dead.map(|id| (id, find(&entries, id))) {
            None => unreadable += 1,
            Some((id, None)) => phantoms.push(id),
            Some((_, Some(place))) => {
                let entry = &mut entries[place];
                surplus_dead_letters += u64::from(entry.is_dead || !entry.order.card_is_declined);
                entry.is_dead = true;
            }
        }
    }
    let delivered_phantoms = phantoms.len();
    phantoms.sort_unstable();
    phantoms.dedup();
    duplicates += (delivered_phantoms - phantoms.len()) as u64;

    let count = |fits: fn(&Entry) -> bool| entries.iter().filter(|entry| fits(entry)).count() as u64;
    let delivered = count(|entry| entry.is_delivered);
    let lost = vanished + count(|entry| !entry.order.card_is_declined && !entry.is_delivered);
    let declined = count(|entry| entry.order.card_is_declined);
    let missing_dead_letters = count(|entry| entry.order.card_is_declined && !entry.is_dead);
    let phantom = phantoms.len() as u64 + unreadable + risen;
    latencies.sort_unstable();
    let ended = books.deliveries.iter().map(|delivery| delivery.at).max().unwrap_or(books.began);
    let seconds = ended.saturating_sub(books.began) as f64 / 1e6;
    Verdict {
        ok: [lost, phantom, out_of_order, missing_dead_letters, surplus_dead_letters] == [0; 5]
            && books.dead_letters == declined,
        committed: entries.len() as u64 + vanished,
        rolled_back: books.rolled_back.len() as u64,
        delivered,
        lost,
        phantom,
        out_of_order,
        duplicates,
        dead_letters: books.dead_letters,
        per_s: if seconds > 0.0 { round(delivered as f64 / seconds, 1) } else { 0.0 },
        p50_ms: milliseconds(&latencies, 50),
        p99_ms: milliseconds(&latencies, 99),
        kills: books.kills,
        declined,
        missing_dead_letters,
        surplus_dead_letters,
        by_second: books.deliveries.iter().filter(|delivery| delivery.by == Process::Second).count() as u64,
    }
}

/// A percentile of sorted microseconds.
fn milliseconds(sorted: &[u64], percent: usize) -> f64 {
    round(percentile(sorted, percent).unwrap_or_default() as f64 / 1e3, 2)
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests;
