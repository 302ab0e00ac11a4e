//! The shop's tills: they place orders in business transactions, at a given pace, whatever becomes of them.
//!
//! Each customer has one till, which places their orders one after another: so it is known in which order they were committed.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use posthaste::{Outbox, OutboxError};
use tokio::{sync::watch, task::JoinSet, time::Instant};

use super::{
    ledger,
    order::{CUSTOMERS, Fate, Order, OrderId, QUEUE},
    shop::{Shop, ShopTable},
};

/// How many there are.
pub const TILLS: u32 = 4;
/// How often an order is tried that the database refuses for a passing reason, such as a deadlock, and how long it waits between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(50);

/// How many orders, how fast, for how long.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub rate: u32,
    pub most: Option<u64>,
    pub time: Option<Duration>,
}

/// Tickets: an order for each, at its time.
struct Tickets {
    pace: Pace,
    began: Instant,
    taken: AtomicU64,
}

impl Tickets {
    /// The next one, when it is time; none if it is over.
    async fn next(&self, stop: &mut watch::Receiver<bool>) -> Option<u64> {
        let ticket = self.taken.fetch_add(1, Ordering::Relaxed) + 1;
        let due = Duration::from_secs_f64((ticket - 1) as f64 / f64::from(self.pace.rate));
        let is_over = |at| self.pace.time.is_some_and(|time| at >= time);
        if self.pace.most.is_some_and(|most| ticket > most) || is_over(due) || is_over(self.began.elapsed()) {
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep_until(self.began + due) => Some(ticket),
            // The sender is there until the tills are closed.
            _ = stop.wait_for(|stop| *stop) => None,
        }
    }
}

/// What the tills have done so far.
#[derive(Debug, Default)]
pub struct Counts {
    pub committed: AtomicU64,
    pub rolled_back: AtomicU64,
}

impl Counts {
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub fn rolled_back(&self) -> u64 {
        self.rolled_back.load(Ordering::Relaxed)
    }
}

/// An order, and when its commit returned.
pub type Committed = (OrderId, u64);

/// What the tills know of their orders first hand.
#[derive(Debug, Default)]
pub struct Placed {
    pub committed_at: Vec<Committed>,
    pub rolled_back: Vec<OrderId>,
}

pub struct Tills {
    pub counts: Arc<Counts>,
    tasks: JoinSet<Result<Placed, OutboxError>>,
    placed: Placed,
    stop: watch::Sender<bool>,
}

impl Tills {
    pub fn open<DB: Shop>(outbox: &Outbox<DB>, table: &ShopTable, pace: Pace) -> Self {
        let (stop, counts) = (watch::Sender::new(false), Arc::new(Counts::default()));
        let tickets = Arc::new(Tickets { pace, began: Instant::now(), taken: AtomicU64::new(0) });
        let mut tasks = JoinSet::new();
        for till in 0..TILLS {
            let till = Till {
                outbox: outbox.clone(),
                table: table.clone(),
                tickets: Arc::clone(&tickets),
                counts: Arc::clone(&counts),
                customers: (till..CUSTOMERS).step_by(TILLS as usize).collect(),
            };
            tasks.spawn(till.work(stop.subscribe()));
        }
        Self { counts, tasks, placed: Placed::default(), stop }
    }

    /// No more orders; what is under way is finished.
    pub fn close(&self) {
        self.stop.send_replace(true);
    }

    /// Waits until all are closed. May be dropped and called again.
    pub async fn closed(&mut self) -> Result<(), OutboxError> {
        while let Some(done) = self.tasks.join_next().await {
            let done =
                done.map_err(|panic| OutboxError::Database(sqlx::Error::Io(std::io::Error::other(panic))))?;
            let Placed { committed_at, rolled_back } = done?;
            self.placed.committed_at.extend(committed_at);
            self.placed.rolled_back.extend(rolled_back);
        }
        Ok(())
    }

    pub fn into_placed(self) -> Placed {
        self.placed
    }
}

struct Till<DB: Shop> {
    outbox: Outbox<DB>,
    table: ShopTable,
    tickets: Arc<Tickets>,
    counts: Arc<Counts>,
    customers: Vec<u32>,
}

impl<DB: Shop> Till<DB> {
    async fn work(self, mut stop: watch::Receiver<bool>) -> Result<Placed, OutboxError> {
        let mut numbers = vec![0; self.customers.len()];
        let mut placed = Placed::default();
        while let Some(ticket) = self.tickets.next(&mut stop).await {
            let place = fastrand::usize(..self.customers.len());
            numbers[place] += 1;
            let id = OrderId { customer: self.customers[place], number: numbers[place] };
            if self.place(id, Fate::of(ticket)).await? {
                placed.committed_at.push((id, ledger::now()));
                self.counts.committed.fetch_add(1, Ordering::Relaxed);
            } else {
                placed.rolled_back.push(id);
                self.counts.rolled_back.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(placed)
    }

    /// Whether it was committed.
    async fn place(&self, id: OrderId, fate: Fate) -> Result<bool, OutboxError> {
        let order = Order { id, card_is_declined: fate == Fate::Declined };
        let mut tries = 0;
        loop {
            tries += 1;
            let mut is_written = false;
            match self.transact(&order, fate, &mut is_written).await {
                Ok(()) => return Ok(true),
                Err(Undone::OnPurpose) => return Ok(false),
                // After a commit that failed nobody knows whether it is there.
                Err(Undone::Failed(error)) if is_written || tries == TRIES || !is_passing(&error) => {
                    return Err(error);
                }
                Err(Undone::Failed(_)) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// The business transaction: the order and its announcement are committed together, or neither is.
    async fn transact(&self, order: &Order, fate: Fate, is_written: &mut bool) -> Result<(), Undone> {
        self.outbox
            .transaction(async |tx| {
                DB::save(&mut *tx, &self.table, order).await.map_err(OutboxError::from)?;
                self.outbox.enqueue(&mut *tx, QUEUE, order.message()?).await?;
                if fate == Fate::RolledBack {
                    return Err(Undone::OnPurpose);
                }
                *is_written = true;
                Ok(())
            })
            .await
    }
}

/// Whether the database says that it may be tried again. If it says nothing at all, that is the end of it.
fn is_passing(error: &OutboxError) -> bool {
    matches!(error, OutboxError::Database(sqlx::Error::Database(_))) && error.is_retryable()
}

/// Why a transaction was not committed.
enum Undone {
    /// The customer changed their mind.
    OnPurpose,
    Failed(OutboxError),
}

impl From<OutboxError> for Undone {
    fn from(error: OutboxError) -> Self {
        Self::Failed(error)
    }
}
