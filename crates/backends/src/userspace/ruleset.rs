//! What userspace mode wants, as values: doors, the service ports behind them, and what leads to each door.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ferry_model::{Family, FrontendKey, PortName};

use crate::relay::{Access, Pools, PortOptions};

/// How traffic gets to the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ingress {
    /// Netfilter rules lead the virtual addresses and node ports to proxy ports.
    #[default]
    Portals,
    /// The virtual addresses are put on the loopback interface and listened on.
    Loopback,
    /// Each service port is mapped to a port of the loopback address. Needs no privilege at all.
    Mapped,
}

/// Frontends that share a door, where doors are not bound to addresses: each kind has its own rule about clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Way {
    Internal,
    External,
    /// Load-balancer addresses that only some clients may use.
    Restricted,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Internal => "internal",
            Way::External => "external",
            Way::Restricted => "restricted",
        })
    }
}

/// Where a door is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    /// On a proxy port: which one does not matter.
    Proxy(Way),
    At(SocketAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Proxy(way) => write!(f, "{way}"),
            Place::At(address) => write!(f, "{address}"),
        }
    }
}

/// The identity of a door, the same in every process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DoorName {
    pub(crate) family: Family,
    pub(crate) port: PortName,
    pub(crate) place: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DoorRule {
    pub(crate) access: Access,
    /// Where clients believe they are going.
    pub(crate) leads: BTreeSet<FrontendKey>,
}

/// One service port of one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRule {
    pub(crate) name: PortName,
    pub(crate) pools: Pools,
    pub(crate) affinity: Option<Duration>,
    pub(crate) options: PortOptions,
    pub(crate) doors: BTreeMap<Place, DoorRule>,
    /// Sockets that nobody is served by: they keep other processes from taking what is ours.
    pub(crate) claims: BTreeSet<SocketAddr>,
    /// Virtual addresses that have to be the host's own.
    pub(crate) addresses: BTreeSet<IpAddr>,
}

impl PortRule {
    /// Of a service port for which nothing is open yet.
    pub(crate) fn empty(name: PortName) -> Self {
        PortRule {
            name,
            pools: Pools::default(),
            affinity: None,
            options: PortOptions::default(),
            doors: BTreeMap::new(),
            claims: BTreeSet::new(),
            addresses: BTreeSet::new(),
        }
    }
}
