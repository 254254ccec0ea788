//! How what goes from one process to the next is written, version 2. Pure.
//!
//! The giving process sends records, each a length (4 bytes, big endian, at most 4096) and that many bytes of text; a
//! socket that belongs to a record is attached to its length (SCM_RIGHTS). Fields are separated by tabs. The first
//! record is the greeting, which names the version; a reader that does not know the version reads no further. The last
//! one is `end`; the reader answers `taken` and a line feed once it serves, and the giving process then stops
//! accepting and hangs up.
//!
//! ```text
//! ferry userspace sockets 2
//! listener  DOOR                                    a listening socket
//! claim     PORT  ADDRESS:PORT                      a socket that only holds an address
//! session   DOOR  CLIENT  LOCAL|-  ENDPOINT         a UDP association, with the socket towards the endpoint
//! affinity  PORT  CLIENT  ENDPOINT  AGE             who sticks to which endpoint, since so many milliseconds
//! end
//! ```
//!
//! where PORT is `IPv4|IPv6  tcp|udp|sctp  NAMESPACE  SERVICE  PORTNAME` and DOOR is PORT followed by
//! `proxy  internal|external|restricted` or `at  ADDRESS:PORT`. Whatever changes in this list gets another version.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::{FromStr, Split};
use std::time::Duration;

use ferry_model::{Family, PortName, Protocol, ServiceName};

use super::ruleset::{DoorName, Place, Way};

const GREETING: &str = "ferry userspace sockets ";
pub(super) const VERSION: u32 = 2;

/// Why a hand-over was not read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Unreadable {
    #[error("it is written in version {0} of the form, and this program reads version {VERSION}")]
    Version(u32),
    #[error("what answers there does not hand over sockets")]
    Greeting,
}

pub(super) fn greeting() -> String {
    format!("{GREETING}{VERSION}")
}

pub(super) fn check_greeting(text: &str) -> Result<(), Unreadable> {
    let version = text.strip_prefix(GREETING).and_then(|text| text.parse().ok());
    match version {
        Some(VERSION) => Ok(()),
        Some(other) => Err(Unreadable::Version(other)),
        None => Err(Unreadable::Greeting),
    }
}

/// A service port of a family.
pub(super) type FamilyPort = (Family, PortName);

/// Which socket it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum SocketName {
    Listener(DoorName),
    Claim(FamilyPort, SocketAddr),
}

impl SocketName {
    pub(super) fn family(&self) -> Family {
        match self {
            Self::Listener(door) => door.family,
            Self::Claim((family, _), _) => *family,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    Socket(SocketName),
    Session {
        door: DoorName,
        client: SocketAddr,
        local: Option<IpAddr>,
        endpoint: SocketAddr,
    },
    Affinity {
        port: FamilyPort,
        client: IpAddr,
        endpoint: SocketAddr,
        age: Duration,
    },
    End,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(SocketName::Listener(door)) => write!(f, "listener\t{}", Door(door)),
            Self::Socket(SocketName::Claim((family, port), address)) => {
                write!(f, "claim\t{}\t{address}", Port(*family, port))
            }
            Self::Session {
                door,
                client,
                local,
                endpoint,
            } => {
                let local = local.map_or_else(|| "-".to_owned(), |local| local.to_string());
                write!(f, "session\t{}\t{client}\t{local}\t{endpoint}", Door(door))
            }
            Self::Affinity {
                port: (family, port),
                client,
                endpoint,
                age,
            } => {
                let (port, age) = (Port(*family, port), age.as_millis());
                write!(f, "affinity\t{port}\t{client}\t{endpoint}\t{age}")
            }
            Self::End => f.write_str("end"),
        }
    }
}

struct Port<'a>(Family, &'a PortName);

impl fmt::Display for Port<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PortName {
            service,
            port,
            protocol,
        } = self.1;
        let (namespace, name) = (service.namespace(), service.name());
        write!(f, "{}\t{protocol}\t{namespace}\t{name}\t{port}", self.0)
    }
}

struct Door<'a>(&'a DoorName);

impl fmt::Display for Door<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DoorName { family, port, place } = self.0;
        write!(f, "{}\t", Port(*family, port))?;
        match place {
            Place::Proxy(way) => write!(f, "proxy\t{way}"),
            Place::At(address) => write!(f, "at\t{address}"),
        }
    }
}

/// A record that is none.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("not a record of a hand-over")]
pub(super) struct Malformed;

impl FromStr for Record {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut fields = Fields(text.split('\t'));
        let record = fields.record().ok_or(Malformed)?;
        fields.0.next().is_none().then_some(record).ok_or(Malformed)
    }
}

struct Fields<'a>(Split<'a, char>);

