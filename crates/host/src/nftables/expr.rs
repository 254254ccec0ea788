//! Expressions: the kernel's instructions, of which rules are made.

use std::sync::Arc;

use super::attr::{
    self, bitwise, byteorder, cmp, ct, dynset, fib, flow, immediate, lookup, masq, meta, nat, numgen,
    payload, reject,
};
use crate::netlink::Writer;

/// A register, counted in words of four bytes. The kernel has sixteen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    /// The kernel names a register that is the first word of sixteen bytes differently from the others.
    pub(super) fn number(self) -> u32 {
        match self.0 % 4 {
            0 => 1 + u32::from(self.0 / 4),
            _ => 8 + u32::from(self.0),
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        match number {
            1..=4 => Some(Self((number as u8 - 1) * 4)),
            8..=23 => Some(Self(number as u8 - 8)),
            _ => None,
        }
    }
}

/// The register that holds verdicts.
pub(super) const VERDICT_REGISTER: u32 = 0;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Return,
    Jump(Arc<str>),
    Goto(Arc<str>),
}

const CODE_DROP: i32 = 0;
const CODE_ACCEPT: i32 = 1;
const CODE_JUMP: i32 = -3;
const CODE_GOTO: i32 = -4;
const CODE_RETURN: i32 = -5;

impl Verdict {
    /// The content of a data attribute.
    pub(super) fn encode(&self, w: &mut Writer) {
        let (code, chain) = match self {
            Self::Accept => (CODE_ACCEPT, None),
            Self::Drop => (CODE_DROP, None),
            Self::Return => (CODE_RETURN, None),
            Self::Jump(chain) => (CODE_JUMP, Some(chain)),
            Self::Goto(chain) => (CODE_GOTO, Some(chain)),
        };
        w.nest(attr::DATA_VERDICT, |w| {
            w.be32(attr::VERDICT_CODE, code as u32);
            if let Some(chain) = chain {
                w.str(attr::VERDICT_CHAIN, chain);
            }
        });
    }

    pub(super) fn from_code(code: i32, chain: Option<&str>) -> Option<Self> {
        match (code, chain) {
            (CODE_ACCEPT, _) => Some(Self::Accept),
            (CODE_DROP, _) => Some(Self::Drop),
            (CODE_RETURN, _) => Some(Self::Return),
            (CODE_JUMP, Some(chain)) => Some(Self::Jump(chain.into())),
            (CODE_GOTO, Some(chain)) => Some(Self::Goto(chain.into())),
            _ => None,
        }
    }
}

/// What a packet carries besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    Priority,
    Mark,
    InputName,
    /// Whether the kernel tells what becomes of the packet.
    Trace,
    L4Proto,
}

impl MetaKey {
    const ALL: [Self; 5] = [
        Self::Priority,
        Self::Mark,
        Self::InputName,
        Self::Trace,
        Self::L4Proto,
    ];

    pub(super) fn number(self) -> u32 {
        match self {
            Self::Priority => 2,
            Self::Mark => 3,
            Self::InputName => 6,
            Self::Trace => 12,
            Self::L4Proto => 16,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.number() == number)
    }
}

/// What connection tracking knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtKey {
    State,
    Status,
    /// Of both directions together, 64 bits.
    Packets,
}

impl CtKey {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Status => 2,
            Self::Packets => 14,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::State, Self::Status, Self::Packets]
            .into_iter()
            .find(|key| key.number() == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadBase {
    Network,
    Transport,
}

impl PayloadBase {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Network, Self::Transport]
            .into_iter()
            .find(|base| base.number() == number)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Equal,
    NotEqual,
    /// Of values in network order.
    Greater,
}

impl Op {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Equal => 0,
            Self::NotEqual => 1,
            Self::Greater => 4,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Equal, Self::NotEqual, Self::Greater]
            .into_iter()
            .find(|op| op.number() == number)
    }
}

/// Which address's type a route lookup asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibFlags {
    Source,
    Destination,
}

