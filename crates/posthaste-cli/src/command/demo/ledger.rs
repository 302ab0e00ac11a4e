//! The ledger: every delivery, by whichever process, in one file. The order in it is the order of the deliveries, so that no two clocks
//! have to agree on it.
//!
//! A record is one small write at the end of the file, before the message is settled. It begins with a line break and ends with a
//! semicolon: what a process that was killed has written of one is left out, for nobody settled that message.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use super::order::OrderId;

/// Who delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    Main,
    /// The one that is killed again and again.
    Second,
}

/// A delivery, as it is written down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    pub order: OrderId,
    pub by: Process,
    /// In microseconds since 1970.
    pub at: u64,
}

/// Now, in microseconds since 1970: for how long something took, never for what came first.
pub fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// The ledger, to write to.
pub struct Ledger(File);

impl Ledger {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(OpenOptions::new().append(true).create(true).open(path)?))
    }

    pub fn note(&self, delivery: Delivery) -> io::Result<()> {
        let Delivery { order: OrderId { customer, number }, by, at } = delivery;
        let by = match by {
            Process::Main => 1,
            Process::Second => 2,
        };
        (&self.0).write_all(format!("\n{by} {customer} {number} {at};").as_bytes())
    }
}

/// The ledger, to read as it grows.
pub struct LedgerReader {
    file: File,
    /// The beginning of a record whose end was not there yet.
    unfinished: Vec<u8>,
}

impl LedgerReader {
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, unfinished: Vec::new() })
    }

    /// What came since it was read last.
    pub fn read(&mut self) -> io::Result<Vec<Delivery>> {
        self.file.read_to_end(&mut self.unfinished)?;
        let whole = self.unfinished.iter().rposition(|byte| *byte == b';').map_or(0, |end| end + 1);
        let records = self.unfinished.drain(..whole).collect::<Vec<_>>();
        Ok(records.split(|byte| *byte == b';').filter_map(delivery).collect())
    }
}

/// Of a record without its semicolon, perhaps with something torn before it.
fn delivery(record: &[u8]) -> Option<Delivery> {
    let record = record.rsplit(|byte| *byte == b'\n').next()?;
    let mut fields = std::str::from_utf8(record).ok()?.split(' ');
    let by = match fields.next()? {
        "1" => Process::Main,
        "2" => Process::Second,
        _ => return None,
    };
    let (customer, number, at) = (fields.next()?, fields.next()?, fields.next()?);
    let order = OrderId { customer: customer.parse().ok()?, number: number.parse().ok()? };
    Some(Delivery { order, by, at: at.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delivered(number: u64, by: Process) -> Delivery {
        Delivery { order: OrderId { customer: 7, number }, by, at: 1_000 + number }
    }

    #[test]
    fn what_is_noted_is_read_in_its_order_as_it_comes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let ledger = Ledger::open(file.path()).unwrap();
        let other = Ledger::open(file.path()).unwrap();
        let mut reader = LedgerReader::open(file.path()).unwrap();
        assert_eq!(reader.read().unwrap(), []);
        ledger.note(delivered(2, Process::Main)).unwrap();
        other.note(delivered(1, Process::Second)).unwrap();
        assert_eq!(reader.read().unwrap(), [delivered(2, Process::Main), delivered(1, Process::Second)]);
        ledger.note(delivered(3, Process::Main)).unwrap();
        assert_eq!(reader.read().unwrap(), [delivered(3, Process::Main)]);
    }

    #[test]
    fn what_a_killed_process_has_torn_is_left_out() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let ledger = Ledger::open(file.path()).unwrap();
        let mut reader = LedgerReader::open(file.path()).unwrap();
        for torn in ["\n", "\n2", "\n2 7 1", "\n2 7 11 10"] {
            file.write_all(torn.as_bytes()).unwrap();
            assert_eq!(reader.read().unwrap(), []);
            ledger.note(delivered(4, Process::Main)).unwrap();
            assert_eq!(reader.read().unwrap(), [delivered(4, Process::Main)]);
        }
    }
}