impl Fields<'_> {
    fn record(&mut self) -> Option<Record> {
        Some(match self.0.next()? {
            "listener" => Record::Socket(SocketName::Listener(self.door()?)),
            "claim" => Record::Socket(SocketName::Claim(self.port()?, self.value()?)),
            "session" => Record::Session {
                door: self.door()?,
                client: self.value()?,
                local: match self.0.next()? {
                    "-" => None,
                    local => Some(local.parse().ok()?),
                },
                endpoint: self.value()?,
            },
            "affinity" => Record::Affinity {
                port: self.port()?,
                client: self.value()?,
                endpoint: self.value()?,
                age: Duration::from_millis(self.value()?),
            },
            "end" => Record::End,
            _ => return None,
        })
    }

    fn value<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn one_of<T: Copy + ToString, const N: usize>(&mut self, all: [T; N]) -> Option<T> {
        let text = self.0.next()?;
        all.into_iter().find(|known| known.to_string() == text)
    }

    /// A name of an object, which has no slash.
    fn name(&mut self) -> Option<&str> {
        self.0.next().filter(|name| !name.contains('/'))
    }

    fn port(&mut self) -> Option<FamilyPort> {
        let family = self.one_of(Family::BOTH)?;
        let protocol = self.one_of([Protocol::Tcp, Protocol::Udp, Protocol::Sctp])?;
        let namespace = self.name()?.to_owned();
        let service = ServiceName::new(&namespace, self.name()?);
        let port = self.0.next()?.into();
        let port = PortName {
            service,
            port,
            protocol,
        };
        Some((family, port))
    }

    fn door(&mut self) -> Option<DoorName> {
        let (family, port) = self.port()?;
        let place = match self.0.next()? {
            "proxy" => Place::Proxy(self.one_of([Way::Internal, Way::External, Way::Restricted])?),
            "at" => Place::At(self.value()?),
            _ => return None,
        };
        Some(DoorName { family, port, place })
    }
}

/// Reads anything as greeting and record; what can be read is written the same again.
pub fn fuzz_handover(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.split('\n') {
        let _ = check_greeting(line);
        if let Ok(record) = line.parse::<Record>() {
            assert_eq!(record.to_string().parse(), Ok(record));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> PortName {
        PortName {
            service: ServiceName::new("shop", "web"),
            port: name.into(),
            protocol: Protocol::Tcp,
        }
    }

    /// The form itself: a change of it needs another version.
    #[test]
    fn every_record_is_written_and_read() {
        let door = |place| DoorName {
            family: Family::V6,
            port: port("http"),
            place,
        };
        let at = "[fd00::1]:80".parse().unwrap();
        for (record, text) in [
            (
                Record::Socket(SocketName::Listener(door(Place::Proxy(Way::Restricted)))),
                "listener\tIPv6\ttcp\tshop\tweb\thttp\tproxy\trestricted",
            ),
            (
                Record::Socket(SocketName::Listener(door(Place::At(at)))),
                "listener\tIPv6\ttcp\tshop\tweb\thttp\tat\t[fd00::1]:80",
            ),
            (
                Record::Socket(SocketName::Claim(
                    (Family::V4, port("")),
                    "0.0.0.0:30080".parse().unwrap(),
                )),
                "claim\tIPv4\ttcp\tshop\tweb\t\t0.0.0.0:30080",
            ),
            (
                Record::Session {
                    door: door(Place::At(at)),
                    client: "[fd00::2]:1234".parse().unwrap(),
                    local: None,
                    endpoint: "[fd00::3]:53".parse().unwrap(),
                },
                "session\tIPv6\ttcp\tshop\tweb\thttp\tat\t[fd00::1]:80\t[fd00::2]:1234\t-\t[fd00::3]:53",
            ),
            (
                Record::Affinity {
                    port: (Family::V4, port("http")),
                    client: "192.0.2.1".parse().unwrap(),
                    endpoint: "10.0.0.1:80".parse().unwrap(),
                    age: Duration::from_millis(1500),
                },
                "affinity\tIPv4\ttcp\tshop\tweb\thttp\t192.0.2.1\t10.0.0.1:80\t1500",
            ),
            (Record::End, "end"),
        ] {
            assert_eq!(record.to_string(), text);
            assert_eq!(text.parse(), Ok(record));
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for text in [
            "",
            "end\t",
            "listener",
            "listener\tIPv5\ttcp\tshop\tweb\thttp\tproxy\tinternal",
            "listener\tIPv4\ttcp\tsh/op\tweb\thttp\tproxy\tinternal",
            "listener\tIPv4\ttcp\tshop\tweb\thttp\tproxy\tsideways",
            "claim\tIPv4\ttcp\tshop\tweb\thttp\tnowhere",
            "affinity\tIPv4\ttcp\tshop\tweb\thttp\t192.0.2.1\t10.0.0.1:80\t-1",
            "socket\tIPv4 tcp shop/web:http internal",
        ] {
            assert_eq!(text.parse::<Record>(), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn another_version_is_named() {
        assert_eq!(check_greeting(&greeting()), Ok(()));
        for (text, expected) in [
            ("ferry userspace sockets 1", Unreadable::Version(1)),
            ("ferry userspace sockets 3", Unreadable::Version(3)),
            ("ferry userspace sockets", Unreadable::Greeting),
            ("HTTP/1.1 400 Bad Request", Unreadable::Greeting),
        ] {
            assert_eq!(check_greeting(text), Err(expected), "{text}");
        }
        assert_eq!(
            Unreadable::Version(1).to_string(),
            "it is written in version 1 of the form, and this program reads version 2"
        );
    }
}
