//! What processes write down while they live, a line at a time, so that what was written survives them; and what is read of it.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    path::Path,
};

use anyhow::{Context, Result, bail};

use crate::content::{Mode, Name};

/// What becomes of a message, as its handler means it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Done.
    Done,
    /// A dead letter.
    Rejected,
    /// To come again: by a retry, a panic, or a handler that never returns.
    Failed,
}

/// A message that a handler was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handling {
    pub at: u64,
    /// Which process.
    pub process: u32,
    /// Which of its calls.
    pub call: u64,
    pub partition: u32,
    pub seq: i64,
    pub id: i64,
    /// None if its payload does not say.
    pub name: Option<Name>,
    pub digest: u64,
    pub fate: Fate,
}

/// What a producer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Produced {
    Began {
        producer: u32,
        transaction: u64,
        at: u64,
    },
    Committed {
        producer: u32,
        transaction: u64,
        at: u64,
        /// Of its messages, in their order, as the outbox returned them; empty if it returns none.
        ids: Vec<i64>,
    },
    /// It was rolled back, or failed before its commit was sent.
    Undone {
        producer: u32,
        transaction: u64,
    },
}

/// What a process noticed of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noticed {
    pub process: u32,
    /// In which partition; none if in all that it has.
    pub place: Option<(Mode, u32)>,
    pub from: u64,
    pub until: u64,
}

impl Noticed {
    fn written(&self) -> String {
        let Self { process, place, from, until } = self;
        let place = place
            .map_or_else(|| "- -".to_owned(), |(mode, partition)| format!("{} {partition}", mode.queue()));
        format!("{process} {place} {from} {until}")
    }
}

/// A line of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    Handled(Handling),
    Produced(Produced),
    /// A handler is about to reject a message, in a transaction that undoes whatever else it writes.
    Rejected {
        process: u32,
        call: u64,
        name: Name,
    },
    /// A handler's call outlives its lease: all that it was given may come again.
    Abandoned {
        process: u32,
        call: u64,
    },
    /// An enqueue failed, and not in a way that going on trying mends.
    Refused {
        producer: u32,
        from: u64,
        until: u64,
        why: String,
    },
    /// The process was not given the processor for so long that it may have lost its leases.
    Starved(Noticed),
    /// A handler's call took long. Where there is one writer at a time and it is a transaction, nobody else could write meanwhile.
    Held(Noticed),
    /// A batch was not settled within the time that its handler had.
    Slow(Noticed),
    /// The process is killed by itself, at a kill point.
    KilledAt(String),
    /// It has started, or done what it was for.
    Ready,
}

impl Line {
    fn written(&self) -> String {
        match self {
            Self::Handled(handling) => {
                let Handling { at, process, call, partition, seq, id, name, digest, fate } = handling;
                let fate = match fate {
                    Fate::Done => "done",
                    Fate::Rejected => "rejected",
                    Fate::Failed => "failed",
                };
                let name = name.map_or_else(
                    || "- - -".to_owned(),
                    |name| format!("{} {} {}", name.producer, name.transaction, name.place),
                );
                format!("handled {at} {process} {call} {partition} {seq} {id} {name} {digest} {fate}\n")
            }
            Self::Produced(Produced::Began { producer, transaction, at }) => {
                format!("began {producer} {transaction} {at}\n")
            }
            Self::Produced(Produced::Committed { producer, transaction, at, ids }) => {
                let ids: String = ids.iter().map(|id| format!(" {id}")).collect();
                format!("committed {producer} {transaction} {at}{ids}\n")
            }
            Self::Produced(Produced::Undone { producer, transaction }) => {
                format!("undone {producer} {transaction}\n")
            }
            Self::Rejected { process, call, name: Name { producer, transaction, place } } => {
                format!("rejected {process} {call} {producer} {transaction} {place}\n")
            }
            Self::Abandoned { process, call } => format!("abandoned {process} {call}\n"),
            Self::Refused { producer, from, until, why } => {
                format!("refused {producer} {from} {until} {}\n", why.replace('\n', " "))
            }
            Self::Starved(noticed) => format!("starved {}\n", noticed.written()),
            Self::Held(noticed) => format!("held {}\n", noticed.written()),
            Self::Slow(noticed) => format!("slow {}\n", noticed.written()),
            Self::KilledAt(point) => format!("killed-at {point}\n"),
            Self::Ready => "ready\n".to_owned(),
        }
    }

