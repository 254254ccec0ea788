//! What the kernel answers, back into values. What we would not have written becomes [`Expr::Unknown`] or `None`,
//! never an error: others may write into our table what they like, we only have to notice.

use super::attr::{
    bitwise, byteorder, cmp, ct, dynset, fib, flow, immediate, lookup, masq, meta, nat, numgen, payload,
    reject,
};
use super::bytes::{Data, Key};
use super::client::Counter;
use super::expr::{
    CtKey, Expr, FibFlags, MetaKey, Op, PayloadBase, Register, VERDICT_REGISTER, Verdict, code,
};
use super::set::{DataType, Element, Field, INTERVAL_END, SetDecl, Value};
use super::{BaseChain, ChainDecl, ChainKind, Hook, Rule, attr, userdata};
use crate::netlink::{Attr, Attrs, Message, attrs};

/// A chain and whether its base, if any, is one that we could have written.
pub(super) fn chain(message: &Message<'_>) -> Option<(ChainDecl, bool)> {
    let all = message.netfilter_attrs();
    let hook = all.get(attr::CHAIN_HOOK);
    let base = hook.and_then(|hook| base(hook.nested(), &all));
    let known = base.is_some() == hook.is_some();
    let decl = ChainDecl {
        name: all.get(attr::CHAIN_NAME)?.str()?.into(),
        base,
        comment: comment(all.get(attr::CHAIN_USERDATA)),
    };
    Some((decl, known))
}

fn base(hook: Attrs<'_>, chain: &Attrs<'_>) -> Option<BaseChain> {
    let number = hook.get(attr::HOOK_NUMBER)?.be32()?;
    let kind = chain.get(attr::CHAIN_TYPE)?.str()?;
    let accepts = chain.get(attr::CHAIN_POLICY).and_then(|policy| policy.be32()) == Some(1);
    let base = BaseChain {
        kind: [ChainKind::Filter, ChainKind::Nat]
            .into_iter()
            .find(|known| known.as_str() == kind)?,
        hook: Hook::ALL.into_iter().find(|hook| hook.number() == number)?,
        priority: hook.get(attr::HOOK_PRIORITY)?.be32()? as i32,
    };
    accepts.then_some(base)
}

/// A rule and the name of its chain.
pub(super) fn rule<'a>(message: &Message<'a>) -> Option<(&'a str, Rule)> {
    let all = message.netfilter_attrs();
    let chain = all.get(attr::RULE_CHAIN)?.str()?;
    let expressions = all.get(attr::RULE_EXPRESSIONS);
    let rule = Rule {
        expressions: expressions
            .into_iter()
            .flat_map(|list| list.nested())
            .map(|item| expression(item.nested()))
            .collect(),
        comment: comment(all.get(attr::RULE_USERDATA)).or_else(|| xt_comment(expressions?)),
    };
    Some((chain, rule))
}

/// The comment of a rule that iptables wrote, which is a match like any other.
fn xt_comment(expressions: Attr<'_>) -> Option<std::sync::Arc<str>> {
    let mut all = expressions.nested();
    all.find_map(|item| {
        let item = item.nested();
        let text = |attrs: &Attrs<'_>, kind| attrs.get(kind)?.str().map(str::to_owned);
        let body = item.get(attr::EXPR_BODY)?.nested();
        let is_comment = text(&item, attr::EXPR_NAME)? == "match" && text(&body, XT_NAME)? == "comment";
        is_comment
            .then(|| body.get(XT_INFO)?.str().map(Into::into))
            .flatten()
    })
}

fn comment(attr: Option<Attr<'_>>) -> Option<std::sync::Arc<str>> {
    attr.and_then(|attr| userdata::read_comment(attr.data))
        .map(Into::into)
}

/// The name of a set and, if it is of a kind that we write, its declaration.
pub(super) fn set(message: &Message<'_>) -> Option<(std::sync::Arc<str>, Option<SetDecl>)> {
    let all = message.netfilter_attrs();
    let name: std::sync::Arc<str> = all.get(attr::SET_NAME)?.str()?.into();
    let number = |kind: u16| all.get(kind).and_then(|attr| attr.be32()).unwrap_or(0);
    let flags = number(attr::SET_FLAGS);
    let data_type = number(attr::SET_DATA_TYPE);
    let probe = SetDecl {
        key: fields(number(attr::SET_KEY_TYPE)).unwrap_or_default(),
        data: match data_type {
            0 => None,
            0xffff_ff00 => Some(DataType::Verdict),
            _ => Some(DataType::Fields(fields(data_type).unwrap_or_default())),
        },
        interval: flags & 0x4 != 0,
        dynamic: flags & 0x20 != 0,
        counter: all.get(attr::SET_EXPR).is_some(),
        comment: all
            .get(attr::SET_USERDATA)
            .and_then(|attr| userdata::read_set_comment(attr.data))
            .map(Into::into),
        ..SetDecl::new(std::sync::Arc::clone(&name))
    };
    let same = probe.flags() == flags
        && probe.key_type() == (number(attr::SET_KEY_TYPE), number(attr::SET_KEY_LEN))
        && probe.data_type().is_none_or(|(kind, length)| {
            kind == data_type && (length == 0 || length == number(attr::SET_DATA_LEN))
        })
        && all
            .get(attr::SET_USERDATA)
            .is_some_and(|written| written.data == userdata::set(&probe));
    Some((name, same.then_some(probe)))
}

