//! Statements into the kernel's instructions: the ones that `nft` makes of the same text, so that it can print them.

use ferry_host::nftables::{
    CtKey, Expr, Family, FibFlags, MetaKey, Op, PayloadBase, Register, Rule as KernelRule,
};
use ferry_model::Protocol;

use super::ruleset::{Load, Ports, Rule, Side, Statement};

/// Where every statement starts to load: nothing is kept from one statement to the next.
const FIRST: Register = Register(0);
/// Where `nft` loads what goes with a key: the next sixteen bytes, whatever the key's size.
const SECOND: Register = Register(4);
const STATE_NEW: u32 = 8;
const STATUS_DNAT: u32 = 1 << 5;
const TYPE_LOCAL: u32 = 2;
const INTERFACE_NAME: usize = 16;

pub(super) fn rule(family: Family, rule: &Rule) -> KernelRule {
    let mut program = Program {
        family,
        expressions: Vec::with_capacity(rule.statements.len() * 4),
    };
    rule.statements
        .iter()
        .for_each(|statement| program.statement(statement));
    KernelRule {
        expressions: program.expressions,
        comment: rule.comment.map(Into::into),
    }
}

struct Program {
    family: Family,
    expressions: Vec<Expr>,
}

impl Program {
    fn put(&mut self, expression: Expr) {
        self.expressions.push(expression);
    }

    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::New => self.ct_bit(CtKey::State, STATE_NEW),
            Statement::Translated => self.ct_bit(CtKey::Status, STATUS_DNAT),
            Statement::Within { side, net, not } => self.within(*side, net, *not),
            Statement::InSet { key, set, not } => {
                self.load(key);
                self.put(Expr::Lookup {
                    set: set.clone(),
                    key: FIRST,
                    inverted: *not,
                });
            }
            Statement::Interface { name, prefix, not } => self.interface(name, *prefix, *not),
            Statement::HostsOwn(side) => self.hosts_own(*side),
            Statement::Protocol(protocol) => self.protocol(*protocol),
            Statement::HasMark(mark) => self.has_mark(*mark),
            Statement::SetMark(mark) => self.mark(!mark, *mark),
            Statement::FlipMark(mark) => self.mark(u32::MAX, *mark),
            Statement::Masquerade(ports) => self.put(Expr::Masquerade {
                fully_random: *ports == Ports::Random,
            }),
            Statement::Reject => self.reject(),
            Statement::ResetTcp => {
                self.protocol(Protocol::Tcp);
                self.put(Expr::Reset);
            }
            Statement::Verdict(verdict) => self.put(Expr::Verdict(verdict.clone())),
            Statement::VerdictOf { key, map } => {
                self.load(key);
                self.put(Expr::LookupVerdict {
                    set: map.clone(),
                    key: FIRST,
                });
            }
            Statement::DnatOf { key, map } => {
                self.load(key);
                self.put(Expr::LookupData {
                    set: map.clone(),
                    key: FIRST,
                    to: FIRST,
                });
                self.dnat(Register(self.address_words()));
            }
            Statement::SetClassOf { key, map } => {
                self.load(key);
                self.put(Expr::LookupData {
                    set: map.clone(),
                    key: FIRST,
                    to: FIRST,
                });
                self.set_class();
            }
            Statement::ClearClass => {
                self.put(Expr::Load {
                    to: FIRST,
                    data: 0u32.to_ne_bytes().into(),
                });
                self.set_class();
            }
            Statement::Remember { map, timeout } => {
                self.load_client();
                self.put(Expr::Update {
                    set: map.clone(),
                    key: FIRST,
                    data: SECOND,
                    timeout: timeout.as_millis() as u64,
                });
            }
            Statement::Forget { map } => {
                self.load_client();
                self.put(Expr::Forget {
                    set: map.clone(),
                    key: FIRST,
                    data: SECOND,
                });
            }
        }
    }

    /// The client's address, and what was found for it.
    fn load_client(&mut self) {
        self.load(&[Load::Source]);
        self.put(Expr::Meta {
            key: MetaKey::Priority,
            to: SECOND,
        });
    }

    fn set_class(&mut self) {
        self.put(Expr::SetMeta {
            key: MetaKey::Priority,
            from: FIRST,
        });
    }

    fn hosts_own(&mut self, side: Side) {
        let flags = match side {
            Side::Source => FibFlags::Source,
            Side::Destination => FibFlags::Destination,
        };
        self.put(Expr::FibType { flags, to: FIRST });
        self.compare(false, &TYPE_LOCAL.to_ne_bytes());
    }

    fn protocol(&mut self, protocol: Protocol) {
        self.load(&[Load::Protocol]);
        self.compare(false, &[protocol.number()]);
    }

    fn has_mark(&mut self, mark: u32) {
        self.put(Expr::Meta {
            key: MetaKey::Mark,
            to: FIRST,
        });
        self.bitwise(mark, 0);
        self.compare(true, &0u32.to_ne_bytes());
    }

    /// Port unreachable, in each family's numbering.
    fn reject(&mut self) {
        let code = match self.family {
            Family::Ip => 3,
            Family::Ip6 => 4,
        };
        self.put(Expr::Reject { code });
    }

    /// Compares the whole name, or its beginning.
    fn interface(&mut self, name: &str, prefix: bool, not: bool) {
        let mut data = name.as_bytes().to_vec();
        if !prefix {
            data.resize(INTERFACE_NAME, 0);
        }
        self.put(Expr::Meta {
            key: MetaKey::InputName,
            to: FIRST,
        });
        self.compare(not, &data);
    }

    /// To the address in the first register and the port in another.
    fn dnat(&mut self, port: Register) {
        self.put(Expr::Dnat {
            family: self.family.number(),
            address: FIRST,
            port,
        });
    }

    fn address_words(&self) -> u8 {
        match self.family {
            Family::Ip => 1,
            Family::Ip6 => 4,
        }
    }

    fn address_offset(&self, side: Side) -> u32 {
        match (self.family, side) {
            (Family::Ip, Side::Source) => 12,
            (Family::Ip, Side::Destination) => 16,
            (Family::Ip6, Side::Source) => 8,
            (Family::Ip6, Side::Destination) => 24,
        }
    }

    fn address(&mut self, side: Side, length: u32, to: Register) {
        let offset = self.address_offset(side);
        self.put(Expr::Payload {
            base: PayloadBase::Network,
            offset,
            length,
            to,
        });
    }

    /// Puts the parts of a key side by side.
    fn load(&mut self, key: &[Load]) {
        let mut word = FIRST.0;
        for part in key {
            let to = Register(word);
            let address = self.address_words();
            word += match part {
                Load::Source | Load::Destination => address,
                Load::Protocol | Load::Port | Load::Class | Load::Random { .. } => 1,
            };
            match part {
                Load::Source => self.address(Side::Source, u32::from(address) * 4, to),
                Load::Destination => self.address(Side::Destination, u32::from(address) * 4, to),
                Load::Protocol => self.put(Expr::Meta {
                    key: MetaKey::L4Proto,
                    to,
                }),
                Load::Class => self.put(Expr::Meta {
                    key: MetaKey::Priority,
                    to,
                }),
                Load::Port => {
                    self.put(Expr::Payload {
                        base: PayloadBase::Transport,
                        offset: 2,
                        length: 2,
                        to,
                    });
                }
                Load::Random { modulus, offset } => {
                    self.put(Expr::Numgen {
                        modulus: *modulus,
                        offset: *offset,
                        to,
                    });
                }
            }
        }
    }

    /// A network that ends at a byte is compared by its bytes, any other through a mask.
    fn within(&mut self, side: Side, net: &ipnet::IpNet, not: bool) {
        let octets = |address: std::net::IpAddr| match address {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        };
        let mut network = octets(net.network());
        let bytes = usize::from(net.prefix_len() / 8);
        if net.prefix_len().is_multiple_of(8) && bytes > 0 {
            self.address(side, bytes as u32, FIRST);
            network.truncate(bytes);
        } else {
            self.address(side, network.len() as u32, FIRST);
            self.put(Expr::Bitwise {
                from: FIRST,
                to: FIRST,
                mask: octets(net.netmask()).into(),
                xor: vec![0; network.len()].into(),
            });
        }
        self.compare(not, &network);
    }

    fn ct_bit(&mut self, key: CtKey, bit: u32) {
        self.put(Expr::Ct { key, to: FIRST });
        self.bitwise(bit, 0);
        self.compare(true, &0u32.to_ne_bytes());
    }

    fn mark(&mut self, mask: u32, xor: u32) {
        self.put(Expr::Meta {
            key: MetaKey::Mark,
            to: FIRST,
        });
        self.bitwise(mask, xor);
        self.put(Expr::SetMeta {
            key: MetaKey::Mark,
            from: FIRST,
        });
    }

    fn bitwise(&mut self, mask: u32, xor: u32) {
        self.put(Expr::Bitwise {
            from: FIRST,
            to: FIRST,
            mask: mask.to_ne_bytes().into(),
            xor: xor.to_ne_bytes().into(),
        });
    }

    fn compare(&mut self, not: bool, data: &[u8]) {
        let op = if not { Op::NotEqual } else { Op::Equal };
        self.put(Expr::Compare {
            op,
            from: FIRST,
            data: data.into(),
        });
    }
}
