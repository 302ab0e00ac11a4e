//! The run itself, from the first order to the books being closed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use posthaste::{Backend, DeadLetterFilter, MAX_DEAD_LETTER_LIMIT, Outbox, OutboxHandle};
use sqlx::Pool;
use tokio::time::MissedTickBehavior;

use super::{
    judge::Books,
    ledger::{self, Ledger, Process},
    observer::Observer,
    order::{Order, OrderId, QUEUE},
    producers::{Counts, Pace, Placed, Tills},
    second::Second,
    shop::{Shop, ShopTable},
    snapshot::{Phase, Snapshot},
    stage::Stage,
    view::{Audience, View},
    worker,
};
use crate::{Context, failure::Failure, interrupt::Interrupts};

/// How often to look.
const INTERVAL: Duration = Duration::from_millis(200);
/// How long nothing may happen at all before what is not delivered counts as lost. A back-off and a slow disk are shorter, and so is
/// the lease of a worker that is killed; no other worker goes away and leaves one behind.
const STANDSTILL: Duration = Duration::from_secs(30);

/// What is needed to run it.
pub struct Performance<'a, DB: Shop> {
    pub stage: &'a Stage,
    pub table: &'a ShopTable,
    pub pool: &'a Pool<DB>,
    pub pace: Pace,
    pub kills: bool,
    pub view: &'a mut View,
    pub interrupts: Interrupts,
    pub context: &'a Context,
}

/// What it came to.
pub struct Played {
    pub books: Books,
    pub is_interrupted: bool,
    /// How long orders were placed.
    pub placing: Duration,
}

/// What is known when everything is delivered.
struct Delivered {
    began: u64,
    placed: Placed,
    kills: u64,
    is_interrupted: bool,
    placing: Duration,
}

