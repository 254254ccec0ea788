//! Netlink: one socket type, a message writer and a parser, shared by nf_tables, conntrack, ipset, IPVS and routes.
//! May touch netlink sockets and nothing else; knows no protocol beyond the common header and attributes.
//! Always holds: what is sent was built by a [`Writer`] that noticed every length overflow, and every answer read
//! belongs to the request that was sent last.

mod parse;
mod socket;
mod write;

pub use parse::{Attr, Attrs, Message, Messages, attrs, messages};
pub use socket::{Bus, Completion, PortFilter, Socket, Wait};
pub use write::Writer;

use std::fmt;
use std::io;

/// What went wrong while talking to the kernel.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The socket could not be made, bound or configured.
    #[error("setting up a netlink socket ({step}): {source}")]
    Setup {
        /// Which step failed.
        step: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The kernel did not take the message at all.
    #[error("sending {bytes} bytes over netlink: {source}")]
    Send {
        /// Size of the datagram.
        bytes: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// No answer could be read.
    #[error("reading a netlink answer: {0}")]
    Receive(#[source] io::Error),
    /// The kernel read the request and refused it.
    #[error("the kernel refused the request: {0}")]
    Refused(Refusal),
    /// An attribute or a nest grew beyond what its 16-bit length can say.
    #[error("a netlink attribute is longer than 65535 bytes")]
    TooLong,
    /// The kernel's tables changed during each of several attempts to read them.
    #[error("the kernel's tables kept changing while they were read")]
    Interrupted,
    /// An answer was shorter than its own header says.
    #[error("a netlink answer is malformed")]
    Malformed,
}

impl Error {
    /// The error number of a refusal, or of the failed system call.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Setup { source, .. } | Self::Send { source, .. } | Self::Receive(source) => {
                source.raw_os_error()
            }
            Self::TooLong | Self::Interrupted | Self::Malformed => None,
        }
    }

    /// Whether the kernel said that the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.errno() == Some(libc::ENOENT)
    }

    /// Whether the kernel said that the object exists already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }
}

/// One message that the kernel refused, with its extended acknowledgement where it gave one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Sequence number of the refused message.
    pub seq: u32,
    /// Type of the refused message.
    pub kind: u16,
    /// Positive error number.
    pub errno: i32,
    /// The kernel's own words, if any.
    pub text: Option<String>,
    /// Offset in the refused message of the attribute that is to blame, if known.
    pub offset: Option<u32>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", io::Error::from_raw_os_error(self.errno))?;
        if let Some(text) = &self.text {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}
