//! The parser: messages of a datagram, attributes of a message. Malformed input ends the iteration, it never panics.

use super::write::HEADER;

/// Bits of an attribute's type that are its type.
const KIND_MASK: u16 = 0x3fff;

/// One message of a datagram.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// The message's type.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// Sequence number of the request that it answers; zero for notifications.
    pub seq: u32,
    /// Netlink port of the sender or, in notifications, of the process that made the change.
    pub port: u32,
    /// What follows the common header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The payload after a family header of `size` bytes; empty if it is shorter.
    pub fn after(&self, size: usize) -> &'a [u8] {
        self.payload.get(size.next_multiple_of(4)..).unwrap_or_default()
    }

    /// The attributes after a netfilter header.
    pub fn netfilter_attrs(&self) -> Attrs<'a> {
        attrs(self.after(4))
    }

    /// The address family of a netfilter message.
    pub fn netfilter_family(&self) -> u8 {
        self.payload.first().copied().unwrap_or_default()
    }
}

/// Iterator over the messages of a datagram.
#[derive(Clone, Debug)]
pub struct Messages<'a>(&'a [u8]);

/// The messages of one datagram.
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages(datagram)
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let header = self.0.get(..HEADER)?;
        let length = u32_at(header, 0)? as usize;
        let payload = self.0.get(HEADER..length)?;
        let message = Message {
            kind: u16_at(header, 4)?,
            flags: u16_at(header, 6)?,
            seq: u32_at(header, 8)?,
            port: u32_at(header, 12)?,
            payload,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// One attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attr<'a> {
    /// Its type, without the flag bits.
    pub kind: u16,
    /// Its payload.
    pub data: &'a [u8],
}

impl<'a> Attr<'a> {
    /// The payload as text, without the ending NUL.
    pub fn str(&self) -> Option<&'a str> {
        let end = self
            .data
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(self.data.len());
        std::str::from_utf8(&self.data[..end]).ok()
    }

    /// One byte.
    pub fn u8(&self) -> Option<u8> {
        self.data.first().copied()
    }

    /// 16 bits in the host's byte order.
    pub fn u16(&self) -> Option<u16> {
        u16_at(self.data, 0)
    }

    /// 32 bits in the host's byte order.
    pub fn u32(&self) -> Option<u32> {
        u32_at(self.data, 0)
    }

    /// 64 bits in the host's byte order.
    pub fn u64(&self) -> Option<u64> {
        self.data.get(..8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// 16 bits in network byte order.
    pub fn be16(&self) -> Option<u16> {
        self.u16().map(u16::from_be)
    }

    /// 32 bits in network byte order.
    pub fn be32(&self) -> Option<u32> {
        self.u32().map(u32::from_be)
    }

    /// 64 bits in network byte order.
    pub fn be64(&self) -> Option<u64> {
        self.u64().map(u64::from_be)
    }

    /// An IPv4 or IPv6 address, by the payload's length.
    pub fn address(&self) -> Option<std::net::IpAddr> {
        match self.data.len() {
            4 => <[u8; 4]>::try_from(self.data).ok().map(Into::into),
            16 => <[u8; 16]>::try_from(self.data).ok().map(Into::into),
            _ => None,
        }
    }

    /// The attributes inside.
    pub fn nested(&self) -> Attrs<'a> {
        attrs(self.data)
    }
}

/// Iterator over attributes.
#[derive(Clone, Debug)]
pub struct Attrs<'a>(&'a [u8]);

/// The attributes in these bytes.
pub fn attrs(bytes: &[u8]) -> Attrs<'_> {
    Attrs(bytes)
}

impl<'a> Attrs<'a> {
    /// The first attribute of this type.
    pub fn get(&self, kind: u16) -> Option<Attr<'a>> {
        Iterator::find(&mut self.clone(), |attr| attr.kind == kind)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16_at(self.0, 0)?);
        let attr = Attr {
            kind: u16_at(self.0, 2)? & KIND_MASK,
            data: self.0.get(4..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attr)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_ends_the_iteration() {
        assert_eq!(messages(&[1, 2, 3]).count(), 0);
        assert_eq!(messages(&[0; 16]).count(), 0);
        assert_eq!(messages(&[255; 64]).count(), 0);
        assert_eq!(attrs(&[0, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(attrs(&[200, 0, 1, 0, 9]).count(), 0);
    }
}
