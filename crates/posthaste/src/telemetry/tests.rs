//! `docs/telemetry.md` and the code say the same.

use std::{collections::BTreeSet, time::Duration};

use super::{
    metrics::{ALL, Kind, Metric},
    *,
};

const PAGE: &str = include_str!("../../../../docs/telemetry.md");

/// The rows of the table on the page that begins with these columns, cell by cell, without backticks around names.
fn table(columns: &[&str]) -> Vec<Vec<String>> {
    let head = format!("| {} |", columns.join(" | "));
    let (_, table) = PAGE.split_once(&head).unwrap_or_else(|| panic!("no table {head:?}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The names in a cell.
fn names(cell: &str) -> Vec<String> {
    cell.split(", ").filter(|name| !name.is_empty()).map(|name| name.trim_matches('`').to_owned()).collect()
}

pub(super) fn leased() -> Leased {
    Leased { epoch: 1, processed_seq: 0, attempts: 1, last_error: None, messages: Vec::new() }
}

pub(super) fn a_message() -> OutboxMessage {
    OutboxMessage {
        id: crate::OutboxMessageId(1),
        queue: "q".into(),
        partition: 0,
        partition_id: 1,
        seq: 1,
        key: None,
        headers: Vec::new(),
        payload: Vec::new(),
        payload_type: String::new(),
        created_at: std::time::SystemTime::now(),
        attempts: 0,
    }
}

#[test]
fn the_page_has_every_span_as_it_is() {
    let spans = tracing::subscriber::with_default(tracing_subscriber::registry(), || {
        let spans = [
            enqueue("q", 1),
            tick(),
            batch("q", 0, &leased()),
            message(&a_message()),
            settle("q", 0, 1, 0),
            vacuum(),
        ];
        spans.map(|span| span.metadata().expect("it is enabled"))
    });
    let in_code = spans.map(|span| {
        let fields = span.fields().iter().map(|field| field.name().to_owned()).collect();
        (span.name().to_owned(), span.level().to_string(), fields)
    });
    let on_page = table(&["span", "level", "fields", "meaning"]);
    let on_page: Vec<(String, String, Vec<String>)> =
        on_page.iter().map(|row| (names(&row[0]).concat(), row[1].clone(), names(&row[2]))).collect();
    assert_eq!(on_page, in_code);
}

#[test]
fn the_page_has_every_metric_as_it_is() {
    let in_code = ALL.iter().map(|metric| {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let labels = metric.labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ");
        let name = format!("`{}`", metric.name);
        vec![name, kind, metric.unit.as_str().to_owned(), labels, metric.help.to_owned()]
    });
    let in_code: Vec<_> = in_code.collect();
    assert_eq!(table(&["metric", "type", "unit", "labels", "meaning"]), in_code);
}

#[test]
fn the_page_has_every_label_and_the_number_of_series() {
    let in_code: BTreeSet<_> =
        ALL.iter().flat_map(|metric| metric.labels).map(|label| (*label).to_owned()).collect();
    let on_page = table(&["label", "values"]);
    assert_eq!(on_page.iter().map(|row| names(&row[0]).concat()).collect::<BTreeSet<_>>(), in_code);
    let values = |label: &str| {
        let row = on_page.iter().find(|row| names(&row[0]) == [label]).expect("it is there");
        names(&row[1]).len()
    };
    let series = |metric: &&Metric| {
        metric.labels.iter().filter(|label| **label != "queue").map(|label| values(label)).product::<usize>()
    };
    let (of_queues, others): (Vec<_>, Vec<_>) =
        ALL.iter().partition(|metric| metric.labels.contains(&"queue"));
    let of_queues: usize = of_queues.iter().map(series).sum();
    let others: usize = others.iter().map(series).sum();
    assert!(
        PAGE.contains(&format!("{of_queues} series for each of its queues, and {others} more")),
        "{of_queues}, {others}"
    );
}

#[test]
fn names_of_metrics_say_what_they_are() {
    for metric in ALL {
        let name = metric.name.strip_prefix("posthaste_").expect("they are ours");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert_eq!(name.ends_with("_seconds"), metric.unit == ::metrics::Unit::Seconds, "{name}");
    }
}

#[test]
fn what_is_observed_of_the_queues_becomes_gauges() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let gauges = || {
        let page = recorder.handle().render();
        let values = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        values.map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let of = Observed {
        queue: "orders",
        depth: 7,
        oldest_age: Duration::from_millis(1500),
        stalled_partitions: 2,
        is_paused: true,
    };
    ::metrics::with_local_recorder(&recorder, || observed(true, &[of]));
    let of_the_queue = [
        "posthaste_depth_messages{queue=\"orders\"} 7",
        "posthaste_oldest_age_seconds{queue=\"orders\"} 1.5",
        "posthaste_paused{queue=\"orders\"} 1",
        "posthaste_stalled_partitions{queue=\"orders\"} 2",
    ];
    let with = |line: &str| of_the_queue.iter().chain([&line]).map(|line| (*line).to_owned()).collect();
    assert_eq!(gauges(), with("posthaste_database_reachable 1"));
    ::metrics::with_local_recorder(&recorder, || observed(false, &[]));
    assert_eq!(gauges(), with("posthaste_database_reachable 0"), "and the queues are as they were last seen");
}

#[test]
fn each_time_that_the_database_does_not_answer_is_counted() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    let outage = ::metrics::with_local_recorder(&recorder, || crate::outage::Outage::new(Duration::MAX));
    for _ in 0..3 {
        outage.noticed("sequencer", &sqlx::Error::WorkerCrashed.into());
    }
    let counted = recorder.snapshotter().snapshot().into_vec();
    let counted: Vec<_> = counted.iter().map(|(key, _, _, value)| (key.key().name(), value)).collect();
    assert_eq!(counted, [("posthaste_unanswered_total", &DebugValue::Counter(3))]);
}
