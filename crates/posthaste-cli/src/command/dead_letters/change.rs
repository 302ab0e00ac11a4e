//! `posthaste dead-letters redeliver`, `discard` and `cleanup`: does the same with all dead letters that are meant, a page at a time.

use std::{collections::BTreeSet, time::SystemTime};

use posthaste::{
    Backend, DEFAULT_DEAD_LETTER_LIMIT, DeadLetterFilter, DeadLetterMessage, DeadLetterScope,
    DeadLetterStatus, Outbox, OutboxError, OutboxMessageId,
};
use serde::Serialize;
use sqlx::Pool;

use super::{
    letter::{letters, row},
    progress::Progress,
    verb::{Verb, count},
};
use crate::{
    Context,
    args::ChangeDeadLetters,
    database::on,
    exit,
    failure::{Failure, Outcome},
    input,
    interrupt::Interrupts,
};

/// So many are changed in one transaction.
const PAGE: u32 = DEFAULT_DEAD_LETTER_LIMIT;
/// So many of them are shown to people who want to know which.
const SHOWN: usize = 10;
/// So many ids are told to programs.
const TOLD: usize = 1000;

/// What was done, for programs.
#[derive(Debug, Serialize)]
struct Changed {
    action: &'static str,
    dry_run: bool,
    /// How many fitted when it began, up to the limit.
    matched: u64,
    changed: u64,
    /// With `dry_run`: which ones, the first 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    ids: Option<Vec<i64>>,
    /// What was sent back as what, the first 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    redelivered: Option<Vec<Redelivered>>,
}

#[derive(Debug, Serialize)]
struct Redelivered {
    id: i64,
    redelivered_as: i64,
}

pub async fn run(verb: Verb, options: &ChangeDeadLetters, context: &Context) -> Outcome {
    check(verb, options)?;
    on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        let began = outbox.database_time().await?;
        let change = Change { outbox: &outbox, pool: &pool, verb, options, began };
        let outcome = change.run(context, Interrupts::listen()).await;
        // What was sent back is told of, however it ended.
        outbox.close().await;
        outcome
    })
}

/// What can be refused before the database is asked.
fn check(verb: Verb, options: &ChangeDeadLetters) -> Result<(), Failure> {
    let (name, (_, done)) = (verb.name(), verb.words());
    if !options.which.is_anything() && !options.all {
        return Err(Failure::Usage(format!(
            "which dead letters are to be {done}? Say --all, or which with --queue, --id and so on: see `posthaste dead-letters {name} --help`"
        )));
    }
    let status = options.which.status.map(DeadLetterStatus::from);
    if let Some(status) = status.filter(|status| !verb.states().contains(status)) {
        return Err(Failure::Usage(format!(
            "dead letters that are {status} cannot be {done}: they must be {}",
            verb.expected()
        )));
    }
    if verb.asks() && !options.yes && !options.dry_run && !input::can_ask() {
        return Err(Failure::Usage(format!(
            "{name} asks first, and here is no terminal to ask on: say --yes, or --dry-run to see what it would be"
        )));
    }
    Ok(())
}

struct Change<'a, DB: Backend> {
    outbox: &'a Outbox<DB>,
    pool: &'a Pool<DB>,
    verb: Verb,
    options: &'a ChangeDeadLetters,
    /// By the database's clock. Whatever is rejected or changed later is left alone: nobody has been asked about it, and what was sent
    /// back may be rejected again at once.
    began: SystemTime,
}

/// What was sent back, and as what.
type Sent = (OutboxMessageId, OutboxMessageId);

