//! Payloads, for people and for programs.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    args::{Format, Shown},
    output::printable,
};

/// A payload for programs: whole, and as what it is.
#[derive(Debug, Serialize)]
pub struct Payload {
    /// How `payload` is to be read: `json`, `text` or `base64`.
    pub encoding: &'static str,
    /// As it is to be printed: to read JSON and write it again would change large numbers, and the order of fields.
    pub payload: Box<RawValue>,
}

impl Payload {
    pub fn of(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes);
        // A mere number or word is a text, as somebody wrote it.
        let is_json = bytes.trim_ascii_start().first().is_some_and(|first| matches!(first, b'{' | b'['));
        let json = text
            .ok()
            .filter(|_| is_json)
            .and_then(one_line)
            .and_then(|json| RawValue::from_string(json).ok());
        match (json, text) {
            (Some(payload), _) => Self { encoding: "json", payload },
            (None, Ok(text)) => Self { encoding: "text", payload: quoted(text) },
            (None, Err(_)) => Self { encoding: "base64", payload: quoted(&STANDARD.encode(bytes)) },
        }
    }
}

fn quoted(text: &str) -> Box<RawValue> {
    serde_json::value::to_raw_value(text).unwrap_or_default()
}

/// JSON without the room between its parts, and otherwise as it is; none if it is not JSON.
fn one_line(json: &str) -> Option<String> {
    serde_json::from_str::<&RawValue>(json).ok()?;
    let (mut is_text, mut is_escaped) = (false, false);
    let keep = |c: &char| {
        let keeps = is_text || !c.is_ascii_whitespace();
        is_text ^= *c == '"' && !is_escaped;
        is_escaped = is_text && *c == '\\' && !is_escaped;
        keeps
    };
    Some(json.chars().filter(keep).collect())
}

/// A payload for people, in one line, and how many bytes it has if not all of them are there.
pub fn shown(bytes: &[u8], shown: &Shown) -> String {
    let is_text = std::str::from_utf8(bytes).is_ok();
    // Without the room between its parts, JSON may be short enough.
    let json = match shown.format {
        Format::Json | Format::Auto => std::str::from_utf8(bytes).ok().and_then(one_line),
        Format::Hex | Format::Text => None,
    };
    let whole = json.as_deref().map_or(bytes, str::as_bytes);
    let cut = if shown.cut == 0 { whole.len() } else { shown.cut.min(whole.len()) };
    let line = match shown.format {
        Format::Hex => hex(&whole[..cut]),
        Format::Json if json.is_none() => format!("(not JSON) {}", text(&whole[..cut])),
        Format::Auto if !is_text => hex(&whole[..cut]),
        // Even if its last character was cut through.
        _ => text(&whole[..cut]),
    };
    if cut == whole.len() { line } else { format!("{line}… ({} bytes)", bytes.len()) }
}

fn text(bytes: &[u8]) -> String {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(error) if error.error_len().is_none() => String::from_utf8_lossy(&bytes[..error.valid_up_to()]),
        Err(_) => String::from_utf8_lossy(bytes),
    };
    printable(&text)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(bytes: &[u8], format: Format, cut: usize) -> String {
        shown(bytes, &Shown { format, cut })
    }

    #[test]
    fn a_payload_is_shown_as_what_it_looks_like() {
        assert_eq!(show(br#"{ "a":  1 }"#, Format::Auto, 0), r#"{"a":1}"#);
        assert_eq!(show("hä\n".as_bytes(), Format::Auto, 0), "hä\\n");
        assert_eq!(show(&[0xff, 0x00], Format::Auto, 0), "ff00");
        assert_eq!(show(b"hi", Format::Hex, 0), "6869");
        assert_eq!(show(b"hi", Format::Json, 0), "(not JSON) hi");
        assert_eq!(show(&[0xff, b'a'], Format::Text, 0), "\u{fffd}a");
    }

    #[test]
    fn a_payload_is_cut_at_a_characters_end() {
        assert_eq!(show("ääää".as_bytes(), Format::Auto, 5), "ää… (8 bytes)");
        assert_eq!(show(b"123456", Format::Hex, 2), "3132… (6 bytes)");
    }

    #[test]
    fn json_that_fits_without_its_white_space_is_not_cut() {
        assert_eq!(show(b"{      \"a\": 1 }", Format::Auto, 7), "{\"a\":1}");
        assert_eq!(show(b"{      \"a\": 1 }", Format::Json, 6), "{\"a\":1… (15 bytes)");
        assert_eq!(show(b"{      \"a\": 1 }", Format::Text, 7), "{      … (15 bytes)");
    }

    #[test]
    fn json_stays_as_it_was_written() {
        let printed = |json: &str| serde_json::to_string(&Payload::of(json.as_bytes())).unwrap();
        let text = "{ \"b\":\t123456789012345678901234567890,\r\n \"a \\\\\\\" b\": [ 1.0 , \"\\u0041 \" ] }";
        assert_eq!(
            printed(text),
            r#"{"encoding":"json","payload":{"b":123456789012345678901234567890,"a \\\" b":[1.0,"\u0041 "]}}"#
        );
        assert_eq!(printed("{"), r#"{"encoding":"text","payload":"{"}"#);
        assert_eq!(printed("[1]["), r#"{"encoding":"text","payload":"[1]["}"#);
    }

    #[test]
    fn programs_get_it_whole() {
        let encoding = |bytes| Payload::of(bytes).encoding;
        assert_eq!([encoding(b"[1]"), encoding(b"17"), encoding(&[0xff])], ["json", "text", "base64"]);
    }
}
