//! On the wire: sizes, segments that do not belong, addresses that stay, times in the kernel.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ferry_lab::netns::{Probe, Proto};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};

use super::run::Run;
use crate::Mode;
use crate::objects::{POD1, RPOD1};

pub(super) fn fragments(run: &mut Run) -> Result<()> {
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("client", 80, Proto::Udp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("client")?;
    let answer = run.stage.network().runtime().block_on(async {
        let socket = UdpSocket::from_std(sockets.get(false, Proto::Udp).await?.into())?;
        socket.connect(to).await?;
        socket.send(&[b'?'; 4000]).await?;
        let mut buffer = [0; 512];
        let read = tokio::time::timeout(
            ferry_lab::at_most(Duration::from_secs(5)),
            socket.recv(&mut buffer),
        );
        let length = read.await.context("no answer to a datagram of 4,000 bytes")??;
        Ok::<_, anyhow::Error>(buffer[..length].to_vec())
    })?;
    ensure!(!answer.is_empty(), "an empty answer");
    Ok(())
}

pub(super) fn large_request(run: &mut Run) -> Result<()> {
    const LENGTH: usize = 1 << 20;
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("client", 80, Proto::Tcp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("client")?;
    run.stage.network().runtime().block_on(async {
        let socket = sockets.get(false, Proto::Tcp).await?;
        let stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        let (mut read, mut write) = stream.into_split();
        let sender = tokio::spawn(async move { write.write_all(&[b'x'; LENGTH]).await.map(|()| write) });
        // the greeting, and then every byte again
        let mut echoed = 0;
        let mut buffer = [0; 16384];
        let all = async {
            while echoed < LENGTH {
                match read.read(&mut buffer).await? {
                    0 => bail!("closed after {echoed} bytes"),
                    n => echoed += buffer[..n].iter().filter(|byte| **byte == b'x').count(),
                }
            }
            Ok(())
        };
        tokio::time::timeout(ferry_lab::at_most(Duration::from_secs(20)), all)
            .await
            .context("a megabyte did not come back")??;
        sender.await??;
        Ok::<_, anyhow::Error>(())
    })
}

/// A segment outside the window of its connection is not translated back. If it reached the client, that would answer a
/// stranger with a reset, whose number is right for the server's end of the connection.
/// In userspace mode client and server have a connection each.
pub(super) fn invalid_packet(run: &mut Run) -> Result<()> {
    if run.stage.mode() == Mode::Userspace {
        return Ok(());
    }
    let (service, slice) = (run.service(), run.slice(&[POD1]));
    run.apply(&[service, slice])?;
    run.answers(run.probe("remote", 80, Proto::Tcp)?, &["pod1:8080"])?;
    let to = SocketAddr::new(run.vip().parse()?, 80);
    let sockets = run.stage.network().sockets("remote")?;
    let network = run.stage.network();
    let raw = network
        .host("pod1")?
        .run(|| Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)))??;
    raw.set_nonblocking(true)?;
    let server = SocketAddrV4::new(POD1.0.parse()?, 8080);
    network.runtime().block_on(async {
        let socket = sockets.get(false, Proto::Tcp).await?;
        socket.bind(&SocketAddr::new(RPOD1.0.parse()?, 0).into())?;
        let mut stream = TcpSocket::from_std_stream(socket.into()).connect(to).await?;
        let SocketAddr::V4(client) = stream.local_addr()? else {
            bail!("an address of another family");
        };
        let mut buffer = [0; 512];
        ensure!(stream.read(&mut buffer).await? > 0, "no greeting");
        echo(&mut stream, b"before").await?;
        let (sequence, acknowledged) = last_numbers(&raw, client.port())?;
        for distance in [1 << 20, 1 << 28, 1 << 30] {
            let stray = segment(server, client, sequence.wrapping_add(distance), acknowledged);
            raw.send_to(&stray, &SocketAddrV4::new(*client.ip(), 0).into())?;
        }
        tokio::time::sleep(ferry_lab::patience(Duration::from_millis(200))).await;
        echo(&mut stream, b"after")
            .await
            .context("after segments outside the window")
    })
}

async fn echo(stream: &mut tokio::net::TcpStream, words: &[u8]) -> Result<()> {
    let mut buffer = [0; 64];
    stream.write_all(words).await?;
    let read = tokio::time::timeout(
        ferry_lab::at_most(Duration::from_secs(5)),
        stream.read(&mut buffer),
    );
    let length = read
        .await
        .context("no echo")?
        .context("the connection was reset")?;
    ensure!(&buffer[..length] == words, "the connection was closed");
    Ok(())
}

/// What the server's next segment would say of itself and of what it has got, from the segments that came in.
fn last_numbers(raw: &Socket, client_port: u16) -> Result<(u32, u32)> {
    let mut found = None;
    let mut buffer = [0; 2048];
    while let Ok(length) = std::io::Read::read(&mut &*raw, &mut buffer) {
        let packet = &buffer[..length];
        let tcp = packet.get(usize::from(packet[0] & 15) * 4..).unwrap_or_default();
        if tcp.len() < 20 || tcp[..2] != client_port.to_be_bytes() {
            continue;
        }
        let number = |at: usize| u32::from_be_bytes([tcp[at], tcp[at + 1], tcp[at + 2], tcp[at + 3]]);
        let data = tcp.len() - usize::from(tcp[12] >> 4) * 4;
        found = Some((number(8), number(4).wrapping_add(data as u32)));
    }
    found.context("the server got no segment")
}

/// An acknowledgement with these numbers.
fn segment(from: SocketAddrV4, to: SocketAddrV4, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut segment = Vec::with_capacity(20);
    segment.extend(from.port().to_be_bytes());
    segment.extend(to.port().to_be_bytes());
    segment.extend(sequence.to_be_bytes());
    segment.extend(acknowledged.to_be_bytes());
    // five words of header, ACK, a window, no checksum yet, not urgent
    segment.extend([0x50, 0x10, 0x20, 0, 0, 0, 0, 0]);
    let checksum = checksum(from.ip(), to.ip(), &segment);
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// TCP's checksum, over the addresses too.
fn checksum(from: &Ipv4Addr, to: &Ipv4Addr, segment: &[u8]) -> u16 {
    let mut bytes: Vec<u8> = [from.octets(), to.octets()].concat();
    bytes.extend([0, 6]);
    bytes.extend((segment.len() as u16).to_be_bytes());
    bytes.extend(segment);
    let words = bytes
        .chunks(2)
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    let sum = (sum >> 16) + (sum & 0xffff);
    !((sum + (sum >> 16)) as u16)
}

pub(super) fn no_snat(run: &mut Run) -> Result<()> {
    let pods = [
        ("pod2", POD1.0, "pod2"),
        ("remote", POD1.0, "remote"),
        ("pod1", RPOD1.0, "pod1"),
    ];
    for (from, to, seen_as) in pods {
        let seen_as = BTreeSet::from([seen_as.to_owned()]);
        run.until(&Probe::new(from, to.parse()?, 8080, Proto::Tcp), |outcome| {
            outcome.sources == seen_as
        })?;
    }
    Ok(())
}

/// Userspace mode leaves connection tracking alone: its connections end at the node.
pub(super) fn close_wait(run: &mut Run) -> Result<()> {
    if run.stage.mode() == Mode::Userspace {
        return Ok(());
    }
    let path = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait";
    let seconds = run
        .stage
        .network()
        .node()
        .run(|| std::fs::read_to_string(path))??;
    ensure!(seconds.trim() == "3600", "{path} is {seconds}");
    Ok(())
}
