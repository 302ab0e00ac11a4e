//! `posthaste register`: a queue, before there is a process that delivers it.

use posthaste::Partitions;
use serde::Serialize;

use crate::{Context, args::Register, database::on, exit, failure::Outcome};

#[derive(Serialize)]
struct Registered<'a> {
    queue: &'a str,
    partitions: u32,
}

pub async fn run(options: &Register, context: &Context) -> Outcome {
    // The command line takes no other numbers.
    let (queue, partitions) = (&*options.queue, Partitions::of(options.partitions));
    on!(context.open().await?, pool => context.outbox(&pool).await?.register(queue, partitions).await?);
    let (count, s) = (options.partitions, if options.partitions == 1 { "" } else { "s" });
    context.out.report(
        &Registered { queue, partitions: count },
        format_args!("{queue} is registered, with {count} partition{s}"),
    )?;
    Ok(exit::DONE)
}
