//! Listening sockets: a wildcard of either family answers on both, anything else is exactly what it says.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Which protocol families a wildcard address stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wildcard {
    /// `0.0.0.0` and `::` both mean every address of the node.
    BothFamilies,
    /// `0.0.0.0` means IPv4 only and `::` IPv6 only, so that the two can be bound side by side.
    OwnFamily,
}

/// A socket could not be bound; reads like the message that operators of kube-proxy know.
#[derive(Debug)]
pub struct ListenError {
    network: &'static str,
    address: SocketAddr,
    source: io::Error,
}

impl ListenError {
    /// Something else than binding failed for a server on this address.
    pub fn new(address: SocketAddr, source: io::Error) -> Self {
        Self {
            network: "tcp",
            address,
            source,
        }
    }
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "listen {} {}: bind: {}",
            self.network,
            self.address,
            plain(&self.source)
        )
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// The system's words for an error, in lower case and without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text
        .split_once(" (os error")
        .map_or(text.as_str(), |(words, _)| words);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => String::new(),
    }
}

/// Binds and listens; ready to be handed to the runtime.
pub fn bind(address: SocketAddr, wildcard: Wildcard) -> Result<TcpListener, ListenError> {
    let network = match (wildcard, address) {
        (Wildcard::BothFamilies, _) => "tcp",
        (Wildcard::OwnFamily, SocketAddr::V4(_)) => "tcp4",
        (Wildcard::OwnFamily, SocketAddr::V6(_)) => "tcp6",
    };
    let bound = if wildcard == Wildcard::BothFamilies && address.ip().is_unspecified() {
        let both = SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), address.port());
        open(both, false).or_else(|error| {
            // Without IPv6 in the kernel there is no dual-stack socket; a taken port must stay an error.
            if error.kind() == io::ErrorKind::AddrInUse {
                return Err(error);
            }
            open(
                SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), address.port()),
                true,
            )
        })
    } else {
        open(address, true)
    };
    bound.map_err(|source| ListenError {
        network,
        address,
        source,
    })
}

fn open(address: SocketAddr, only_own_family: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(only_own_family)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    fn port_of(listener: &TcpListener) -> u16 {
        listener.local_addr().unwrap().port()
    }

    #[test]
    fn a_wildcard_of_either_family_answers_on_both() {
        for wildcard in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind(wildcard.parse().unwrap(), Wildcard::BothFamilies).unwrap();
            for loopback in ["127.0.0.1", "::1"] {
                let target = SocketAddr::new(loopback.parse().unwrap(), port_of(&listener));
                TcpStream::connect(target).unwrap_or_else(|e| panic!("{wildcard} via {target}: {e}"));
            }
        }
    }

    #[test]
    fn own_family_wildcards_stand_side_by_side() {
        let v4 = bind("0.0.0.0:0".parse().unwrap(), Wildcard::OwnFamily).unwrap();
        let same_port = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port_of(&v4));
        bind(same_port, Wildcard::OwnFamily).unwrap();
    }

    #[test]
    fn a_taken_port_is_named_as_upstream_names_it() {
        let taken = bind("127.0.0.1:0".parse().unwrap(), Wildcard::BothFamilies).unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(
            bind(address, Wildcard::BothFamilies).unwrap_err().to_string(),
            format!("listen tcp {address}: bind: address already in use")
        );
        let wildcard = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
        assert_eq!(
            bind(wildcard, Wildcard::OwnFamily).unwrap_err().to_string(),
            format!("listen tcp4 {wildcard}: bind: address already in use")
        );
    }
}
