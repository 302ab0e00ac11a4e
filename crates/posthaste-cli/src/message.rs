//! Messages, as they are shown: to programs whole, to people in a row of a table.

use std::time::SystemTime;

use console::truncate_str;
use posthaste::{DeadLetterMessage, EnqueuedMessage, OutboxMessage};
use serde::{Serialize, Serializer};

use crate::{
    output::{moment, printable, span},
    payload::Payload,
};

/// No column of a table is wider than this, the last one apart.
const WIDEST: usize = 40;

/// A message, as it is serialised for programs.
#[derive(Debug, Serialize)]
pub struct Message<'a> {
    pub id: i64,
    pub queue: &'a str,
    pub partition: u32,
    /// Its place in the partition; none as long as the sequencer has not given it one.
    pub seq: Option<i64>,
    pub key: Option<&'a str>,
    pub payload_type: &'a str,
    pub headers: Vec<Header<'a>>,
    #[serde(serialize_with = "in_utc")]
    pub created_at: SystemTime,
    #[serde(flatten, serialize_with = "whole")]
    pub payload: &'a [u8],
}

#[derive(Debug, Serialize)]
pub struct Header<'a> {
    pub name: &'a str,
    pub value: &'a str,
}

fn in_utc<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    moment(*time).serialize(to)
}

fn whole<S: Serializer>(payload: &&[u8], to: S) -> Result<S::Ok, S::Error> {
    Payload::of(payload).serialize(to)
}

/// Of the message types of the library, which have the same fields, except that not every one has a seq.
macro_rules! message_of {
    ($kind:ident, $seq:expr) => {
        impl<'a> From<&'a $kind> for Message<'a> {
            fn from(message: &'a $kind) -> Self {
                let seq: fn(&$kind) -> Option<i64> = $seq;
                Self {
                    id: message.id.0,
                    queue: &message.queue,
                    partition: message.partition,
                    seq: seq(message),
                    key: message.key.as_deref(),
                    payload_type: &message.payload_type,
                    headers: message.headers.iter().map(|(name, value)| Header { name, value }).collect(),
                    created_at: message.created_at,
                    payload: &message.payload,
                }
            }
        }
    };
}

message_of!(OutboxMessage, |message| Some(message.seq));
message_of!(EnqueuedMessage, |_| None);
message_of!(DeadLetterMessage, |letter| Some(letter.seq));

/// A text from the database in a table: safe, in one line, and not too wide.
pub fn cell(text: &str) -> String {
    truncate_str(&printable(text), WIDEST, "…").into_owned()
}

/// The same of what may be missing.
pub fn cell_or_dash(text: Option<&str>) -> String {
    text.map_or_else(|| "-".to_owned(), cell)
}

/// How long ago that was. Clocks differ: what is yet to come is now.
pub fn age(time: SystemTime) -> String {
    span(time.elapsed().unwrap_or_default())
}
