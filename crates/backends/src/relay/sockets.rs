//! Opening the sockets that clients come in by, and those that only keep a port from others.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockFilter, Socket, TcpKeepalive, Type};

/// Clients that may wait to be accepted; the kernel caps it at net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Room for a burst of datagrams; the kernel caps it at net.core.rmem_max.
const UDP_BUFFER: usize = 4 << 20;
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How much waits in the kernel for a peer that does not read before we stop taking more for it. All sockets together
/// have limited memory there: without this, a few hundred such peers slow everybody down. Less makes bulk dearer.
const UNSENT: u32 = 1 << 20;

/// A socket that is ready to be served.
#[derive(Debug)]
pub(crate) enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Listening {
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listening::Tcp(listener) => listener.local_addr(),
            Listening::Udp(socket) => socket.local_addr(),
        }
    }

    pub(crate) fn try_clone(&self) -> io::Result<Listening> {
        Ok(match self {
            Listening::Tcp(listener) => Listening::Tcp(listener.try_clone()?),
            Listening::Udp(socket) => Listening::Udp(socket.try_clone()?),
        })
    }
}

impl AsFd for Listening {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listening::Tcp(listener) => listener.as_fd(),
            Listening::Udp(socket) => socket.as_fd(),
        }
    }
}

fn new(address: SocketAddr, kind: Type) -> io::Result<Socket> {
    let protocol = if kind == Type::STREAM {
        Protocol::TCP
    } else {
        Protocol::UDP
    };
    let socket = Socket::new(
        Domain::for_address(address),
        kind.nonblocking().cloexec(),
        Some(protocol),
    )?;
    if address.is_ipv6() {
        // The two families are two doors, also on the wildcard address.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Listens at an address; a port of zero lets the kernel choose.
pub(crate) fn listen(protocol: ferry_model::Protocol, address: SocketAddr) -> io::Result<Listening> {
    match protocol {
        ferry_model::Protocol::Tcp => {
            let socket = new(address, Type::STREAM)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            start(socket)
        }
        ferry_model::Protocol::Udp => {
            let socket = new(address, Type::DGRAM)?;
            // A smaller buffer than wished for works too, only not as well.
            let _ = socket.set_recv_buffer_size(UDP_BUFFER);
            socket.bind(&address.into())?;
            ferry_host::datagram::want_destinations(socket.as_fd(), address)?;
            Ok(Listening::Udp(socket.into()))
        }
        ferry_model::Protocol::Sctp => Err(unsupported()),
    }
}

/// What accepted sockets inherit is set here once instead of on each of them.
fn start(socket: Socket) -> io::Result<Listening> {
    tune_tcp(&socket)?;
    socket.listen(BACKLOG)?;
    Ok(Listening::Tcp(socket.into()))
}

pub(super) fn tune_tcp(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
}

/// Keeps a port from others, and makes the kernel refuse who comes.
///
/// A TCP socket that is bound but does not listen does that, once it no longer agrees to share its address. A UDP socket
/// does it when it is connected to nobody in particular: it takes no datagram of anybody else, so the kernel answers
/// that the port is unreachable.
pub fn hold(protocol: ferry_model::Protocol, address: SocketAddr) -> io::Result<OwnedFd> {
    match protocol {
        ferry_model::Protocol::Tcp => {
            let socket = new(address, Type::STREAM)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.set_reuse_address(false)?;
            Ok(socket.into())
        }
        ferry_model::Protocol::Udp => {
            let socket = new(address, Type::DGRAM)?;
            socket.bind(&address.into())?;
            let nobody: IpAddr = match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            socket.connect(&SocketAddr::new(nobody, 1).into())?;
            Ok(socket.into())
        }
        ferry_model::Protocol::Sctp => Err(unsupported()),
    }
}

/// Goes on with a socket of a predecessor, if it is bound to that address and does, or can be made to, listen.
pub(crate) fn adopt(socket: OwnedFd, wanted: SocketAddr) -> Option<Listening> {
    let socket = Socket::from(socket);
    let local = socket.local_addr().ok()?.as_socket()?;
    if local.ip() != wanted.ip() || (wanted.port() != 0 && local.port() != wanted.port()) {
        return None;
    }
    match socket.r#type().ok()? {
        Type::STREAM if socket.is_listener().ok()? => Some(Listening::Tcp(socket.into())),
        Type::STREAM => {
            socket.set_reuse_address(true).ok()?;
            start(socket).ok()
        }
        // A held UDP socket cannot be made to listen: its address is no longer what it was bound to.
        Type::DGRAM if socket.peer_addr().is_err() => Some(Listening::Udp(socket.into())),
        _ => None,
    }
}

/// Makes the kernel drop packets that do not pass the filter, without an answer; none lets all of them through.
pub(crate) fn set_filter(socket: BorrowedFd<'_>, filter: Option<&[SockFilter]>) -> io::Result<()> {
    let socket = socket2::SockRef::from(&socket);
    match filter {
        Some(filter) => socket.attach_filter(filter),
        None => match socket.detach_filter() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        },
    }
}

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "SCTP cannot be relayed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_sockets_inherit_what_was_set_once() {
        let listening = start(new("127.0.0.1:0".parse().unwrap(), Type::STREAM).unwrap()).unwrap();
        let _client = std::net::TcpStream::connect(listening.local_addr().unwrap()).unwrap();
        let Listening::Tcp(listener) = listening else {
            panic!("not TCP");
        };
        listener.set_nonblocking(false).unwrap();
        let accepted = Socket::from(listener.accept().unwrap().0);
        assert!(accepted.tcp_nodelay().unwrap());
        assert_eq!(accepted.tcp_notsent_lowat().unwrap(), UNSENT);
        assert!(accepted.keepalive().unwrap());
    }
}
