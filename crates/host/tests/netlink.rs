//! The netlink room against the real kernel, in a network namespace that each test makes for its own thread.
#![allow(clippy::unwrap_used)]

use ferry_host::netlink::{Bus, Error, Socket, Writer};
use ferry_lab::netns::Namespace;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const IFF_UP: u32 = 1;

/// Runs `body` in a network namespace of its own.
fn in_namespace(body: impl FnOnce() + Send) {
    Namespace::new("netlink").unwrap().run(body).unwrap();
}

fn link_header(index: i32, flags: u32, change: u32) -> Vec<u8> {
    let mut header = vec![0; 4];
    header.extend(index.to_ne_bytes());
    header.extend(flags.to_ne_bytes());
    header.extend(change.to_ne_bytes());
    header
}

fn links(socket: &mut Socket) -> Vec<(String, u32)> {
    socket
        .collect(
            RTM_GETLINK,
            |w| w.raw(&link_header(0, 0, 0)),
            |message| {
                assert_eq!(message.kind, RTM_NEWLINK);
                let name = ferry_host::netlink::attrs(message.after(16))
                    .get(IFLA_IFNAME)?
                    .str()?
                    .to_owned();
                Some((name, u32::from_ne_bytes(message.payload[8..12].try_into().ok()?)))
            },
        )
        .unwrap()
}

#[test]
fn routes_dump_request_and_refusal() {
    in_namespace(|| {
        let mut socket = Socket::open(Bus::Route).unwrap();
        let before = links(&mut socket);
        assert_eq!(before.iter().filter(|(name, _)| name == "lo").count(), 1);
        assert!(
            before
                .iter()
                .any(|(name, flags)| name == "lo" && flags & IFF_UP != 0)
        );

        socket
            .request(RTM_NEWLINK, 0, |w| w.raw(&link_header(1, 0, IFF_UP)))
            .unwrap();
        assert!(
            links(&mut socket)
                .iter()
                .any(|(name, flags)| name == "lo" && flags & IFF_UP == 0)
        );

        let error = socket
            .request(RTM_NEWLINK, 0, |w| w.raw(&link_header(4711, IFF_UP, IFF_UP)))
            .unwrap_err();
        assert_eq!(error.errno(), Some(libc::ENODEV));
        assert_eq!(
            links(&mut socket).len(),
            before.len(),
            "the socket is usable after a refusal"
        );
    });
}

#[test]
fn generic_family_is_resolved() {
    in_namespace(|| {
        let mut socket = Socket::open(Bus::Generic).unwrap();
        let mut id = None;
        socket
            .get(
                16, // GENL_ID_CTRL
                0,
                |w| {
                    w.raw(&[3, 1, 0, 0]); // CTRL_CMD_GETFAMILY
                    w.str(2, "nlctrl");
                },
                |message| {
                    id = ferry_host::netlink::attrs(message.after(4))
                        .get(1)
                        .and_then(|attr| attr.u16())
                },
            )
            .unwrap();
        assert_eq!(id, Some(16));
    });
}

#[test]
fn netfilter_batch_names_the_refused_message() {
    const SUBSYSTEM: u16 = 10 << 8;
    in_namespace(|| {
        let mut socket = Socket::open(Bus::Netfilter).unwrap();
        let batch = |socket: &mut Socket, with_chain: bool| {
            let mut writer = Writer::new();
            writer.message(16, 1, socket.next_seq(), |w| w.netfilter_header(0, 10));
            writer.message(SUBSYSTEM, 0x401, socket.next_seq(), |w| {
                w.netfilter_header(2, 0);
                w.str(1, "t");
            });
            let chain = socket.next_seq();
            if with_chain {
                writer.message(SUBSYSTEM | 5, 1, chain, |w| {
                    w.netfilter_header(2, 0);
                    w.str(1, "t");
                    w.str(3, "missing");
                });
            }
            writer.message(17, 1, socket.next_seq(), |w| w.netfilter_header(0, 10));
            (socket.transact(&writer).unwrap(), chain)
        };
        let (refused, chain) = batch(&mut socket, true);
        assert_eq!(refused.len(), 1);
        assert_eq!(
            (refused[0].seq, refused[0].errno, refused[0].kind),
            (chain, libc::ENOENT, SUBSYSTEM | 5)
        );
        assert!(refused[0].offset.is_some(), "{refused:?}");
        assert_eq!(batch(&mut socket, false).0, []);
    });
}

#[test]
fn a_datagram_larger_than_the_default_queue_is_sent() {
    in_namespace(|| {
        let mut socket = Socket::open(Bus::Netfilter).unwrap();
        let mut writer = Writer::new();
        writer.message(16, 1, 1, |w| w.netfilter_header(0, 10));
        for seq in 2..60_000 {
            writer.message(10 << 8, 0x401, seq, |w| {
                w.netfilter_header(2, 0);
                w.str(1, "t");
            });
        }
        writer.message(17, 1, 60_000, |w| w.netfilter_header(0, 10));
        assert!(writer.len() > 1 << 20);
        assert_eq!(socket.transact(&writer).unwrap(), []);

        let mut long = Writer::new();
        long.nest(1, |w| (0..3).for_each(|_| w.attr(1, &[0; 30_000])));
        assert!(matches!(socket.send(&long), Err(Error::TooLong)));
    });
}
