//! Access rules as classic BPF, so that the kernel drops packets of clients that are to get no answer: pure.
//!
//! A relay can only accept a connection and then break it. A filter on the listening socket comes before that: the
//! client hears nothing, as with a firewall, and takes no place in the queue. It needs no privilege.

use std::net::IpAddr;

use ferry_model::{Action, Actions, Family};
use ipnet::IpNet;
use socket2::SockFilter;

use crate::relay::{Access, Home};

const LOAD_WORD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_EQUAL_X: u16 = 0x1d;
const RETURN: u16 = 0x06;
const TO_X: u16 = 0x07;
/// What the kernel takes at most.
const MAX_LENGTH: usize = 4096;
/// Offsets from here on count from the start of the IP header.
const NETWORK_HEADER: u32 = 0xfff0_0000;

/// One instruction: code, where to go on if true and if false, operand.
type Instruction = (u16, u8, u8, u32);

/// The filter for the listening socket of a family; none if everyone may come, or if the rule is too long for the
/// kernel: then those who may not are turned away later.
pub(crate) fn program(access: &Access, family: Family) -> Option<Vec<SockFilter>> {
    let code = instructions(access, family)?;
    Some(
        code.into_iter()
            .map(|(code, jt, jf, k)| SockFilter::new(code, jt, jf, k))
            .collect(),
    )
}

fn instructions(access: &Access, family: Family) -> Option<Vec<Instruction>> {
    let ignores_strangers = access.actions.others == Action::Drop;
    if access.uniform() == Some(Action::Drop) {
        return Some(vec![(RETURN, 0, 0, 0)]);
    }
    if access.allowed.is_none() && !ignores_strangers {
        return None;
    }
    let header = Header { family };
    let mut code = Vec::new();
    if let Some(allowed) = &access.allowed {
        let tests = allowed.networks().map(|net| header.test(&net)).collect();
        header.require(&mut code, tests);
    }
    if let (true, Some(home)) = (ignores_strangers, &access.home) {
        header.require(&mut code, header.tests_of_home(&access.actions, home));
    }
    code.push((RETURN, 0, 0, u32::MAX));
    (code.len() <= MAX_LENGTH).then_some(code)
}

fn loopback_v4() -> IpNet {
    IpNet::V4(ipnet::Ipv4Net::new_assert([127, 0, 0, 0].into(), 8))
}

struct Header {
    family: Family,
}

