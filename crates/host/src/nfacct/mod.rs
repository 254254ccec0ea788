//! Named packet counters of the kernel (nfnetlink accounting): made and read over netlink.
//! May touch netlink and nothing else. Always holds: a counter that exists is never reset or removed.

use crate::netlink::{Bus, Error, Socket, Writer};

const SUBSYS_ACCT: u16 = (libc::NFNL_SUBSYS_ACCT as u16) << 8;
const MSG_NEW: u16 = SUBSYS_ACCT;
const MSG_GET: u16 = SUBSYS_ACCT | 1;
const ATTR_NAME: u16 = 1;
const ATTR_PACKETS: u16 = 2;
const ATTR_BYTES: u16 = 3;
/// The kernel's limit, without the ending NUL.
const NAME_BYTES: usize = 31;

/// A counter's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub packets: u64,
    pub bytes: u64,
}

/// The counters of one network namespace.
#[derive(Debug)]
pub struct Nfacct {
    socket: Socket,
}

impl Nfacct {
    /// `None` where the kernel has no accounting.
    pub fn open() -> Result<Option<Nfacct>, Error> {
        let mut nfacct = Nfacct {
            socket: Socket::open(Bus::Netfilter)?,
        };
        match nfacct.get("ferry-probe") {
            Ok(_) => Ok(Some(nfacct)),
            Err(_) => Ok(None),
        }
    }

    /// A counter's value; `None` if there is no such counter.
    pub fn get(&mut self, name: &str) -> Result<Option<Count>, Error> {
        let mut count = Count::default();
        let result = self.socket.get(
            MSG_GET,
            0,
            |writer| named(writer, name),
            |message| {
                let attrs = message.netfilter_attrs();
                let value = |kind| attrs.get(kind).and_then(|attr| attr.be64()).unwrap_or_default();
                count = Count {
                    packets: value(ATTR_PACKETS),
                    bytes: value(ATTR_BYTES),
                };
            },
        );
        match result {
            Ok(()) => Ok(Some(count)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a counter unless it is there.
    pub fn ensure(&mut self, name: &str) -> Result<(), Error> {
        if name.len() > NAME_BYTES {
            return Err(Error::TooLong);
        }
        if self.get(name)?.is_some() {
            return Ok(());
        }
        match self
            .socket
            .request(MSG_NEW, libc::NLM_F_CREATE as u16, |writer| named(writer, name))
        {
            // Somebody else was faster; the kernel says EBUSY where one would expect EEXIST.
            Err(error) if error.is_exists() || error.errno() == Some(libc::EBUSY) => Ok(()),
            other => other,
        }
    }
}

fn named(writer: &mut Writer, name: &str) {
    writer.netfilter_header(0, 0);
    writer.str(ATTR_NAME, name);
}