impl FibFlags {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Source => 1,
            Self::Destination => 2,
        }
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        [Self::Source, Self::Destination]
            .into_iter()
            .find(|flags| flags.number() == number)
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    Payload {
        base: PayloadBase,
        offset: u32,
        length: u32,
        to: Register,
    },
    Meta {
        key: MetaKey,
        to: Register,
    },
    SetMeta {
        key: MetaKey,
        from: Register,
    },
    Ct {
        key: CtKey,
        to: Register,
    },
    /// The type (local, broadcast, ...) of the packet's source or destination address.
    FibType {
        flags: FibFlags,
        to: Register,
    },
    /// A random number in `offset..offset + modulus`.
    Numgen {
        modulus: u32,
        offset: u32,
        to: Register,
    },
    Compare {
        op: Op,
        from: Register,
        data: Box<[u8]>,
    },
    /// `to = (from & mask) ^ xor`
    Bitwise {
        from: Register,
        to: Register,
        mask: Box<[u8]>,
        xor: Box<[u8]>,
    },
    Load {
        to: Register,
        data: Box<[u8]>,
    },
    Verdict(Verdict),
    /// Goes on if the key is in the set (or is not).
    Lookup {
        set: Arc<str>,
        key: Register,
        inverted: bool,
    },
    /// Goes on with the data of the key, if there is any.
    LookupData {
        set: Arc<str>,
        key: Register,
        to: Register,
    },
    /// Does what the key's verdict says, if there is any.
    LookupVerdict {
        set: Arc<str>,
        key: Register,
    },
    Dnat {
        family: u8,
        address: Register,
        port: Register,
    },
    Masquerade {
        fully_random: bool,
    },
    /// An ICMP error of the table's family.
    Reject {
        code: u8,
    },
    /// A TCP reset.
    Reset,
    /// One number, `length` bytes long, from the host's order to the network's.
    ToNetworkOrder {
        from: Register,
        to: Register,
        length: u8,
    },
    /// Lets a flowtable carry the connection from here on.
    Offload {
        flowtable: Arc<str>,
    },
    /// Adds the key with its data, or makes the one that is there live on with what it has, for a time in milliseconds.
    Update {
        set: Arc<str>,
        key: Register,
        data: Register,
        timeout: u64,
    },
    /// Deletes the key. The data means nothing, but `nft` has no words for a map's key alone.
    Forget {
        set: Arc<str>,
        key: Register,
        data: Register,
    },
    /// Something that we do not write.
    Unknown(Box<str>),
}

/// Values of attributes of expressions.
pub(super) mod code {
    pub(in super::super) const NAT_TYPE_DNAT: u32 = 1;
    pub(in super::super) const MASQUERADE_FULLY_RANDOM: u32 = 1 << 4;
    pub(in super::super) const TO_NETWORK: u32 = 1;
    pub(in super::super) const REJECT_ICMP: u32 = 0;
    pub(in super::super) const REJECT_TCP_RESET: u32 = 1;
    pub(in super::super) const FIB_RESULT_TYPE: u32 = 3;
    pub(in super::super) const NUMGEN_RANDOM: u32 = 1;
    pub(in super::super) const DYNSET_UPDATE: u32 = 1;
    pub(in super::super) const DYNSET_DELETE: u32 = 2;
    pub(in super::super) const LOOKUP_INVERTED: u32 = 1;
}

impl Expr {
    fn name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMeta { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::FibType { .. } => "fib",
            Self::Numgen { .. } => "numgen",
            Self::Compare { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Load { .. } | Self::Verdict(_) => "immediate",
            Self::Lookup { .. } | Self::LookupData { .. } | Self::LookupVerdict { .. } => "lookup",
            Self::Dnat { .. } => "nat",
            Self::Masquerade { .. } => "masq",
            Self::Reject { .. } | Self::Reset => "reject",
            Self::ToNetworkOrder { .. } => "byteorder",
            Self::Offload { .. } => "flow_offload",
            Self::Update { .. } | Self::Forget { .. } => "dynset",
            Self::Unknown(name) => name,
        }
    }

    pub(super) fn encode(&self, w: &mut Writer) {
        w.nest(attr::LIST_ITEM, |w| {
            w.str(attr::EXPR_NAME, self.name());
            w.nest(attr::EXPR_BODY, |w| self.encode_body(w));
        });
    }

