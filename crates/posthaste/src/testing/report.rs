//! What a test that fails is told.

use std::{borrow::Cow, panic::Location};

use crate::{OutboxMessage, enqueued::EnqueuedMessage};

/// How many messages a report lists.
pub(super) const LISTED: usize = 20;
/// How many characters of a payload it shows.
const SHOWN: usize = 200;

/// What a test was told, or a panic that names the line which asked: in an async function nothing else knows it.
pub(super) async fn or_panic<T>(
    caller: &'static Location<'static>,
    asked: impl Future<Output = Result<T, String>>,
) -> T {
    Box::pin(asked).await.unwrap_or_else(|text| panic!("{caller}: {text}"))
}

/// A message in a line.
pub(super) trait Describe {
    fn describe(&self) -> String;
}

impl Describe for EnqueuedMessage {
    fn describe(&self) -> String {
        line(self.id.0, self.partition, &self.payload_type, self.key.as_deref(), &self.payload)
    }
}

impl Describe for OutboxMessage {
    fn describe(&self) -> String {
        line(self.id.0, self.partition, &self.payload_type, self.key.as_deref(), &self.payload)
    }
}

fn line(id: i64, partition: u32, payload_type: &str, key: Option<&str>, payload: &[u8]) -> String {
    let key = key.map(|key| format!(", key {key:?}")).unwrap_or_default();
    format!("message {id}: {payload_type}, partition {partition}{key}: {}", shown(payload))
}

/// As text if it is one, of which the beginning is enough.
fn shown(payload: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(payload) {
        Ok(text) => match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()).into(),
            None => text.into(),
        },
        Err(_) => format!("{} bytes that are no text", payload.len()).into(),
    }
}

/// The first of `count` messages, a line each.
pub(super) fn list<M: Describe>(first: &[M], count: usize) -> String {
    let listed = &first[..first.len().min(LISTED)];
    let mut text: String = listed.iter().map(|message| format!("\n  {}", message.describe())).collect();
    if count > listed.len() {
        text.push_str(&format!("\n  and {} more", count - listed.len()));
    }
    text
}

/// "no messages", "1 message", "2 messages".
pub(super) fn messages(count: usize) -> String {
    match count {
        0 => "no messages".to_owned(),
        1 => "1 message".to_owned(),
        count => format!("{count} messages"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EnqueueMessage, testing::as_delivered};

    #[test]
    fn a_line_shows_the_beginning_of_a_text_and_the_size_of_what_is_none() {
        let mut message = as_delivered("q", EnqueueMessage::new("ä".repeat(300)).key("k").payload_type("t"));
        message.id.0 = 7;
        let text = message.describe();
        assert_eq!(text, format!("message 7: t, partition 0, key \"k\": {}… (600 bytes)", "ä".repeat(200)));
        message.key = None;
        message.payload = vec![0xff; 3];
        assert_eq!(message.describe(), "message 7: t, partition 0: 3 bytes that are no text");
    }

    #[test]
    fn a_list_has_an_end() {
        let messages: Vec<_> = (0..30).map(|_| as_delivered("q", EnqueueMessage::new("x"))).collect();
        let text = list(&messages, 100);
        assert_eq!(text.matches("\n  message ").count(), LISTED);
        assert!(text.ends_with("\n  and 80 more"), "{text}");
        assert_eq!(list(&messages[..0], 0), "");
    }
}