impl<DB: Shop> Performance<'_, DB> {
    /// Whatever happens, nobody is at work on the tables afterwards.
    pub async fn play(mut self) -> Result<Played, Failure> {
        let path = self.stage.ledger();
        let ledger = Ledger::open(&path)?;
        let handle = worker::start(self.pool, &self.stage.tables, ledger, Process::Main, self.kills).await?;
        let outbox = handle.outbox();
        let observer = Observer::new(outbox.clone(), self.pool, handle.worker_id(), self.pace, &path);
        let played = match observer {
            Ok(mut observer) => self.deliver(&handle, &mut observer).await.map(|played| (played, observer)),
            Err(failure) => Err(failure),
        };
        handle.stop().await;
        let (delivered, observer) = played?;
        let books = self.close_books(&outbox, observer, delivered).await?;
        Ok(books)
    }

    /// Places orders until it is time to end, and waits until all are delivered.
    async fn deliver(
        &mut self,
        handle: &OutboxHandle<DB>,
        observer: &mut Observer<DB>,
    ) -> Result<Delivered, Failure> {
        let mut second = match self.kills {
            true => Some(Second::start(self.stage.workplace()).await?),
            false => None,
        };
        let (began, start) = (ledger::now(), Instant::now());
        observer.begin();
        let mut tills = Tills::open(&handle.outbox(), self.table, self.pace);
        let counts = Arc::clone(&tills.counts);
        let is_interrupted = self.place(&mut tills, &mut second, observer).await?;
        let placing = start.elapsed();
        if let Some(second) = &mut second {
            second.kill().await?;
        }
        let kills = second.as_ref().map(|second| second.kills);
        self.drain(&counts, kills, is_interrupted, observer).await?;
        Ok(Delivered {
            began,
            placed: tills.into_placed(),
            kills: kills.unwrap_or_default(),
            is_interrupted,
            placing,
        })
    }

    /// Until the tills are closed; whether that is because somebody interrupted it.
    async fn place(
        &mut self,
        tills: &mut Tills,
        second: &mut Option<Second>,
        observer: &mut Observer<DB>,
    ) -> Result<bool, Failure> {
        let mut tick = ticks();
        let mut is_interrupted = false;
        let counts = Arc::clone(&tills.counts);
        loop {
            tokio::select! {
                closed = tills.closed() => {
                    closed?;
                    return Ok(is_interrupted);
                }
                () = self.interrupts.first(), if !is_interrupted => {
                    is_interrupted = true;
                    tills.close();
                    self.view.interrupted(self.context)?;
                }
                lived = lives(second.as_mut()) => {
                    lived?;
                    if let Some(second) = second {
                        second.kill().await?;
                        second.replace(observer.by_second()?)?;
                    }
                }
                _ = tick.tick() => {
                    let kills = second.as_ref().map(|second| second.kills);
                    let phase = if is_interrupted { Phase::Interrupted } else { observer.placing() };
                    let looked = self.look(observer, &counts, phase, kills).await?;
                    // Whoever goes away wants no more of it, but a verdict there is.
                    if looked.is_none_or(|(_, audience)| audience == Audience::HasSeenEnough) {
                        is_interrupted = true;
                        tills.close();
                    }
                    if let Some(second) = second {
                        second.has_seen(observer.by_second()?);
                    }
                }
            }
        }
    }

    /// Looks and shows it; none if somebody interrupted it meanwhile, which is said at once, however long the look would take.
    async fn look(
        &mut self,
        observer: &mut Observer<DB>,
        counts: &Counts,
        phase: Phase,
        kills: Option<u64>,
    ) -> Result<Option<(Snapshot, Audience)>, Failure> {
        let is_interrupted = phase == Phase::Interrupted;
        let snapshot = tokio::select! {
            snapshot = observer.look(counts, phase, kills) => snapshot?,
            () = self.interrupts.first(), if !is_interrupted => {
                self.view.interrupted(self.context)?;
                return Ok(None);
            }
        };
        let audience = self.view.show(&snapshot, self.context)?;
        Ok(Some((snapshot, audience)))
    }

    /// Until the outbox says that nothing is left to do, or nothing happens any more: then the books say what is lost.
    async fn drain(
        &mut self,
        counts: &Counts,
        kills: Option<u64>,
        mut is_interrupted: bool,
        observer: &mut Observer<DB>,
    ) -> Result<(), Failure> {
        let mut tick = ticks();
        let (mut progress, mut since) = ((0, 0, 0), Instant::now());
        loop {
            tick.tick().await;
            let phase = if is_interrupted { Phase::Interrupted } else { Phase::Draining };
            let Some((mut snapshot, _)) = self.look(observer, counts, phase, kills).await? else {
                is_interrupted = true;
                continue;
            };
            if snapshot.progress() != progress {
                (progress, since) = (snapshot.progress(), Instant::now());
            }
            if snapshot.is_settled() || since.elapsed() >= STANDSTILL {
                snapshot.phase = Phase::Done;
                self.view.show(&snapshot, self.context)?;
                return Ok(());
            }
        }
    }

    async fn close_books(
        &self,
        outbox: &Outbox<DB>,
        observer: Observer<DB>,
        delivered: Delivered,
    ) -> Result<Played, Failure> {
        let Delivered { began, placed, kills, is_interrupted, placing } = delivered;
        let filter = DeadLetterFilter::default().queue(QUEUE);
        let books = Books {
            began,
            committed: DB::orders(self.pool, self.table).await?,
            committed_at: placed.committed_at,
            rolled_back: placed.rolled_back,
            deliveries: observer.into_deliveries()?,
            dead_letters: outbox.dead_letter_count(self.pool, &filter).await?,
            dead: dead(outbox, self.pool).await?,
            kills,
        };
        Ok(Played { books, is_interrupted, placing })
    }
}

fn ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Until the second process is to be killed; if there is none, never.
async fn lives(second: Option<&mut Second>) -> Result<(), Failure> {
    match second {
        Some(second) => second.lives().await,
        None => std::future::pending().await,
    }
}

/// The orders that are dead letters.
async fn dead<DB: Backend>(outbox: &Outbox<DB>, pool: &Pool<DB>) -> Result<Vec<Option<OrderId>>, Failure> {
    let mut dead = Vec::new();
    let mut filter = DeadLetterFilter::default().queue(QUEUE).limit(MAX_DEAD_LETTER_LIMIT);
    loop {
        let page = outbox.dead_letter_list(pool, &filter).await?;
        let Some(last) = page.last() else { return Ok(dead) };
        filter = filter.after(last.id);
        dead.extend(page.iter().map(|letter| Order::of(&letter.payload).map(|order| order.id)));
    }
}
