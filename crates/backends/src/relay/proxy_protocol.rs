//! The PROXY protocol, version 2: tells an endpoint who is connecting to it.

use std::net::SocketAddr;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const VERSION_2_PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// The header of a TCP connection from `client` to `destination`. Where their families differ, both are written as
/// IPv6.
pub(super) fn header(client: SocketAddr, destination: SocketAddr) -> Vec<u8> {
    let mut header = Vec::with_capacity(52);
    header.extend_from_slice(&SIGNATURE);
    header.push(VERSION_2_PROXY);
    match (client, destination) {
        (SocketAddr::V4(client), SocketAddr::V4(destination)) => {
            header.extend_from_slice(&[TCP_OVER_IPV4, 0, 12]);
            header.extend_from_slice(&client.ip().octets());
            header.extend_from_slice(&destination.ip().octets());
        }
        (client, destination) => {
            header.extend_from_slice(&[TCP_OVER_IPV6, 0, 36]);
            for address in [client, destination] {
                header.extend_from_slice(&match address {
                    SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
                    SocketAddr::V6(v6) => v6.ip().octets(),
                });
            }
        }
    }
    header.extend_from_slice(&client.port().to_be_bytes());
    header.extend_from_slice(&destination.port().to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4() {
        let header = header("192.0.2.1:4660".parse().unwrap(), "10.96.0.1:80".parse().unwrap());
        let mut want = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c".to_vec();
        want.extend([192, 0, 2, 1, 10, 96, 0, 1, 0x12, 0x34, 0, 80]);
        assert_eq!(header, want);
    }

    #[test]
    fn ipv6_and_mixed() {
        let long = header("[2001:db8::1]:1".parse().unwrap(), "[fd00::a]:2".parse().unwrap());
        assert_eq!((long.len(), &long[13..16]), (52, &[0x21, 0, 36][..]));
        assert_eq!(&long[16..20], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(&long[48..], [0, 1, 0, 2]);
        let mixed = header("192.0.2.1:1".parse().unwrap(), "[fd00::a]:2".parse().unwrap());
        assert_eq!(&mixed[26..32], [0xff, 0xff, 192, 0, 2, 1]);
    }
}
