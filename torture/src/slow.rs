//! Batches that were not settled in the time that their handler had, as the process itself sees it: by the spans that the library documents.
//! They may have outlived their lease. A database that is slow to answer, or whose turn to write never comes, is nobody's deed, and explains
//! what comes again.

use std::sync::Arc;

use posthaste_torture_protocol::ongoing::{Doing, Ongoing};
use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use crate::content::Mode;

/// From being given out to being settled, with its `queue` and `partition`.
const BATCH: &str = "posthaste.batch";

/// Has each batch that takes longer than its handler has written down.
pub struct SlowBatches(pub Arc<Ongoing>);

/// Of which partition a batch is.
#[derive(Default)]
struct Place {
    mode: Option<Mode>,
    partition: Option<u32>,
}

impl Visit for Place {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "queue" {
            self.mode = Mode::of_queue(value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "partition" {
            self.partition = u32::try_from(value).ok();
        }
    }

    fn record_debug(&mut self, _field: &Field, _value: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SlowBatches {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        if attributes.metadata().name() == BATCH
            && let Some(span) = context.span(id)
        {
            let mut place = Place::default();
            attributes.record(&mut place);
            span.extensions_mut().insert(self.0.begin(place.mode.zip(place.partition)));
        }
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id) {
            span.extensions_mut().remove::<Doing>();
        }
    }
}