    fn read(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |place: usize| -> Result<u64> {
            words.get(place).context("it ends too soon")?.parse().context("it has no number there")
        };
        let small = |place: usize| Ok::<_, anyhow::Error>(u32::try_from(number(place)?)?);
        let noticed = || -> Result<Noticed> {
            let place = match words.get(2) {
                Some(&"-") => None,
                queue => {
                    let mode = queue.and_then(|queue| Mode::of_queue(queue)).context("it has no queue")?;
                    Some((mode, small(3)?))
                }
            };
            Ok(Noticed { process: small(1)?, place, from: number(4)?, until: number(5)? })
        };
        Ok(match words.as_slice() {
            ["handled", rest @ ..] => {
                let fate = match rest.last() {
                    Some(&"done") => Fate::Done,
                    Some(&"rejected") => Fate::Rejected,
                    Some(&"failed") => Fate::Failed,
                    _ => bail!("it has no fate"),
                };
                let name = match words.get(7) {
                    Some(&"-") => None,
                    _ => Some(Name { producer: small(7)?, transaction: number(8)?, place: small(9)? }),
                };
                Self::Handled(Handling {
                    at: number(1)?,
                    process: small(2)?,
                    call: number(3)?,
                    partition: small(4)?,
                    seq: i64::try_from(number(5)?)?,
                    id: i64::try_from(number(6)?)?,
                    name,
                    digest: number(10)?,
                    fate,
                })
            }
            ["began", ..] => Self::Produced(Produced::Began {
                producer: small(1)?,
                transaction: number(2)?,
                at: number(3)?,
            }),
            ["committed", ..] => Self::Produced(Produced::Committed {
                producer: small(1)?,
                transaction: number(2)?,
                at: number(3)?,
                ids: words
                    .iter()
                    .skip(4)
                    .map(|id| id.parse().context("it has no id there"))
                    .collect::<Result<_>>()?,
            }),
            ["undone", ..] => {
                Self::Produced(Produced::Undone { producer: small(1)?, transaction: number(2)? })
            }
            ["rejected", ..] => Self::Rejected {
                process: small(1)?,
                call: number(2)?,
                name: Name { producer: small(3)?, transaction: number(4)?, place: small(5)? },
            },
            ["abandoned", ..] => Self::Abandoned { process: small(1)?, call: number(2)? },
            ["refused", _, _, _, why @ ..] => {
                Self::Refused { producer: small(1)?, from: number(2)?, until: number(3)?, why: why.join(" ") }
            }
            ["starved", ..] => Self::Starved(noticed()?),
            ["held", ..] => Self::Held(noticed()?),
            ["slow", ..] => Self::Slow(noticed()?),
            ["killed-at", point] => Self::KilledAt((*point).to_owned()),
            ["ready"] => Self::Ready,
            _ => bail!("nobody writes such a line"),
        })
    }
}

/// The history that a process writes.
pub struct Pen {
    file: File,
}

impl Pen {
    pub fn open(path: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { file })
    }

    /// Whole lines, in one go: a process that is killed leaves all of them or none, or the last one cut short.
    pub fn write(&self, lines: &[Line]) -> Result<()> {
        let text: String = lines.iter().map(Line::written).collect();
        (&self.file).write_all(text.as_bytes()).context("cannot write to the history")
    }

    /// The same, and it is on the disk.
    pub fn write_and_sync(&self, lines: &[Line]) -> Result<()> {
        self.write(lines)?;
        self.file.sync_data().context("cannot write the history to the disk")
    }
}

/// All lines of a history. A last line without an end was cut short by a kill, and never happened.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        bytes => bytes.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let text = String::from_utf8(bytes).with_context(|| format!("{} is no text", path.display()))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().filter(|line| !line.is_empty());
    let read = |line: &str| Line::read(line).with_context(|| format!("{}: {line:?}", path.display()));
    lines.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_short_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        assert_eq!(read(&path).unwrap(), []);
        let name = Name { producer: 3, transaction: 5, place: 8 };
        let handling = Handling {
            at: 1,
            process: 2,
            call: 3,
            partition: 4,
            seq: 5,
            id: 6,
            name: Some(name),
            digest: u64::MAX,
            fate: Fate::Rejected,
        };
        let lines = [
            Line::Ready,
            Line::Handled(handling.clone()),
            Line::Handled(Handling { name: None, fate: Fate::Failed, ..handling.clone() }),
            Line::Handled(Handling { fate: Fate::Done, ..handling }),
            Line::Produced(Produced::Began { producer: 1, transaction: 2, at: 3 }),
            Line::Produced(Produced::Committed { producer: 1, transaction: 2, at: 4, ids: Vec::new() }),
            Line::Produced(Produced::Committed { producer: 1, transaction: 4, at: 5, ids: vec![7, -1, 9] }),
            Line::Produced(Produced::Undone { producer: 1, transaction: 3 }),
            Line::Rejected { process: 1, call: 2, name },
            Line::Abandoned { process: 1, call: 2 },
            Line::Refused { producer: 1, from: 2, until: 3, why: "it was said  so".to_owned() },
            Line::Starved(Noticed { process: 1, place: None, from: 2, until: 3 }),
            Line::Held(Noticed { process: 1, place: Some((Mode::Leased, 5)), from: 2, until: 3 }),
            Line::Slow(Noticed { process: 1, place: Some((Mode::Transactional, 0)), from: 2, until: 3 }),
            Line::KilledAt("tick.after".to_owned()),
        ];
        let pen = Pen::open(&path).unwrap();
        pen.write(&lines[..3]).unwrap();
        pen.write_and_sync(&lines[3..]).unwrap();
        (&pen.file).write_all(b"began 1 2").unwrap();
        assert_eq!(read(&path).unwrap(), lines);
    }
}
