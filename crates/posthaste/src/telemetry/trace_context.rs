//! W3C trace context: a message carries the context of the span that enqueued it in its headers, and the spans that handle it are
//! linked to that one. Linked, not children: a batch has messages of many traces.

use std::borrow::Cow;

use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator},
    trace::{SpanContext, TraceContextExt},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{
    EnqueueMessage, OutboxMessage,
    limits::{MAX_HEADER_BYTES, MAX_HEADERS},
    message::{Header, header_bytes},
};

/// The most links of a span: collectors drop what is beyond.
const MAX_LINKS: usize = 128;

/// The headers that tell of the span which was current when something was enqueued; none if it is of no trace.
pub(crate) struct TraceContext {
    headers: Vec<(String, String)>,
}

impl TraceContext {
    pub(crate) fn current() -> Self {
        let mut headers = Collected(Vec::new());
        TraceContextPropagator::new().inject_context(&Span::current().context(), &mut headers);
        Self { headers: headers.0 }
    }

    /// The headers of a message with these; without those that would be too many. A message that says itself which trace it
    /// is of is left alone.
    pub(crate) fn headers<'m, 'a>(&self, message: &'m EnqueueMessage<'a>) -> Cow<'m, [Header<'a>]> {
        let mut headers = Cow::Borrowed(message.headers.as_slice());
        // The parent comes first: without it, there is no state.
        for (name, value) in &self.headers {
            let is_told = headers.iter().any(|(told, _)| told.eq_ignore_ascii_case(name));
            let bytes = header_bytes(&headers) + name.len() + value.len();
            if is_told || headers.len() >= MAX_HEADERS || bytes > MAX_HEADER_BYTES {
                break;
            }
            headers.to_mut().push((Cow::Owned(name.clone()), Cow::Owned(value.clone())));
        }
        headers
    }
}

/// Links a span to those that enqueued these messages, to each once.
pub(super) fn link(span: &Span, messages: &[OutboxMessage]) {
    if span.is_disabled() {
        return;
    }
    let mut linked = Vec::new();
    for context in messages.iter().filter_map(enqueued_by) {
        let place = (context.trace_id(), context.span_id());
        if linked.len() >= MAX_LINKS {
            break;
        }
        if !linked.contains(&place) {
            linked.push(place);
            span.add_link(context);
        }
    }
}

/// Which span enqueued a message, if that is told and makes sense.
fn enqueued_by(message: &OutboxMessage) -> Option<SpanContext> {
    if message.headers.is_empty() {
        return None;
    }
    let headers = Given(&message.headers);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    let context = context.span().span_context().clone();
    context.is_valid().then_some(context)
}

/// Headers to add, without the empty ones.
struct Collected(Vec<(String, String)>);

impl Injector for Collected {
    fn set(&mut self, name: &str, value: String) {
        if !value.is_empty() {
            self.0.push((name.to_owned(), value));
        }
    }
}

/// The headers of a message, whatever the case of their names.
struct Given<'m>(&'m [(String, String)]);

impl Extractor for Given<'_> {
    fn get(&self, wanted: &str) -> Option<&str> {
        self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| &**value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| &**name).collect()
    }
}

#[cfg(test)]
mod tests;
