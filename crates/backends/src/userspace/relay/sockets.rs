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

/// A socket that is ready to be served.
#[derive(Debug)]
pub enum Listening {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Listening {
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Listening::Tcp(listener) => listener.local_addr(),
            Listening::Udp(socket) => socket.local_addr(),
        }
    }

    pub fn try_clone(&self) -> io::Result<Listening> {
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

/// What accepted sockets inherit is set here once instead of on each of them.
pub fn bind_tcp(address: SocketAddr) -> io::Result<Listening> {
    let socket = new(address, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    tune_tcp(&socket)?;
    socket.listen(BACKLOG)?;
    Ok(Listening::Tcp(socket.into()))
}

pub(super) fn tune_tcp(socket: &Socket) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))
}

pub fn bind_udp(address: SocketAddr) -> io::Result<Listening> {
    let socket = new(address, Type::DGRAM)?;
    // A smaller buffer than wished for works too, only not as well.
    let _ = socket.set_recv_buffer_size(UDP_BUFFER);
    socket.bind(&address.into())?;
    ferry_host::datagram::want_destinations(socket.as_fd(), address.is_ipv6())?;
    Ok(Listening::Udp(socket.into()))
}

/// Keeps a TCP port from others; who connects is refused.
pub(in crate::userspace) fn hold_tcp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new(address, Type::STREAM)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Keeps a UDP port from others. Being connected to nobody in particular, the socket takes no datagram from anybody
/// else, so the kernel answers that the port is unreachable.
pub(in crate::userspace) fn hold_udp(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket = new(address, Type::DGRAM)?;
    socket.bind(&address.into())?;
    let nobody: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    socket.connect(&SocketAddr::new(nobody, 1).into())?;
    Ok(socket.into())
}

/// Makes a socket that is in place drop every packet without an answer, or take them again.
pub(in crate::userspace) fn refuse_all(socket: BorrowedFd<'_>, refuse: bool) -> io::Result<()> {
    let socket = socket2::SockRef::from(&socket);
    match refuse {
        // BPF_RET | BPF_K, 0: keep no byte of the packet.
        true => socket.attach_filter(&[SockFilter::new(0x06, 0, 0, 0)]),
        false => match socket.detach_filter() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        },
    }
}
