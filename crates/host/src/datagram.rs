//! Datagrams with both of their addresses: where one came from, and which of our addresses it was sent to, so that
//! an answer leaves from the address that the client knows. Touches only the sockets it is given.
#![allow(unsafe_code)]

use std::io;
use std::mem::{self, MaybeUninit};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Room for one packet-info message of either family, with its header.
const CONTROL: usize = 64;

/// Control messages start with a header that has to be aligned.
#[repr(align(8))]
struct Control([u8; CONTROL]);

/// One datagram as it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Bytes in the buffer.
    pub len: usize,
    pub peer: SocketAddr,
    /// The address it was sent to; none unless `want_destinations` was called on the socket.
    pub local: Option<IpAddr>,
}

/// Makes the kernel say which address each datagram was sent to. `at` is where the socket is bound.
pub fn want_destinations(socket: BorrowedFd<'_>, at: SocketAddr) -> io::Result<()> {
    let (level, name) = match at {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    let on: libc::c_int = 1;
    // SAFETY: the pointer and length describe `on`, which lives across the call.
    let status = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const on).cast(),
            mem::size_of_val(&on) as libc::socklen_t,
        )
    };
    result(status as isize).map(drop)
}

/// Receives one datagram without waiting.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Arrival> {
    let mut name = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    let mut message = header(&mut part, &mut control);
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = mem::size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    // SAFETY: `message` points at `name`, `part`, `buffer` and `control`, which all outlive the call, with their sizes.
    let len = result(unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) })?;
    // SAFETY: zeroed storage is a valid sockaddr_storage, and the kernel wrote at most its size.
    let peer = address(&unsafe { name.assume_init() })?;
    Ok(Arrival {
        len,
        peer,
        local: destination(&message),
    })
}

/// Sends one datagram without waiting, from a given address of ours if there is one.
pub fn send(
    socket: BorrowedFd<'_>,
    data: &[u8],
    peer: SocketAddr,
    local: Option<IpAddr>,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut message = header(&mut part, &mut control);
    let name = Name::of(peer);
    name.put(&mut message);
    put_source(&mut message, local);
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `message` points at `name`, `part`, `data` and `control`, which all outlive the call; the
    // kernel only reads them.
    result(unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) })
}

/// A peer's address in the kernel's form.
enum Name {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl Name {
    fn of(peer: SocketAddr) -> Self {
        match peer {
            SocketAddr::V4(peer) => Name::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: peer.port().to_be(),
                sin_addr: in_addr(*peer.ip()),
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(peer) => Name::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: peer.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: peer.ip().octets(),
                },
                sin6_scope_id: peer.scope_id(),
            }),
        }
    }

    /// Makes a message point at it.
    fn put(&self, message: &mut libc::msghdr) {
        let (name, length) = match self {
            Name::V4(name) => ((&raw const *name).cast_mut().cast(), mem::size_of_val(name)),
            Name::V6(name) => ((&raw const *name).cast_mut().cast(), mem::size_of_val(name)),
        };
        message.msg_name = name;
        message.msg_namelen = length as libc::socklen_t;
    }
}

/// Makes a message leave from an address of ours.
fn put_source(message: &mut libc::msghdr, local: Option<IpAddr>) {
    match local {
        None => {
            message.msg_control = std::ptr::null_mut();
            message.msg_controllen = 0;
        }
        Some(IpAddr::V4(local)) => {
            let info = libc::in_pktinfo {
                ipi_ifindex: 0,
                ipi_spec_dst: in_addr(local),
                ipi_addr: in_addr(local),
            };
            put(message, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(local)) => {
            let info = libc::in6_pktinfo {
                ipi6_addr: libc::in6_addr {
                    s6_addr: local.octets(),
                },
                ipi6_ifindex: 0,
            };
            put(message, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
}

fn header(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is valid: no name, no parts, no control.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    message
}

/// Writes the one control message of `message`, whose control buffer is `CONTROL` bytes long.
fn put<T: Copy>(message: &mut libc::msghdr, level: libc::c_int, kind: libc::c_int, value: T) {
    let size = mem::size_of::<T>() as libc::c_uint;
    // SAFETY: the control buffer is aligned for a header and holds CMSG_SPACE of either packet info (at most 40
    // bytes), so the first header and its data lie inside it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let first = libc::CMSG_FIRSTHDR(message);
        (*first).cmsg_level = level;
        (*first).cmsg_type = kind;
        (*first).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(first).cast::<T>().write_unaligned(value);
    }
}

/// The address that a received datagram was sent to, if the kernel said so.
fn destination(message: &libc::msghdr) -> Option<IpAddr> {
    // SAFETY: the kernel filled in the control buffer and its length; the CMSG macros stay inside of it, and the data
    // of a message of these types is at least the struct read, unaligned.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(message);
        while let Some(control) = next.as_ref() {
            match (control.cmsg_level, control.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = libc::CMSG_DATA(next).cast::<libc::in_pktinfo>().read_unaligned();
                    return Some(Ipv4Addr::from(u32::from_be(info.ipi_addr.s_addr)).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = libc::CMSG_DATA(next).cast::<libc::in6_pktinfo>().read_unaligned();
                    return Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => next = libc::CMSG_NXTHDR(message, next),
            }
        }
    }
    None
}

fn address(storage: &libc::sockaddr_storage) -> io::Result<SocketAddr> {
    match libc::c_int::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that a sockaddr_in was written, and the storage is large and aligned enough.
            let v4 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in>() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Ok(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, for a sockaddr_in6.
            let v6 = unsafe { &*(&raw const *storage).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Ok(SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id).into())
        }
        family => Err(io::Error::other(format!(
            "a datagram from an address of family {family}"
        ))),
    }
}

fn in_addr(ip: Ipv4Addr) -> libc::in_addr {
    libc::in_addr {
        s_addr: u32::from(ip).to_be(),
    }
}

fn result(status: isize) -> io::Result<usize> {
    match status {
        ..0 => Err(io::Error::last_os_error()),
        count => Ok(count as usize),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::*;

    /// Asks `server` (bound to every address) at `at`, and checks that the answer comes from there.
    fn ask(server: &UdpSocket, client: &UdpSocket, at: SocketAddr) {
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        want_destinations(server.as_fd(), at).unwrap();
        client.send_to(b"ping", at).unwrap();
        server.peek(&mut [0; 8]).unwrap();
        let mut buffer = [0; 16];
        let arrival = receive(server.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..arrival.len], b"ping");
        assert_eq!(
            (arrival.peer, arrival.local),
            (client.local_addr().unwrap(), Some(at.ip()))
        );
        assert_eq!(
            send(server.as_fd(), b"pong", arrival.peer, arrival.local).unwrap(),
            4
        );
        let (len, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from), (&b"pong"[..], at));
    }

    #[test]
    fn answers_leave_from_the_address_that_was_asked() {
        let server = UdpSocket::bind("0.0.0.0:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = server.local_addr().unwrap().port();
        ask(&server, &client, SocketAddr::from(([127, 9, 8, 7], port)));
        ask(&server, &client, SocketAddr::from(([127, 0, 0, 1], port)));
    }

    #[test]
    fn the_other_family_too() {
        let server = UdpSocket::bind("[::]:0").unwrap();
        let client = UdpSocket::bind("[::1]:0").unwrap();
        let port = server.local_addr().unwrap().port();
        ask(
            &server,
            &client,
            SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
        );
    }

    #[test]
    fn nothing_to_receive_does_not_wait() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let error = receive(socket.as_fd(), &mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }
}
