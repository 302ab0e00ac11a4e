//! The control of torture: cf-modkit-db's outbox in the place of posthaste, tortured in the same way and judged by the same judge, who must
//! find what is known to be wrong with it. A judge who finds nothing there would find nothing anywhere.
//!
//! It is given what its documentation asks for, and the benefit of the doubt: processes look for work ten times a second, because an
//! enqueue wakes nobody in another process; leases are whole seconds, because that is what it counts in; migrations run one after another;
//! connections are tested before they are used, and there are enough of them. What it does not have is not asked of it: messages have
//! neither keys nor headers, nothing is rejected, and handlers neither miscount nor hang in a transaction, where it would wait for ever.

mod database;
mod producer;
mod settings;
mod slow;
mod worker;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use posthaste_torture_protocol::{
    AS_PROCESS, FAILED,
    circumstances::{Circumstances, Role},
    content::Mode,
    history::Pen,
};
use tracing_subscriber::{Layer, filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};

use slow::SlowBatches;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() != Some(AS_PROCESS) {
        eprintln!("control: this is for `cargo xtask torture --system cf-modkit-db` to start");
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    let ended = runtime.context("there is no runtime").and_then(|runtime| runtime.block_on(be_a_process()));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("control: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

async fn be_a_process() -> Result<()> {
    let (circumstances, stop) = Circumstances::hear().await?;
    if !circumstances.url.starts_with("postgres://") {
        bail!("this control runs on PostgreSQL only");
    }
    if !circumstances.shape.is_plain || circumstances.kill_at.is_some() {
        bail!("cf-modkit-db has no keys, no headers and no kill points");
    }
    let slow = SlowBatches::new(&circumstances, Pen::open(&circumstances.history)?);
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false);
    let notable =
        Targets::new().with_default(tracing::Level::WARN).with_target("modkit_db", tracing::Level::INFO);
    tracing_subscriber::registry()
        .with(log.with_filter(notable))
        .with(slow.clone().with_filter(SlowBatches::targets()))
        .init();
    match circumstances.role {
        Role::Producer => producer::run(circumstances, stop).await,
        Role::Worker => worker::run(circumstances, slow, stop).await,
        Role::Starter => worker::start_and_stop(circumstances, slow).await,
    }
}

/// It has no prefix for its tables, so each episode has queues of its own instead.
fn queue(circumstances: &Circumstances, mode: Mode) -> String {
    format!("{}{}", circumstances.prefix, mode.queue())
}
