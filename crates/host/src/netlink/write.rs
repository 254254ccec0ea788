//! The writer: messages and attributes into one growing buffer.

/// Size of the common message header.
pub(super) const HEADER: usize = 16;
/// Marks an attribute whose payload is attributes.
const NESTED: u16 = 0x8000;
/// Lengths of attributes are 16 bits.
const LONGEST: usize = u16::MAX as usize;

/// Builds one or more netlink messages. Lengths and padding are filled in; a length that does not fit is remembered
/// and makes [`super::Socket::send`] refuse the whole buffer.
#[derive(Debug, Default)]
pub struct Writer {
    buffer: Vec<u8>,
    too_long: bool,
}

impl Writer {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            buffer: Vec::with_capacity(bytes),
            too_long: false,
        }
    }

    /// What was written so far.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Number of bytes written so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Forgets the content, keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
        self.too_long = false;
    }

    /// Whether some attribute was longer than an attribute can be.
    pub fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// One message: the common header, then what `body` writes (the family's own header, then attributes).
    pub fn message(&mut self, kind: u16, flags: u16, seq: u32, body: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 4]);
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
        self.buffer.extend_from_slice(&flags.to_ne_bytes());
        self.buffer.extend_from_slice(&seq.to_ne_bytes());
        self.buffer.extend_from_slice(&[0; 4]);
        body(self);
        let length = self.buffer.len() - start;
        self.too_long |= u32::try_from(length).is_err();
        self.buffer[start..start + 4].copy_from_slice(&(length as u32).to_ne_bytes());
    }

    /// The header of a netfilter message: address family, version 0, resource id.
    pub fn netfilter_header(&mut self, family: u8, resource: u16) {
        self.buffer.extend_from_slice(&[family, 0]);
        self.buffer.extend_from_slice(&resource.to_be_bytes());
    }

    /// Bytes as they are, padded to a multiple of four: the header of a protocol, for example.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        self.pad();
    }

    /// An attribute with these bytes.
    pub fn attr(&mut self, kind: u16, data: &[u8]) {
        self.attr_header(kind, data.len());
        self.buffer.extend_from_slice(data);
        self.pad();
    }

    /// An attribute whose bytes are the concatenation of `parts`.
    pub fn attr_of(&mut self, kind: u16, parts: &[&[u8]]) {
        self.attr_header(kind, parts.iter().map(|part| part.len()).sum());
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        self.pad();
    }

    /// A string attribute, with the ending NUL.
    pub fn str(&mut self, kind: u16, text: &str) {
        self.attr_of(kind, &[text.as_bytes(), &[0]]);
    }

    /// An attribute without payload.
    pub fn flag(&mut self, kind: u16) {
        self.attr(kind, &[]);
    }

    /// One byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.attr(kind, &[value]);
    }

    /// 16 bits in the host's byte order (route, generic netlink).
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// 32 bits in the host's byte order (route, generic netlink).
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_ne_bytes());
    }

    /// 16 bits in network byte order (netfilter).
    pub fn be16(&mut self, kind: u16, value: u16) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// 32 bits in network byte order (netfilter).
    pub fn be32(&mut self, kind: u16, value: u32) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// 64 bits in network byte order (netfilter).
    pub fn be64(&mut self, kind: u16, value: u64) {
        self.attr(kind, &value.to_be_bytes());
    }

    /// An attribute that holds the attributes written by `body`.
    pub fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; 2]);
        self.buffer.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        body(self);
        let length = self.buffer.len() - start;
        self.too_long |= length > LONGEST;
        self.buffer[start..start + 2].copy_from_slice(&(length as u16).to_ne_bytes());
    }

    fn attr_header(&mut self, kind: u16, payload: usize) {
        let length = payload + 4;
        self.too_long |= length > LONGEST;
        self.buffer.extend_from_slice(&(length as u16).to_ne_bytes());
        self.buffer.extend_from_slice(&kind.to_ne_bytes());
    }

    fn pad(&mut self) {
        let padded = self.buffer.len().next_multiple_of(4);
        self.buffer.resize(padded, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{attrs, messages};
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        let mut writer = Writer::new();
        writer.message(7, 5, 42, |w| {
            w.netfilter_header(2, 10);
            w.str(1, "name");
            w.nest(2, |w| {
                w.be32(1, 0x0102_0304);
                w.u16(2, 7);
            });
        });
        let read: Vec<_> = messages(writer.bytes()).collect();
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].kind, read[0].flags, read[0].seq), (7, 5, 42));
        let top: Vec<_> = attrs(read[0].after(4)).collect();
        assert_eq!(top[0].str(), Some("name"));
        let inner: Vec<_> = top[1].nested().collect();
        assert_eq!(inner[0].be32(), Some(0x0102_0304));
        assert_eq!(inner[1].u16(), Some(7));
    }

    #[test]
    fn an_overlong_nest_is_noticed() {
        let mut writer = Writer::new();
        writer.nest(1, |w| (0..3).for_each(|kind| w.attr(kind, &[0; 30_000])));
        assert!(writer.is_too_long());
        writer.clear();
        assert!(!writer.is_too_long() && writer.is_empty());
    }
}