    fn encode_body(&self, w: &mut Writer) {
        match self {
            Self::Payload {
                base,
                offset,
                length,
                to,
            } => {
                w.be32(payload::TO, to.number());
                w.be32(payload::BASE, base.number());
                w.be32(payload::OFFSET, *offset);
                w.be32(payload::LENGTH, *length);
            }
            Self::Meta { key, to } => numbers(w, [(meta::TO, to.number()), (meta::KEY, key.number())]),
            Self::SetMeta { key, from } => {
                numbers(w, [(meta::KEY, key.number()), (meta::FROM, from.number())])
            }
            Self::Ct { key, to } => numbers(w, [(ct::TO, to.number()), (ct::KEY, key.number())]),
            Self::FibType { flags, to } => {
                numbers(w, [(fib::TO, to.number()), (fib::RESULT, code::FIB_RESULT_TYPE)]);
                w.be32(fib::FLAGS, flags.number());
            }
            Self::Numgen { modulus, offset, to } => {
                numbers(w, [(numgen::TO, to.number()), (numgen::MODULUS, *modulus)]);
                numbers(
                    w,
                    [(numgen::TYPE, code::NUMGEN_RANDOM), (numgen::OFFSET, *offset)],
                );
            }
            Self::Compare { op, from, data } => {
                numbers(w, [(cmp::FROM, from.number()), (cmp::OP, op.number())]);
                value(w, cmp::DATA, data);
            }
            Self::Bitwise { from, to, mask, xor } => {
                numbers(w, [(bitwise::FROM, from.number()), (bitwise::TO, to.number())]);
                w.be32(bitwise::LENGTH, mask.len() as u32);
                value(w, bitwise::MASK, mask);
                value(w, bitwise::XOR, xor);
            }
            Self::Load { to, data } => {
                w.be32(immediate::TO, to.number());
                value(w, immediate::DATA, data);
            }
            Self::Verdict(verdict) => {
                w.be32(immediate::TO, VERDICT_REGISTER);
                w.nest(immediate::DATA, |w| verdict.encode(w));
            }
            Self::Lookup { set, key, inverted } => {
                encode_lookup(w, set, *key, None);
                if *inverted {
                    w.be32(lookup::FLAGS, code::LOOKUP_INVERTED);
                }
            }
            Self::LookupData { set, key, to } => encode_lookup(w, set, *key, Some(to.number())),
            Self::LookupVerdict { set, key } => encode_lookup(w, set, *key, Some(VERDICT_REGISTER)),
            Self::Dnat {
                family,
                address,
                port,
            } => {
                numbers(
                    w,
                    [
                        (nat::TYPE, code::NAT_TYPE_DNAT),
                        (nat::FAMILY, u32::from(*family)),
                    ],
                );
                numbers(w, [(nat::ADDRESS, address.number()), (nat::PORT, port.number())]);
            }
            Self::Masquerade { fully_random: true } => w.be32(masq::FLAGS, code::MASQUERADE_FULLY_RANDOM),
            Self::Masquerade { fully_random: false } | Self::Unknown(_) => {}
            Self::Reject { code: icmp } => {
                w.be32(reject::TYPE, code::REJECT_ICMP);
                w.u8(reject::ICMP_CODE, *icmp);
            }
            // The code means nothing here, but older kernels do not go without.
            Self::Reset => {
                w.be32(reject::TYPE, code::REJECT_TCP_RESET);
                w.u8(reject::ICMP_CODE, 0);
            }
            Self::ToNetworkOrder { from, to, length } => {
                numbers(
                    w,
                    [(byteorder::FROM, from.number()), (byteorder::TO, to.number())],
                );
                let length = u32::from(*length);
                w.be32(byteorder::OP, code::TO_NETWORK);
                numbers(w, [(byteorder::LENGTH, length), (byteorder::SIZE, length)]);
            }
            Self::Offload { flowtable } => w.str(flow::TABLE, flowtable),
            Self::Update {
                set,
                key,
                data,
                timeout,
            } => {
                encode_dynset(w, set, code::DYNSET_UPDATE, *key, *data);
                w.be64(dynset::TIMEOUT, *timeout);
            }
            Self::Forget { set, key, data } => encode_dynset(w, set, code::DYNSET_DELETE, *key, *data),
        }
    }
}

fn numbers(w: &mut Writer, values: [(u16, u32); 2]) {
    for (kind, value) in values {
        w.be32(kind, value);
    }
}

fn value(w: &mut Writer, kind: u16, bytes: &[u8]) {
    w.nest(kind, |w| w.attr(attr::DATA_VALUE, bytes));
}

fn encode_dynset(w: &mut Writer, set: &str, op: u32, key: Register, data: Register) {
    w.str(dynset::SET, set);
    numbers(w, [(dynset::OP, op), (dynset::KEY, key.number())]);
    w.be32(dynset::DATA, data.number());
}

fn encode_lookup(w: &mut Writer, set: &str, key: Register, to: Option<u32>) {
    w.str(lookup::SET, set);
    w.be32(lookup::KEY, key.number());
    if let Some(to) = to {
        w.be32(lookup::TO, to);
    }
}