impl Header {
    fn per_family(&self, v4: u32, v6: u32) -> u32 {
        match self.family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    fn words(&self) -> u32 {
        self.per_family(1, 4)
    }

    fn source(&self, word: u32) -> u32 {
        NETWORK_HEADER + self.per_family(12, 8) + 4 * word
    }

    fn destination(&self, word: u32) -> u32 {
        self.source(word) + 4 * self.words()
    }

    /// Instructions that fall through if the source is in the network, and leave by the last jump if not.
    fn test(&self, net: &IpNet) -> Vec<(Instruction, bool)> {
        let (address, mask) = match (net, self.family) {
            (IpNet::V4(net), Family::V4) => (vec![u32::from(net.network())], vec![u32::from(net.netmask())]),
            (IpNet::V6(net), Family::V6) => {
                (words(u128::from(net.network())), words(u128::from(net.netmask())))
            }
            // A network of the other family holds no client of this one.
            (IpNet::V4(_), Family::V6) | (IpNet::V6(_), Family::V4) => return vec![((JUMP, 0, 0, 0), true)],
        };
        let mut code = Vec::new();
        for (word, (address, mask)) in address.into_iter().zip(mask).enumerate() {
            if mask != 0 {
                code.push(((LOAD_WORD, 0, 0, self.source(word as u32)), false));
                code.push(((AND, 0, 0, mask), false));
                code.push(((JUMP_EQUAL, 0, 0, address), true));
            }
        }
        code
    }

    /// Tests for those clients of this node that are not dropped as strangers are.
    fn tests_of_home(&self, actions: &Actions, home: &Home) -> Vec<Vec<(Instruction, bool)>> {
        let mut tests = Vec::new();
        if actions.node != Action::Drop {
            let loopback: IpNet = match self.family {
                Family::V4 => loopback_v4(),
                Family::V6 => IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]).into(),
            };
            let nets = home.node.iter().copied().map(IpNet::from).chain([loopback]);
            tests.extend(nets.map(|net| self.test(&net)));
            tests.push(self.test_own());
        }
        if actions.pods != Action::Drop {
            tests.extend(home.pods.map(|net| self.test(&net)));
        }
        tests
    }

    /// The same for a source that is the destination too.
    fn test_own(&self) -> Vec<(Instruction, bool)> {
        let mut code = Vec::new();
        for word in 0..self.words() {
            code.push(((LOAD_WORD, 0, 0, self.destination(word)), false));
            code.push(((TO_X, 0, 0, 0), false));
            code.push(((LOAD_WORD, 0, 0, self.source(word)), false));
            code.push(((JUMP_EQUAL_X, 0, 0, 0), true));
        }
        code
    }

    /// Drops the packet unless one of the tests holds.
    fn require(&self, code: &mut Vec<Instruction>, tests: Vec<Vec<(Instruction, bool)>>) {
        // Each test is followed by a jump to behind the drop; a test that fails goes on behind that jump.
        let length: usize = tests.iter().map(|test| test.len() + 1).sum();
        let end = code.len() + length + 1;
        for test in tests {
            let size = test.len();
            for (at, ((operation, _, _, operand), leaves)) in test.into_iter().enumerate() {
                let behind = size - at;
                code.push(match (leaves, operation) {
                    (true, JUMP) => (JUMP, 0, 0, behind as u32),
                    (true, _) => (operation, 0, behind as u8, operand),
                    (false, _) => (operation, 0, 0, operand),
                });
            }
            code.push((JUMP, 0, 0, (end - code.len() - 1) as u32));
        }
        code.push((RETURN, 0, 0, 0));
    }
}

