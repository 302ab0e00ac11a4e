//! What clients and servers say to each other: packets of three bytes of length, a number, and a body. The first packet of a
//! command has the number 0, and its body begins with what is to be done.

/// A statement as text, one to be prepared, and one that was prepared.
const QUERY: u8 = 3;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;

/// A packet, whole.
pub struct Packet {
    number: u8,
    pub bytes: Vec<u8>,
}

/// The first packet of what was read, if it is whole.
pub fn packet(said: &mut Vec<u8>) -> Option<Packet> {
    let header: [u8; 4] = said.get(..4)?.try_into().unwrap();
    let length = 4 + usize::try_from(u32::from_le_bytes(header) & 0x00ff_ffff).unwrap();
    let bytes = said.get(..length)?.to_vec();
    said.drain(..length);
    Some(Packet { number: header[3], bytes })
}

impl Packet {
    fn command(&self, command: u8) -> Option<&[u8]> {
        self.bytes[4..].strip_prefix(&[command]).filter(|_| self.number == 0)
    }

    /// The statement that is run, if it is a text.
    pub fn text(&self) -> Option<String> {
        self.command(QUERY).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// The statement that is prepared.
    pub fn prepared(&self) -> Option<String> {
        self.command(PREPARE).map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// The number of the prepared statement that is run.
    pub fn executed(&self) -> Option<u32> {
        number(self.command(EXECUTE)?)
    }
}

/// The number that a server gives to a statement that it prepared: its answer is a zero and the number.
pub fn prepared_as(answer: &[u8]) -> Option<u32> {
    number(answer.get(4..)?.strip_prefix(&[0])?)
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?))
}