/// The fields of a concatenated type number: six bits each, the last one lowest.
fn fields(mut kind: u32) -> Option<Box<[Field]>> {
    let mut found = Vec::new();
    while kind != 0 {
        found.push(match kind & 0x3f {
            4 => Field::Number,
            7 => Field::Ipv4,
            8 => Field::Ipv6,
            12 => Field::Proto,
            13 => Field::Port,
            23 => Field::Class,
            _ => return None,
        });
        kind >>= 6;
    }
    found.reverse();
    Some(found.into())
}

/// An element, and its counter where the set has them; `None` for one that we could not have written.
pub(super) fn element(item: &Attr<'_>) -> Option<(Element, Option<Counter>)> {
    let all = item.nested();
    let key = all.get(attr::ELEMENT_KEY)?.nested().get(attr::DATA_VALUE)?;
    let value = match all.get(attr::ELEMENT_DATA) {
        None => Value::None,
        Some(data) => match data.nested().next()? {
            value if value.kind == attr::DATA_VALUE => Value::Data(Data::read(value.data)?),
            value => Value::Verdict(verdict(value.nested())?),
        },
    };
    let flags = all
        .get(attr::ELEMENT_FLAGS)
        .and_then(|flags| flags.be32())
        .unwrap_or(0);
    let element = Element {
        key: Key::read(key.data)?,
        interval_end: flags & INTERVAL_END != 0,
        value,
        comment: comment(all.get(attr::ELEMENT_USERDATA)),
    };
    Some((
        element,
        all.get(attr::ELEMENT_EXPR)
            .and_then(|expr| counter(expr.nested())),
    ))
}

fn counter(expr: Attrs<'_>) -> Option<Counter> {
    let body = expr
        .get(attr::EXPR_BODY)
        .filter(|_| expr.get(attr::EXPR_NAME).and_then(|name| name.str()) == Some("counter"));
    let body = body?.nested();
    Some(Counter {
        bytes: body.get(attr::COUNTER_BYTES)?.be64()?,
        packets: body.get(attr::COUNTER_PACKETS)?.be64()?,
    })
}

fn verdict(all: Attrs<'_>) -> Option<Verdict> {
    let code = all.get(attr::VERDICT_CODE)?.be32()? as i32;
    Verdict::from_code(code, all.get(attr::VERDICT_CHAIN).and_then(|chain| chain.str()))
}

/// Name of an extension of iptables, and what it knows.
const XT_NAME: u16 = 1;
const XT_INFO: u16 = 3;

fn expression(all: Attrs<'_>) -> Expr {
    let name = all
        .get(attr::EXPR_NAME)
        .and_then(|name| name.str())
        .unwrap_or_default();
    let body = all.get(attr::EXPR_BODY).map_or(attrs(&[]), |body| body.nested());
    // What iptables writes names its own kinds.
    let extension = matches!(name, "match" | "target").then(|| body.get(XT_NAME).and_then(|name| name.str()));
    Body(body).read(name).unwrap_or_else(|| {
        Expr::Unknown(match extension.flatten() {
            Some(extension) => format!("{name} {extension}").into(),
            None => name.into(),
        })
    })
}

/// The attributes of one expression.
struct Body<'a>(Attrs<'a>);

impl<'a> Body<'a> {
    fn number(&self, kind: u16) -> Option<u32> {
        self.0.get(kind)?.be32()
    }

    fn register(&self, kind: u16) -> Option<Register> {
        Register::from_number(self.number(kind)?)
    }

    fn text(&self, kind: u16) -> Option<std::sync::Arc<str>> {
        self.0.get(kind)?.str().map(Into::into)
    }

    fn data(&self, kind: u16) -> Option<Box<[u8]>> {
        Some(self.0.get(kind)?.nested().get(attr::DATA_VALUE)?.data.into())
    }

