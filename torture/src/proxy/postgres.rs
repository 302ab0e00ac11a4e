//! What a client of PostgreSQL says, as far as one must know it to tell when something is committed.

use std::collections::HashMap;

use tokio::io::{AsyncRead, AsyncReadExt};

/// What a client has said so far.
#[derive(Default)]
pub struct Client {
    has_begun: bool,
    /// Whether its prepared statements write, by their names.
    writes: HashMap<Vec<u8>, bool>,
    /// Whether what it has sent since the last Sync writes.
    is_writing: bool,
}

impl Client {
    /// A whole message (a kind, a length, a body; only the first has no kind), and whether it commits something: COMMIT itself, or the end
    /// of a statement that writes while the session is in no transaction.
    pub async fn request(
        &mut self,
        from: &mut (impl AsyncRead + Unpin),
        is_idle: bool,
    ) -> std::io::Result<(Vec<u8>, bool)> {
        let mut bytes = Vec::new();
        if self.has_begun {
            bytes.push(from.read_u8().await?);
        }
        let length = from.read_u32().await?;
        bytes.extend(length.to_be_bytes());
        let body = bytes.len();
        bytes.resize(body + usize::try_from(length).unwrap_or_default().saturating_sub(4), 0);
        from.read_exact(&mut bytes[body..]).await?;
        if !std::mem::replace(&mut self.has_begun, true) {
            return Ok((bytes, false));
        }
        let commits = self.note(bytes[0], &bytes[body..], is_idle);
        Ok((bytes, commits))
    }

    fn note(&mut self, kind: u8, body: &[u8], is_idle: bool) -> bool {
        let mut texts = body.split(|byte| *byte == 0);
        let mut text = || texts.next().unwrap_or_default();
        match kind {
            // A query by itself.
            b'Q' => ends_transaction(text()),
            // Parse: a name, and the statement.
            b'P' => {
                let name = text().to_vec();
                let statement = text();
                self.writes.insert(name, is_write(statement));
                ends_transaction(statement)
            }
            // Bind: a portal, and the name of the statement.
            b'B' => {
                text();
                self.is_writing |= self.writes.get(text()).is_some_and(|writes| *writes);
                false
            }
            // Sync: what was sent since the last one takes effect.
            b'S' => std::mem::take(&mut self.is_writing) && is_idle,
            _ => false,
        }
    }
}

/// Alone, or as the last of several.
fn ends_transaction(statements: &[u8]) -> bool {
    statements.trim_ascii_end().ends_with(b"COMMIT")
}

fn is_write(statement: &[u8]) -> bool {
    let has = |word: &[u8]| statement.windows(word.len()).any(|text| text.eq_ignore_ascii_case(word));
    [&b"INSERT "[..], b"UPDATE ", b"DELETE "].into_iter().any(has)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commits_is_a_commit_or_a_write_outside_a_transaction() {
        let mut client = Client::default();
        assert!(client.note(b'Q', b"COMMIT\0", false));
        assert!(!client.note(b'Q', b"COMMIT AND CHAIN\0", false));
        assert!(!client.note(b'P', b"s1\0WITH a AS (update t SET x = 1) SELECT 1\0", true));
        assert!(!client.note(b'P', b"s2\0SELECT 1\0", true));
        for (statement, is_idle, commits) in
            [(b"\0s1\0", true, true), (b"\0s1\0", false, false), (b"\0s2\0", true, false)]
        {
            assert!(!client.note(b'B', statement, is_idle));
            assert!(!client.note(b'E', b"\0", is_idle));
            assert_eq!(client.note(b'S', b"", is_idle), commits);
        }
        assert!(!client.note(b'S', b"", true), "nothing is written twice");
    }
}
