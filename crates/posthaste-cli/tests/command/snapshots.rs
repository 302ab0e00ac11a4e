//! What is printed, compared with what was agreed on: files in `snapshots/`. They are written anew if
//! `POSTHASTE_UPDATE_SNAPSHOTS` is set; then the difference is to be read before it is committed.

use std::{fs, path::Path};

use serde_json::{Map, Value};

pub fn assert_snapshot(name: &str, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/command/snapshots").join(name);
    if std::env::var_os("POSTHASTE_UPDATE_SNAPSHOTS").is_some() {
        fs::write(&file, found).expect("the snapshot is written");
    }
    let agreed = fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(found, agreed, "{name} is not what it was: if it should be, set POSTHASTE_UPDATE_SNAPSHOTS=1");
}

/// The shape of a JSON value: its fields, and of what type they are.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "string".into(),
        Value::Array(items) => Value::Array(items.first().map(shape).into_iter().collect()),
        Value::Object(fields) => Value::Object(
            fields.iter().map(|(name, value)| (name.clone(), shape(value))).collect::<Map<_, _>>(),
        ),
    }
}

/// Compares the shape of what a command prints as JSON.
pub fn assert_shape(name: &str, value: &Value) {
    let text = serde_json::to_string_pretty(&shape(value)).expect("JSON");
    assert_snapshot(&format!("{name}.json"), &format!("{text}\n"));
}
