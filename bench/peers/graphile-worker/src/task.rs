//! What the worker runs.

use std::fmt;

use anyhow::{Context, Result};
use base64::{Engine, prelude::BASE64_STANDARD};
use graphile_worker::{BatchTaskHandler, IntoBatchTaskHandlerResult, WorkerContext};
use harness::{Inbox, Outgoing};
use serde::{Deserialize, Serialize};

/// Where the handlers put what they get.
#[derive(Clone)]
pub struct Delivery(pub Inbox);

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Delivery")
    }
}

/// A message of a batch job.
#[derive(Serialize, Deserialize)]
pub struct Item {
    partition: u32,
    payload: String,
}

impl Item {
    pub fn of(message: &Outgoing) -> Self {
        Self { partition: message.partition, payload: BASE64_STANDARD.encode(&message.payload) }
    }

    fn deliver(&self, ctx: &WorkerContext) -> Result<()> {
        let Delivery(inbox) = ctx.get_ext().context("no inbox")?;
        inbox.got(self.partition, &BASE64_STANDARD.decode(&self.payload)?)
    }
}

impl BatchTaskHandler for Item {
    const IDENTIFIER: &'static str = "deliver";

    async fn run_batch(items: Vec<Self>, ctx: WorkerContext) -> impl IntoBatchTaskHandlerResult {
        items.iter().try_for_each(|item| item.deliver(&ctx)).map_err(|error| error.to_string())
    }
}
