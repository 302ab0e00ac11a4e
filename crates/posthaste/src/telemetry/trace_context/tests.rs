use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use proptest::prelude::*;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;

use super::*;
use crate::{
    store::Leased,
    telemetry::{
        batch, message,
        tests::{a_message, leased},
    },
};

/// Runs something with an OpenTelemetry layer; returns the spans that ended meanwhile.
fn traced(work: impl FnOnce()) -> Vec<opentelemetry_sdk::trace::SpanData> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), work);
    exporter.get_finished_spans().expect("it is not shut down")
}

fn traceparent(span: &Span) -> String {
    let context = span.context();
    let context = context.span().span_context().clone();
    format!("00-{}-{}-{:02x}", context.trace_id(), context.span_id(), context.trace_flags().to_u8())
}

fn told_by(headers: &[(&str, &str)]) -> OutboxMessage {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    OutboxMessage { headers, ..a_message() }
}

#[test]
fn a_message_gets_the_context_of_the_current_span() {
    traced(|| {
        assert!(TraceContext::current().headers(&EnqueueMessage::new("x")).is_empty(), "there is no span");
        let span = tracing::info_span!("business");
        let _entered = span.enter();
        let message = EnqueueMessage::new("x").header("source", "web");
        let headers = TraceContext::current().headers(&message).into_owned();
        let expected = message.header("traceparent", traceparent(&span));
        assert_eq!(headers, expected.headers, "there is no state to tell of");
    });
    let span = tracing::info_span!("nobody listens");
    let _entered = span.enter();
    assert!(TraceContext::current().headers(&EnqueueMessage::new("x")).is_empty());
}

#[test]
fn a_state_is_told_too_if_there_is_one() {
    let state = "vendor=opaque";
    let given = told_by(&[
        ("TraceParent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", state),
    ]);
    traced(|| {
        let span = tracing::info_span!("business");
        let context = enqueued_by(&given).expect("it is valid");
        let remote = Context::new().with_remote_span_context(context);
        span.set_parent(remote).expect("it is new");
        let _entered = span.enter();
        let message = EnqueueMessage::new("x");
        let headers = TraceContext::current().headers(&message).into_owned();
        assert_eq!(headers[1], ("tracestate".into(), state.into()));
        let own = EnqueueMessage::new("x").header("TraceState", "mine=1");
        assert_eq!(TraceContext::current().headers(&own).len(), 2, "never two of one name");
    });
}

#[test]
fn a_message_that_says_itself_which_trace_it_is_of_is_left_alone() {
    traced(|| {
        let _entered = tracing::info_span!("business").entered();
        for name in ["traceparent", "Traceparent", "TRACEPARENT"] {
            let message = EnqueueMessage::new("x").header(name, "mine");
            assert_eq!(*TraceContext::current().headers(&message), message.headers);
        }
    });
}

proptest! {
    /// However many headers a message has: it is as valid with these as it was without.
    #[test]
    fn the_limits_of_headers_hold(
        count in prop_oneof![0..4_usize, MAX_HEADERS - 3..=MAX_HEADERS],
        bytes in prop_oneof![0..100_usize, MAX_HEADER_BYTES - 200..=MAX_HEADER_BYTES],
    ) {
        let mut message = EnqueueMessage::new("x");
        for place in 0..count {
            message = message.header("", if place == 0 { "v".repeat(bytes) } else { String::new() });
        }
        let mut headers = Vec::new();
        traced(|| {
            let _entered = tracing::info_span!("business").entered();
            headers = TraceContext::current().headers(&message).into_owned();
        });
        let fits = count < MAX_HEADERS && (count == 0 || bytes + "traceparent".len() + 55 <= MAX_HEADER_BYTES);
        prop_assert_eq!(headers.len() - count, usize::from(fits));
        message.headers = headers;
        prop_assert!(message.validate(1).is_ok());
    }

    #[test]
    fn no_traceparent_makes_trouble(text in ".*", state in ".*") {
        let told = told_by(&[("traceparent", &text), ("tracestate", &state)]);
        traced(|| drop(message(&told)));
    }
}

#[test]
fn a_batch_is_linked_to_each_span_once_and_to_so_many_at_most() {
    let parent = |n: usize| format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{n:016x}-01");
    let links = |messages: Vec<OutboxMessage>| {
        let spans = traced(|| drop(batch("q", 0, &Leased { messages, ..leased() })));
        spans[0].links.iter().map(|link| link.span_context.span_id().to_string()).collect::<Vec<_>>()
    };
    let one = |n: usize| told_by(&[("traceparent", &parent(n))]);
    let invalid = told_by(&[("traceparent", "00-0-0-00")]);
    assert_eq!(
        links(vec![one(1), a_message(), one(2), invalid, one(1)]),
        ["0000000000000001", "0000000000000002"]
    );
    assert_eq!(links((1..300).map(one).collect()).len(), 128);
    assert!(links(vec![one(0)]).is_empty(), "0 is no span");
}