fn words(bits: u128) -> Vec<u32> {
    (0..4).map(|word| (bits >> (96 - 32 * word)) as u32).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferry_model::{Allowed, Scope};
    use proptest::prelude::*;

    use super::*;
    use crate::relay::Home;

    /// Runs a program as the kernel would, on the addresses of a packet.
    fn passes(code: &[Instruction], source: IpAddr, destination: IpAddr) -> bool {
        let mut header = vec![0; if source.is_ipv4() { 12 } else { 8 }];
        for address in [source, destination] {
            match address {
                IpAddr::V4(ip) => header.extend(ip.octets()),
                IpAddr::V6(ip) => header.extend(ip.octets()),
            }
        }
        let (mut at, mut a, mut x) = (0, 0u32, 0u32);
        loop {
            let (operation, jt, jf, k) = code[at];
            at += 1;
            let branch = |holds: bool| usize::from(if holds { jt } else { jf });
            match operation {
                LOAD_WORD => {
                    let offset = (k - NETWORK_HEADER) as usize;
                    a = u32::from_be_bytes(header[offset..offset + 4].try_into().unwrap());
                }
                AND => a &= k,
                TO_X => x = a,
                JUMP => at += k as usize,
                JUMP_EQUAL => at += branch(a == k),
                JUMP_EQUAL_X => at += branch(a == x),
                RETURN => return k != 0,
                other => panic!("an instruction {other:#x}"),
            }
        }
    }

    fn address(family: Family) -> impl Strategy<Value = IpAddr> {
        // Few different bits, so that networks and addresses meet.
        (0u8..4, 0u8..4).prop_map(move |(high, low)| match family {
            Family::V4 => IpAddr::from([10, high, 0, low]),
            Family::V6 => IpAddr::from([0xfd00, u16::from(high), 0, 0, 0, 0, 0, u16::from(low)]),
        })
    }

    fn net(family: Family) -> impl Strategy<Value = IpNet> {
        let longest = match family {
            Family::V4 => 32,
            Family::V6 => 128,
        };
        let lengths = prop_oneof![Just(0), Just(8), Just(14), Just(16), Just(30), Just(longest)];
        (address(family), lengths).prop_map(|(ip, length)| IpNet::new(ip, length).unwrap().trunc())
    }

    const fn forward(scope: Scope) -> Action {
        Action::Forward {
            scope,
            masquerade: true,
        }
    }

    fn access(family: Family) -> impl Strategy<Value = Access> {
        let others = prop_oneof![Just(Action::Drop), Just(forward(Scope::Local))];
        let homes = (
            prop::collection::btree_set(address(family), 0..3),
            prop::option::of(net(family)),
        )
            .prop_map(|(node, pods)| Arc::new(Home { node, pods }));
        let ranges = prop::collection::vec(prop_oneof![net(Family::V4), net(Family::V6)], 1..4);
        let own_addresses = prop::collection::vec(address(family), 0..2);
        let allowed = (ranges, own_addresses).prop_map(|(ranges, own_addresses)| {
            Arc::new(Allowed {
                ranges,
                own_addresses,
            })
        });
        let parts = (others, prop::option::of(homes), prop::option::of(allowed));
        parts.prop_map(|(others, home, allowed)| Access {
            actions: match home {
                Some(_) => Actions {
                    others,
                    ..Actions::all(forward(Scope::Cluster))
                },
                None => Actions::all(others),
            },
            home,
            allowed,
        })
    }

    fn check(access: &Access, family: Family, source: IpAddr, destination: IpAddr) {
        let wanted = access.action(source, || Some(destination)) != Action::Drop;
        let seen = instructions(access, family).is_none_or(|code| passes(&code, source, destination));
        assert_eq!(seen, wanted, "{access:?}\n{source} -> {destination}");
    }

    proptest! {
        #[test]
        fn the_filter_agrees_with_the_rule(
            access in access(Family::V4), source in address(Family::V4), destination in address(Family::V4),
        ) {
            check(&access, Family::V4, source, destination);
            check(&access, Family::V4, IpAddr::from([127, 0, 0, 1]), destination);
        }

        #[test]
        fn in_either_family(access in access(Family::V6), source in address(Family::V6), destination in address(Family::V6)) {
            check(&access, Family::V6, source, destination);
            check(&access, Family::V6, IpAddr::from([0u16, 0, 0, 0, 0, 0, 0, 1]), destination);
        }
    }

    #[test]
    fn a_rule_that_is_too_long_is_left_to_the_relay() {
        let ranges = (0..2000u32)
            .map(|n| IpNet::from(IpAddr::from(n.to_be_bytes())))
            .collect();
        let access = Access {
            actions: Actions::all(forward(Scope::Cluster)),
            home: None,
            allowed: Some(Arc::new(Allowed {
                ranges,
                own_addresses: Vec::new(),
            })),
        };
        assert!(instructions(&access, Family::V4).is_none());
    }

    /// Node ports on loopback: the node itself only, whoever else has the address of a pod.
    #[test]
    fn only_the_node_passes_where_only_the_node_may() {
        let access = Access {
            actions: Actions {
                node: forward(Scope::Cluster),
                ..Actions::all(Action::Drop)
            },
            home: Some(Arc::new(Home {
                pods: Some("10.0.0.0/8".parse().unwrap()),
                ..Home::default()
            })),
            allowed: None,
        };
        let loopback = IpAddr::from([127, 0, 0, 1]);
        for source in [
            loopback,
            IpAddr::from([10, 1, 1, 1]),
            IpAddr::from([192, 0, 2, 1]),
        ] {
            check(&access, Family::V4, source, loopback);
        }
    }
}