    fn read(&self, name: &str) -> Option<Expr> {
        match name {
            "payload" => Some(Expr::Payload {
                base: PayloadBase::from_number(self.number(payload::BASE)?)?,
                offset: self.number(payload::OFFSET)?,
                length: self.number(payload::LENGTH)?,
                to: self.register(payload::TO)?,
            }),
            "meta" => self.meta(),
            "ct" => Some(Expr::Ct {
                key: CtKey::from_number(self.number(ct::KEY)?)?,
                to: self.register(ct::TO)?,
            }),
            "fib" => (self.number(fib::RESULT)? == code::FIB_RESULT_TYPE).then_some(Expr::FibType {
                flags: FibFlags::from_number(self.number(fib::FLAGS)?)?,
                to: self.register(fib::TO)?,
            }),
            "numgen" => (self.number(numgen::TYPE)? == code::NUMGEN_RANDOM).then_some(Expr::Numgen {
                modulus: self.number(numgen::MODULUS)?,
                offset: self.number(numgen::OFFSET).unwrap_or(0),
                to: self.register(numgen::TO)?,
            }),
            "cmp" => Some(Expr::Compare {
                op: Op::from_number(self.number(cmp::OP)?)?,
                from: self.register(cmp::FROM)?,
                data: self.data(cmp::DATA)?,
            }),
            "bitwise" => Some(Expr::Bitwise {
                from: self.register(bitwise::FROM)?,
                to: self.register(bitwise::TO)?,
                mask: self.data(bitwise::MASK)?,
                xor: self.data(bitwise::XOR)?,
            }),
            "immediate" => self.immediate(),
            "lookup" => self.lookup(),
            "nat" => self.dnat(),
            "masq" => self.masquerade(),
            "reject" => match self.number(reject::TYPE)? {
                code::REJECT_ICMP => Some(Expr::Reject {
                    code: self.0.get(reject::ICMP_CODE)?.u8()?,
                }),
                code::REJECT_TCP_RESET => Some(Expr::Reset),
                _ => None,
            },
            "byteorder" => self.to_network_order(),
            "flow_offload" => Some(Expr::Offload {
                flowtable: self.text(flow::TABLE)?,
            }),
            "dynset" => self.dynset(),
            _ => None,
        }
    }

    fn meta(&self) -> Option<Expr> {
        let key = MetaKey::from_number(self.number(meta::KEY)?)?;
        match self.register(meta::TO) {
            Some(to) => Some(Expr::Meta { key, to }),
            None => Some(Expr::SetMeta {
                key,
                from: self.register(meta::FROM)?,
            }),
        }
    }

    fn immediate(&self) -> Option<Expr> {
        if self.number(immediate::TO)? == VERDICT_REGISTER {
            let data = self.0.get(immediate::DATA)?.nested().get(attr::DATA_VERDICT)?;
            return verdict(data.nested()).map(Expr::Verdict);
        }
        Some(Expr::Load {
            to: self.register(immediate::TO)?,
            data: self.data(immediate::DATA)?,
        })
    }

    fn lookup(&self) -> Option<Expr> {
        let (set, key) = (self.text(lookup::SET)?, self.register(lookup::KEY)?);
        let inverted = self.number(lookup::FLAGS).unwrap_or(0) & code::LOOKUP_INVERTED != 0;
        match self.number(lookup::TO) {
            None => Some(Expr::Lookup { set, key, inverted }),
            Some(VERDICT_REGISTER) if !inverted => Some(Expr::LookupVerdict { set, key }),
            Some(number) if !inverted => Some(Expr::LookupData {
                set,
                key,
                to: Register::from_number(number)?,
            }),
            Some(_) => None,
        }
    }

    fn dnat(&self) -> Option<Expr> {
        let (address, port) = (self.register(nat::ADDRESS)?, self.register(nat::PORT)?);
        let plain = self.number(nat::TYPE)? == code::NAT_TYPE_DNAT
            && self
                .register(nat::LAST_ADDRESS)
                .is_none_or(|last| last == address)
            && self.register(nat::LAST_PORT).is_none_or(|last| last == port);
        plain.then_some(Expr::Dnat {
            family: self.number(nat::FAMILY)? as u8,
            address,
            port,
        })
    }

    fn masquerade(&self) -> Option<Expr> {
        let flags = self.number(masq::FLAGS).unwrap_or(0);
        let plain = self.number(masq::PORT).is_none() && flags & !code::MASQUERADE_FULLY_RANDOM == 0;
        plain.then_some(Expr::Masquerade {
            fully_random: flags != 0,
        })
    }

    fn to_network_order(&self) -> Option<Expr> {
        let length = self.number(byteorder::LENGTH)?;
        let whole =
            self.number(byteorder::OP)? == code::TO_NETWORK && self.number(byteorder::SIZE)? == length;
        whole.then_some(Expr::ToNetworkOrder {
            from: self.register(byteorder::FROM)?,
            to: self.register(byteorder::TO)?,
            length: length.try_into().ok()?,
        })
    }

    fn dynset(&self) -> Option<Expr> {
        let (set, key) = (self.text(dynset::SET)?, self.register(dynset::KEY)?);
        let data = self.register(dynset::DATA)?;
        let timeout = self.0.get(dynset::TIMEOUT).and_then(|timeout| timeout.be64());
        match self.number(dynset::OP)? {
            _ if self.0.get(dynset::EXPR).is_some() => None,
            code::DYNSET_UPDATE => Some(Expr::Update {
                set,
                key,
                data,
                timeout: timeout.unwrap_or(0),
            }),
            code::DYNSET_DELETE => Some(Expr::Forget { set, key, data }),
            _ => None,
        }
    }
}
