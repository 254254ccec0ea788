//! Keys and data of set elements: short byte strings, stored in place because there are many of them.

use std::fmt;

/// At most `N` bytes. Equal strings compare and hash equal; the unused rest is always zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bytes<const N: usize> {
    bytes: [u8; N],
    length: u8,
}

/// An element's key. The longest is two IPv6 addresses, a protocol and a port.
pub type Key = Bytes<40>;
/// An element's data. The longest is an IPv6 address and a port.
pub type Data = Bytes<20>;

impl<const N: usize> Bytes<N> {
    /// The bytes as they are; what does not fit is left off, so callers pass what they know to fit.
    pub fn of(bytes: &[u8]) -> Self {
        let mut all = Self {
            bytes: [0; N],
            length: 0,
        };
        all.append(bytes);
        all
    }

    /// The fields of a concatenation, each padded to the kernel's four-byte registers.
    pub fn concat(fields: &[&[u8]]) -> Self {
        let mut all = Self {
            bytes: [0; N],
            length: 0,
        };
        for field in fields {
            all.append(field);
            all.length = all.length.next_multiple_of(4).min(N as u8);
        }
        all
    }

    /// What was read from the kernel; `None` if it is longer than anything we write.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() <= N).then(|| Self::of(bytes))
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    fn append(&mut self, bytes: &[u8]) {
        let start = usize::from(self.length);
        let taken = bytes.len().min(N - start);
        self.bytes[start..start + taken].copy_from_slice(&bytes[..taken]);
        self.length = (start + taken) as u8;
    }
}

impl<const N: usize> fmt::Debug for Bytes<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenations_are_padded_by_field() {
        let key = Key::concat(&[&[10, 0, 0, 1], &[6], &80u16.to_be_bytes()]);
        assert_eq!(key.as_slice(), [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(Key::of(&[6]).as_slice(), [6]);
        assert_eq!(Key::read(&[0; 41]), None);
        assert_eq!(Key::read(key.as_slice()), Some(key));
    }
}
