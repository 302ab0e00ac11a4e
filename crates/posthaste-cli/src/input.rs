//! What is read: payloads, and answers of people.

use std::{
    fs::File,
    io::{self, BufRead, IsTerminal, Read, Write},
    path::PathBuf,
};

use tokio::sync::oneshot;

use crate::output::note;

/// What was read of a source that may never end.
pub enum Bytes {
    Whole(Vec<u8>),
    /// There is more than the limit. How much, is known of a file.
    TooMany(Option<u64>),
}

/// Standard input, up to so many bytes.
pub async fn standard(limit: usize) -> io::Result<Bytes> {
    if io::stdin().is_terminal() {
        note("the payload is read from the terminal: end it with Ctrl-D at the beginning of a line");
    }
    in_a_thread(move || up_to(limit, io::stdin().lock(), None)).await?
}

/// A file, up to so many bytes.
pub async fn file(path: PathBuf, limit: usize) -> io::Result<Bytes> {
    let read = move || {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        // Of a device or a pipe, the length says nothing.
        up_to(limit, file, metadata.is_file().then_some(metadata.len()))
    };
    in_a_thread(read).await?
}

fn up_to(limit: usize, source: impl Read, length: Option<u64>) -> io::Result<Bytes> {
    let most = u64::try_from(limit).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    source.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > limit {
        // A file that grew since does not have the length it had.
        return Ok(Bytes::TooMany(length.filter(|length| *length > most)));
    }
    Ok(Bytes::Whole(bytes))
}

/// Whether there is somebody to ask.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks on standard error. Everything but a yes is a no.
pub async fn agrees(question: String) -> io::Result<bool> {
    let ask = move || {
        // Not locked while it waits: others may have to say that it was interrupted.
        write!(io::stderr(), "{question} [y/N] ")?;
        let mut answer = String::new();
        io::stdin().lock().read_line(&mut answer)?;
        Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
    };
    in_a_thread(ask).await?
}

/// Runs what may wait for ever, in a thread that nobody waits for when the process is to end, as tokio would for one of its own.
async fn in_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    std::thread::Builder::new().spawn(move || done.send(work()).ok())?;
    result.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_it_takes_to_know_that_it_is_too_much() {
        let whole = |read| if let Ok(Bytes::Whole(bytes)) = read { Some(bytes.len()) } else { None };
        assert_eq!(whole(up_to(3, &b"abc"[..], None)), Some(3));
        assert_eq!(whole(up_to(3, &b""[..], None)), Some(0));
        assert!(matches!(up_to(3, io::repeat(b'x'), None), Ok(Bytes::TooMany(None))));
        assert!(matches!(up_to(3, &b"abcdef"[..], Some(6)), Ok(Bytes::TooMany(Some(6)))));
        assert!(matches!(up_to(3, &b"abcdef"[..], Some(1)), Ok(Bytes::TooMany(None))));
    }
}
