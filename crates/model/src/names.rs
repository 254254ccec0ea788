//! The names of things: families, protocols, and the identities of services, slices and service ports.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// An IP family. Printed as Kubernetes prints it in metrics and statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }

    pub fn of_net(net: &IpNet) -> Self {
        match net {
            IpNet::V4(_) => Family::V4,
            IpNet::V6(_) => Family::V6,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One value for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    pub v4: T,
    pub v6: T,
}

impl<T> PerFamily<T> {
    pub fn from_fn(mut value: impl FnMut(Family) -> T) -> Self {
        PerFamily {
            v4: value(Family::V4),
            v6: value(Family::V6),
        }
    }

    pub fn get(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    pub fn get_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Lower case, as rules and chain-name hashes have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }

    /// The IP protocol number.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// `namespace/name` in one allocation, shared by everything that refers to the object.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ObjectName {
    text: Arc<str>,
    namespace_len: u32,
}

impl ObjectName {
    fn new(namespace: &str, name: &str) -> Self {
        ObjectName {
            text: format!("{namespace}/{name}").into(),
            namespace_len: namespace.len() as u32,
        }
    }

    fn namespace(&self) -> &str {
        &self.text[..self.namespace_len as usize]
    }

    fn name(&self) -> &str {
        &self.text[self.namespace_len as usize + 1..]
    }
}

impl Ord for ObjectName {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.namespace(), self.name()).cmp(&(other.namespace(), other.name()))
    }
}

impl PartialOrd for ObjectName {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

macro_rules! object_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(ObjectName);

        impl $name {
            pub fn new(namespace: &str, name: &str) -> Self {
                $name(ObjectName::new(namespace, name))
            }

            pub fn namespace(&self) -> &str {
                self.0.namespace()
            }

            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// `namespace/name`.
            pub fn as_str(&self) -> &str {
                &self.0.text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.text)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0.text)
            }
        }
    };
}

object_name! {
    /// The identity of a Service.
    ServiceName
}
object_name! {
    /// The identity of an EndpointSlice.
    SliceName
}

/// The identity of one port of a Service. The protocol is part of the identity but not of the printed form, as in
/// Kubernetes, whose chain names and comments depend on that form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName {
    pub service: ServiceName,
    pub port: Arc<str>,
    pub protocol: Protocol,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() {
            write!(f, "{}", self.service)
        } else {
            write!(f, "{}:{}", self.service, self.port)
        }
    }
}

impl fmt::Debug for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/{}", self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_print_as_kubernetes_prints_them() {
        let service = ServiceName::new("ns", "web");
        let port = |name: &str| PortName {
            service: service.clone(),
            port: name.into(),
            protocol: Protocol::Udp,
        };
        assert_eq!(port("dns").to_string(), "ns/web:dns");
        assert_eq!(port("").to_string(), "ns/web");
        assert_eq!((service.namespace(), service.name()), ("ns", "web"));
    }

    #[test]
    fn names_sort_by_namespace_first() {
        assert!(ServiceName::new("a", "z") < ServiceName::new("a-b", "a"));
    }
}
