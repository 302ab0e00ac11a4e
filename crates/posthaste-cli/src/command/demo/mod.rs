//! `posthaste demo`: a small shop, its orders, and what becomes of them.
//!
//! [`producers`] places orders in business transactions, [`worker`] delivers them and writes each delivery down in the [`ledger`], in
//! this process and in [`second`], which is killed. [`judge`] compares the shop's own books in the end; it trusts the outbox in
//! nothing.

mod judge;
mod ledger;
mod observer;
mod order;
mod performance;
mod producers;
mod screen;
mod second;
mod shop;
mod snapshot;
mod stage;
mod verdict;
mod view;
pub mod worker;

use std::time::Duration;

use sqlx::Pool;

use self::{
    performance::{Performance, Played},
    producers::Pace,
    shop::{Shop, ShopTable},
    stage::Stage,
    view::View,
};
use crate::{
    Context,
    args::Demo,
    database::on,
    exit,
    failure::{Failure, Outcome},
    interrupt::Interrupts,
};

/// How long orders are placed if nothing is said.
const TIME: Duration = Duration::from_secs(12);
/// How long the tables may take to be removed.
const CLEANING: Duration = Duration::from_secs(20);

pub async fn run(options: &Demo, context: &Context) -> Outcome {
    let mut interrupts = Interrupts::listen();
    let (stage, database) = tokio::select! {
        stage = Stage::set(context) => stage?,
        () = interrupts.first() => return Err(Failure::Interrupted),
    };
    on!(database, pool => run_on(stage, pool, options, interrupts, context).await)
}

async fn run_on<DB: Shop>(
    stage: Stage,
    pool: Pool<DB>,
    options: &Demo,
    mut interrupts: Interrupts,
    context: &Context,
) -> Outcome {
    let table = ShopTable::new::<DB>(&stage);
    let removal = shop::removal::<DB>(&stage);
    tokio::select! {
        // If it cannot be made, nothing of ours is there.
        opened = DB::open(&pool, &table) => opened?,
        () = interrupts.first() => {
            if !stage.is_own_file() {
                context.out.note(format_args!("the table may be made yet in {}: {removal} removes it", stage.place));
            }
            return Err(Failure::Interrupted);
        }
    }
    let mut view = View::new(format!("posthaste demo on {}", stage.place), context);
    let performance = Performance {
        stage: &stage,
        table: &table,
        pool: &pool,
        pace: pace(options),
        kills: options.kill,
        view: &mut view,
        interrupts: interrupts.clone(),
        context,
    };
    let run = async {
        let played = performance.play().await;
        let cleaned = if options.keep { Ok(()) } else { clean(&stage, &pool, &table, &removal).await };
        (played, cleaned)
    };
    let (played, cleaned) = tokio::select! {
        done = Box::pin(run) => done,
        () = interrupts.second() => {
            view.end();
            if !stage.is_own_file() {
                context.out.note(format_args!(
                    "the tables {}* remain in {}: {removal} removes them",
                    stage.prefix, stage.place
                ));
            }
            return Err(Failure::Interrupted);
        }
    };
    view.end();
    pool.close().await;
    let ended = played.map_err(|failure| with_remains(failure, &cleaned)).and_then(|played| {
        cleaned.map_err(Failure::Problem)?;
        conclude(&played, options, context)
    });
    if options.keep {
        let words = stage.keep();
        let is_said = !context.out.json && ended.is_ok() && is_read(context.out.line(&words))?;
        if !is_said {
            context.out.note(words);
        }
    }
    ended
}

fn pace(options: &Demo) -> Pace {
    let time = options.seconds.map(Duration::from_secs);
    let time = time.or_else(|| options.messages.is_none().then_some(TIME));
    Pace { rate: options.rate, most: options.messages, time }
}

/// Says what came of it; the exit code, which is the same if nobody reads the rest.
fn conclude(played: &Played, options: &Demo, context: &Context) -> Outcome {
    let verdict = judge::judge(&played.books);
    let said = if context.out.json {
        if verdict.kills > 0 && verdict.by_second == 0 {
            context.out.note(verdict::nothing_shown(verdict.kills));
        }
        context.out.object(&verdict)
    } else {
        let lines = verdict::lines(&verdict, options.rate, played.placing, played.is_interrupted);
        std::iter::once(String::new()).chain(lines).try_for_each(|line| context.out.line(line))
    };
    is_read(said)?;
    Ok(if verdict.ok { exit::DONE } else { exit::PROBLEM })
}

/// Whether somebody reads what was said.
fn is_read(said: Result<(), Failure>) -> Result<bool, Failure> {
    match said {
        Ok(()) => Ok(true),
        Err(Failure::ClosedPipe) => Ok(false),
        Err(failure) => Err(failure),
    }
}

/// Removes the tables, and the file if it was made for them; if that cannot be done, what remains.
async fn clean<DB: Shop>(
    stage: &Stage,
    pool: &Pool<DB>,
    table: &ShopTable,
    removal: &str,
) -> Result<(), String> {
    if stage.is_own_file() {
        return Ok(());
    }
    let cleaning = async {
        posthaste::drop_tables(pool, &stage.tables).await?;
        DB::close(pool, table).await?;
        pool.close().await;
        stage.remove_made_file().await
    };
    match tokio::time::timeout(CLEANING, cleaning).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(format!(
            "the tables {}* could not be removed from {}: {removal} removes them",
            stage.prefix, stage.place
        )),
    }
}

/// The failure, and what remains because of it.
fn with_remains(failure: Failure, cleaned: &Result<(), String>) -> Failure {
    let Err(remains) = cleaned else { return failure };
    match failure {
        Failure::Problem(text) | Failure::Passing(text) => Failure::Problem(format!("{text}; {remains}")),
        Failure::Usage(text) => Failure::Usage(format!("{text}; {remains}")),
        Failure::OutOfReach(text) => Failure::OutOfReach(format!("{text}; {remains}")),
        Failure::ClosedPipe | Failure::Interrupted => Failure::Problem(remains.clone()),
    }
}
