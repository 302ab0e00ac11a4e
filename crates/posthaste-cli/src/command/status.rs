//! `posthaste status`: how far every partition is, who works on it, and what stands still.

use std::time::Duration;

use console::{Term, style};
use posthaste::{Backend, Outbox};
use serde::Serialize;
use sqlx::Pool;

use super::queues;
use crate::{
    Context,
    args::Status,
    database::on,
    exit,
    failure::{Failure, Outcome},
    interrupt,
    output::{printable, table},
    overview::{Observer, Partition, Queue, STANDSTILL, State},
};

/// How long a look may take before what was seen last is not to be trusted any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// As it is printed.
#[derive(Debug, Serialize)]
struct Seen<'a> {
    /// Nothing stands still.
    ok: bool,
    database: &'a str,
    queues: &'a [Queue],
}

pub async fn run(options: &Status, context: &Context) -> Outcome {
    let address = context.address()?.to_string();
    on!(context.open().await?, pool => {
        let outbox = context.outbox(&pool).await?;
        let looking = Looking { outbox, pool, observer: Observer::default(), queue: options.queue.as_deref() };
        match options.watch {
            Some(interval) => watch(looking, interval, &address, context).await,
            None => once(looking, &address, context).await,
        }
    })
}

struct Looking<'a, DB: Backend> {
    outbox: Outbox<DB>,
    pool: Pool<DB>,
    observer: Observer,
    /// Only this queue.
    queue: Option<&'a str>,
}

impl<DB: Backend> Looking<'_, DB> {
    async fn look(&mut self) -> Result<Vec<Queue>, Failure> {
        let mut queues = self.observer.look(&self.outbox, &self.pool).await?;
        if let Some(name) = self.queue {
            queues.retain(|queue| queue.queue == name);
            if queues.is_empty() {
                return Err(posthaste::OutboxError::QueueNotRegistered(name.to_owned()).into());
            }
        }
        Ok(queues)
    }
}

async fn once<DB: Backend>(mut looking: Looking<'_, DB>, address: &str, context: &Context) -> Outcome {
    let mut queues = looking.look().await?;
    if Observer::has_to_look_again(&queues) {
        tokio::time::sleep(STANDSTILL).await;
        queues = looking.look().await?;
    }
    print(&queues, address, context)?;
    Ok(if is_ok(&queues) { exit::DONE } else { exit::PROBLEM })
}

/// Again and again, until somebody has seen enough. A database that goes away is waited for.
async fn watch<DB: Backend>(
    mut looking: Looking<'_, DB>,
    interval: Duration,
    address: &str,
    context: &Context,
) -> Outcome {
    let screen = Screen::of(context);
    let mut interrupted = std::pin::pin!(interrupt::asked());
    let mut has_seen = false;
    loop {
        let look = tokio::select! {
            look = tokio::time::timeout(PATIENCE, looking.look()) => look,
            () = &mut interrupted => return Ok(exit::DONE),
        };
        let look = look.unwrap_or_else(|_| {
            let patience = humantime::format_duration(PATIENCE);
            Err(Failure::OutOfReach(format!("the database does not answer: nothing for {patience}")))
        });
        match (look, &screen) {
            (Ok(queues), Some(screen)) => screen.show(&text(&queues, address))?,
            (Ok(queues), None) => print(&queues, address, context)?,
            (Err(failure), screen) => match (failure.may_pass().filter(|_| has_seen), screen) {
                (Some(why), Some(screen)) => screen.show(why)?,
                (Some(why), None) => context.out.note(why),
                (None, _) => return Err(failure),
            },
        }
        has_seen = true;
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = &mut interrupted => return Ok(exit::DONE),
        }
    }
}

fn is_ok(queues: &[Queue]) -> bool {
    let mut partitions = queues.iter().flat_map(|queue| &queue.partitions);
    !partitions.any(|partition| partition.state == State::Stalled)
}

fn print(queues: &[Queue], address: &str, context: &Context) -> Result<(), Failure> {
    if context.out.json {
        return context.out.object(&Seen { ok: is_ok(queues), database: address, queues });
    }
    context.out.line(text(queues, address))
}

/// The queues, the partitions that have something to tell, and why some of them stand still.
fn text(queues: &[Queue], address: &str) -> String {
    let mut parts = vec![printable(address), queues::table(queues)];
    let is_of_interest = |partition: &&Partition| partition.oldest_ms.is_some() || partition.owner.is_some();
    let all =
        || queues.iter().flat_map(|queue| queue.partitions.iter().map(move |partition| (queue, partition)));
    let rows: Vec<_> =
        all().filter(|(_, partition)| is_of_interest(partition)).map(|(queue, p)| row(queue, p)).collect();
    if !rows.is_empty() {
        let header = ["QUEUE", "PARTITION", "SETTLED", "OF", "DEPTH", "OLDEST", "TRIES", "OWNER", "STATE"];
        parts.push(table(&header, &rows));
    }
    let idle = all().count() - rows.len();
    match (idle, rows.len()) {
        (0, _) => {}
        (1, 0) => parts.push("its partition is idle".to_owned()),
        (_, 0) => parts.push(format!("all {idle} partitions are idle")),
        (1, _) => parts.push("the other partition is idle".to_owned()),
        (_, _) => parts.push(format!("the other {idle} partitions are idle")),
    }
    let reasons = all().filter_map(|(queue, partition)| {
        let reason = printable(partition.reason.as_deref()?);
        let place = format!("{} {}", queue.queue, partition.partition);
        Some(format!("{} {reason}", style(format!("{place} stands still:")).red()))
    });
    let reasons: Vec<_> = reasons.collect();
    if !reasons.is_empty() {
        parts.push(reasons.join("\n"));
    }
    parts.join("\n\n")
}

fn row(queue: &Queue, partition: &Partition) -> Vec<String> {
    let state = match partition.state {
        State::Idle => style("idle").dim(),
        State::Waiting => style("waiting").cyan(),
        State::Working => style("working").green(),
        State::Paused => style("paused").yellow(),
        State::Stalled => style("stalled").red(),
    };
    // Enough to tell one process from another.
    let owner = partition.owner.as_deref().and_then(|owner| owner.get(..8)).unwrap_or("-");
    vec![
        queue.queue.clone(),
        partition.partition.to_string(),
        partition.cursor_seq.to_string(),
        partition.head_seq.to_string(),
        partition.depth.to_string(),
        queues::age(partition.oldest_ms),
        partition.attempts.to_string(),
        owner.to_owned(),
        state.to_string(),
    ]
}

/// A terminal, of which what is shown fills as much as it needs.
struct Screen {
    term: Term,
}

impl Screen {
    /// Standard output, if somebody looks at it.
    fn of(context: &Context) -> Option<Self> {
        let term = Term::stdout();
        if context.out.json || !term.is_term() {
            return None;
        }
        Some(Self { term })
    }

    /// Instead of what was shown before, and without a flicker. What does not fit is cut.
    fn show(&self, text: &str) -> Result<(), Failure> {
        let (height, width) = self.term.size();
        let lines = text.lines().map(|line| console::truncate_str(line, usize::from(width), "…"));
        let mut lines: Vec<_> = lines.collect();
        let room = usize::from(height).saturating_sub(1).max(1);
        if lines.len() > room {
            let hidden = lines.len() - room + 1;
            lines.truncate(room - 1);
            lines.push(format!("… {hidden} more lines").into());
        }
        self.term.move_cursor_to(0, 0)?;
        for line in lines {
            self.term.clear_line()?;
            self.term.write_line(&line)?;
        }
        Ok(self.term.clear_to_end_of_screen()?)
    }
}