impl<DB: Backend> Change<'_, DB> {
    async fn run(&self, context: &Context, mut interrupts: Interrupts) -> Outcome {
        let mut until_then = interrupts.clone();
        let matched = tokio::select! {
            matched = self.agreed_on() => matched?,
            () = until_then.first() => return Err(Failure::Interrupted),
        };
        let changed = if self.options.dry_run {
            let first = self.first(if context.out.json { TOLD } else { SHOWN }).await?;
            if !context.out.json {
                return self.would(matched, first, context);
            }
            let ids = first.iter().map(|(id, _)| *id).collect();
            self.changed(matched, 0, Some(ids), None)
        } else {
            let (changed, sent) = self.do_it(matched, &mut interrupts).await?;
            let sent = sent.iter().map(|(id, made)| Redelivered { id: id.0, redelivered_as: made.0 });
            let sent = (self.verb == Verb::Redeliver).then(|| sent.collect());
            self.changed(matched, changed, None, sent)
        };
        context.out.report(&changed, self.said(matched, changed.changed))?;
        Ok(exit::DONE)
    }

    /// How many there are, if whoever has to be asked agrees.
    async fn agreed_on(&self) -> Result<u64, Failure> {
        self.options.which.check_queue(self.outbox).await?;
        let matched = self.matched().await?;
        let asks = matched > 0 && self.verb.asks() && !self.options.yes && !self.options.dry_run;
        if asks && !self.agrees(matched).await? {
            return Err(Failure::Problem("nothing was changed".to_owned()));
        }
        Ok(matched)
    }

    const fn changed(
        &self,
        matched: u64,
        changed: u64,
        ids: Option<Vec<i64>>,
        redelivered: Option<Vec<Redelivered>>,
    ) -> Changed {
        let (action, dry_run) = (self.verb.name(), self.options.dry_run);
        Changed { action, dry_run, matched, changed, ids, redelivered }
    }

    fn said(&self, matched: u64, changed: u64) -> String {
        let (verb, done) = self.verb.words();
        match (matched, matched.saturating_sub(changed)) {
            (0, _) => format!("there are no dead letters that fit: nothing to {verb}"),
            (_, 0) => format!("{done} {}", count(changed)),
            (_, rest) => format!("{done} {}; somebody else was at {rest} more", count(changed)),
        }
    }

    /// What a dry run says.
    fn would(&self, matched: u64, first: Vec<(i64, Vec<String>)>, context: &Context) -> Outcome {
        if matched == 0 {
            context.out.line(self.said(0, 0))?;
            return Ok(exit::DONE);
        }
        let shown = u64::try_from(first.len()).unwrap_or(u64::MAX);
        context.out.line(format_args!("would {} {}:", self.verb.words().0, count(matched)))?;
        context.out.line(letters(first.into_iter().map(|(_, row)| row).collect()))?;
        if matched > shown {
            context.out.line(format_args!("… and {} more", matched - shown))?;
        }
        Ok(exit::DONE)
    }

    async fn agrees(&self, matched: u64) -> Result<bool, Failure> {
        let verb = match self.verb {
            Verb::Redeliver => "Redeliver",
            Verb::Discard => "Discard",
            Verb::Cleanup => "Delete",
        };
        let of = self.options.which.queue.as_ref().map(|queue| format!(" of {queue}")).unwrap_or_default();
        Ok(input::agrees(format!("{verb} {}{of}?", count(matched))).await?)
    }

    /// Those that are meant, as they were when it began.
    fn scope(&self) -> DeadLetterScope {
        self.options.which.scope().unchanged_since(self.began)
    }

    /// A filter for each of the states.
    fn filters(&self) -> impl Iterator<Item = DeadLetterFilter> {
        let asked = self.options.which.status.map(DeadLetterStatus::from);
        let states =
            self.verb.states().iter().filter(move |state| asked.is_none_or(|asked| asked == **state));
        states.map(|state| self.scope().status(*state).into())
    }

    /// How many fit, up to the limit. If they are named, all of them must.
    async fn matched(&self) -> Result<u64, OutboxError> {
        let mut matched = 0;
        for filter in self.filters() {
            matched += self.outbox.dead_letter_count(self.pool, &filter).await?;
        }
        let named: BTreeSet<_> = self.options.which.ids.iter().copied().collect();
        if u64::try_from(named.len()).is_ok_and(|named| named > matched) {
            let found: BTreeSet<_> = self.first(named.len()).await?.into_iter().map(|(id, _)| id).collect();
            let missing = named.difference(&found).copied().map(OutboxMessageId);
            let (ids, expected) = (missing.collect(), self.verb.expected());
            return Err(OutboxError::DeadLettersNotFound { ids, expected });
        }
        Ok(self.options.limit.map_or(matched, |limit| limit.min(matched)))
    }

    /// The first of them, their ids and rows.
    async fn first(&self, limit: usize) -> Result<Vec<(i64, Vec<String>)>, OutboxError> {
        let limit =
            self.options.limit.and_then(|own| usize::try_from(own).ok()).map_or(limit, |own| own.min(limit));
        let mut first = Vec::new();
        for mut filter in self.filters() {
            let mut left = limit;
            while let Some(page) = u32::try_from(left).ok().filter(|left| *left > 0) {
                let page = self.outbox.dead_letter_list(self.pool, &filter.clone().limit(page)).await?;
                let Some(last) = page.last() else { break };
                filter = filter.after(last.id);
                left = left.saturating_sub(page.len());
                first.extend(page.iter().map(|letter: &DeadLetterMessage| (letter.id.0, row(letter))));
            }
        }
        first.sort_unstable_by_key(|(id, _)| *id);
        first.truncate(limit);
        Ok(first)
    }

    /// Page by page, as many as fitted at the beginning. How many, and the first that were sent back. If it is interrupted, the page
    /// in hand is finished, so that it is known how far it got; if once more, it ends at once.
    async fn do_it(&self, matched: u64, interrupts: &mut Interrupts) -> Result<(u64, Vec<Sent>), Failure> {
        let mut progress = Progress::new(self.verb.words().1, matched, PAGE);
        let mut told = Vec::new();
        while progress.done < matched {
            if interrupts.is_asked() {
                return Err(Failure::Interrupted);
            }
            let limit = u32::try_from(matched - progress.done).unwrap_or(PAGE).min(PAGE);
            let done = tokio::select! {
                done = self.page(limit, &mut told) => done?,
                () = interrupts.second() => {
                    progress.cut_off(limit);
                    return Err(Failure::Interrupted);
                }
            };
            if done == 0 {
                break;
            }
            progress.add(done);
        }
        Ok((progress.end(), told))
    }

    async fn page(&self, limit: u32, told: &mut Vec<Sent>) -> Result<u64, OutboxError> {
        let page = self.scope().limit(limit);
        match self.verb {
            Verb::Redeliver => {
                let sent = self.outbox.dead_letter_redeliver(self.pool, &page).await?;
                let done = u64::try_from(sent.len()).unwrap_or(u64::MAX);
                told.extend(sent.into_iter().take(TOLD.saturating_sub(told.len())));
                Ok(done)
            }
            Verb::Discard => self.outbox.dead_letter_discard(self.pool, &page).await,
            Verb::Cleanup => self.outbox.dead_letter_cleanup(self.pool, &page).await,
        }
    }
}
