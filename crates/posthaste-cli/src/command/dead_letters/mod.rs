//! `posthaste dead-letters`: rejected messages, and what becomes of them.

mod change;
mod letter;
mod list;
mod progress;
mod show;
mod verb;
mod which;

use self::verb::Verb;
use crate::{Context, args::DeadLetters, failure::Outcome};

pub async fn run(verb: DeadLetters, context: &Context) -> Outcome {
    match verb {
        DeadLetters::List(options) => list::run(&options, context).await,
        DeadLetters::Show { id, format } => show::run(id, format, context).await,
        DeadLetters::Redeliver(options) => change::run(Verb::Redeliver, &options, context).await,
        DeadLetters::Discard(options) => change::run(Verb::Discard, &options, context).await,
        DeadLetters::Cleanup(options) => change::run(Verb::Cleanup, &options, context).await,
    }
}
