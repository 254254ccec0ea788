//! A rule in words, near to those of `nft`: for people who want to know which rule it was, whoever wrote it. What is not
//! known here is called by the kernel's name for it.

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use super::Rule;
use super::expr::{CtKey, Expr, FibFlags, MetaKey, Op, PayloadBase, Verdict};

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut loaded: HashMap<u8, String> = HashMap::new();
        let mut words: Vec<String> = Vec::new();
        for expression in &self.expressions {
            match loads(expression, &loaded) {
                Some((register, what)) => drop(loaded.insert(register, what)),
                None => words.push(says(expression, &loaded)),
            }
        }
        f.write_str(&words.join(" "))
    }
}

/// What an expression puts into a register, if that is all that it does.
fn loads(expression: &Expr, loaded: &HashMap<u8, String>) -> Option<(u8, String)> {
    Some(match expression {
        Expr::Payload {
            base,
            offset,
            length,
            to,
        } => (to.0, field(*base, *offset, *length)),
        Expr::Meta { key, to } => (to.0, meta(*key).into()),
        Expr::Ct { key, to } => (
            to.0,
            match key {
                CtKey::State => "ct state".into(),
                CtKey::Status => "ct status".into(),
                CtKey::Packets => "ct packets".into(),
            },
        ),
        Expr::FibType { flags, to } => (
            to.0,
            match flags {
                FibFlags::Source => "fib saddr type".into(),
                FibFlags::Destination => "fib daddr type".into(),
            },
        ),
        Expr::Numgen { modulus, to, .. } => (to.0, format!("numgen random mod {modulus}")),
        Expr::Bitwise { from, to, mask, .. } => {
            let what = loaded.get(&from.0).map_or("?", String::as_str);
            (to.0, format!("{what} & {}", hex(mask)))
        }
        Expr::ToNetworkOrder { from, to, .. } => (to.0, loaded.get(&from.0)?.clone()),
        Expr::Load { to, data } => (to.0, hex(data)),
        Expr::LookupData { set, to, .. } => (to.0, format!("@{set}")),
        _ => return None,
    })
}

fn says(expression: &Expr, loaded: &HashMap<u8, String>) -> String {
    let of = |register: u8| loaded.get(&register).map_or("?", String::as_str);
    match expression {
        Expr::Compare { op, from, data } => {
            let what = of(from.0);
            let not = match op {
                Op::Equal => "",
                Op::NotEqual => "!= ",
                Op::Greater => "> ",
            };
            format!("{what} {not}{}", value(what, data))
        }
        Expr::Lookup { set, key, inverted } => {
            let not = if *inverted { "!= " } else { "" };
            format!("{} {not}@{set}", of(key.0))
        }
        Expr::LookupVerdict { set, key } => format!("{} vmap @{set}", of(key.0)),
        Expr::SetMeta { key, from } => format!("{} set {}", meta(*key), of(from.0)),
        Expr::Dnat { address, .. } => format!("dnat to {}", of(address.0)),
        Expr::Masquerade { .. } => "masquerade".into(),
        Expr::Reject { .. } => "reject".into(),
        Expr::Reset => "reject with tcp reset".into(),
        Expr::Offload { flowtable } => format!("flow add @{flowtable}"),
        Expr::Update { set, .. } => format!("update @{set}"),
        Expr::Verdict(verdict) => match verdict {
            Verdict::Accept => "accept".into(),
            Verdict::Drop => "drop".into(),
            Verdict::Return => "return".into(),
            Verdict::Jump(chain) => format!("jump {chain}"),
            Verdict::Goto(chain) => format!("goto {chain}"),
        },
        Expr::Unknown(name) => name.to_string(),
        other => format!("{other:?}"),
    }
}

fn field(base: PayloadBase, offset: u32, length: u32) -> String {
    match (base, offset, length) {
        (PayloadBase::Network, 12, 4) => "ip saddr".into(),
        (PayloadBase::Network, 16, 4) => "ip daddr".into(),
        (PayloadBase::Network, 9, 1) => "ip protocol".into(),
        (PayloadBase::Network, 8, 16) => "ip6 saddr".into(),
        (PayloadBase::Network, 24, 16) => "ip6 daddr".into(),
        (PayloadBase::Transport, 0, 2) => "th sport".into(),
        (PayloadBase::Transport, 2, 2) => "th dport".into(),
        (PayloadBase::Network, ..) => format!("@nh,{},{}", offset * 8, length * 8),
        (PayloadBase::Transport, ..) => format!("@th,{},{}", offset * 8, length * 8),
    }
}

fn meta(key: MetaKey) -> &'static str {
    match key {
        MetaKey::Priority => "meta priority",
        MetaKey::Mark => "meta mark",
        MetaKey::InputName => "iifname",
        MetaKey::Trace => "meta nftrace",
        MetaKey::L4Proto => "meta l4proto",
    }
}

/// A value as the field that it is compared with is written.
fn value(field: &str, data: &[u8]) -> String {
    let known = match field {
        "ip saddr" | "ip daddr" => <[u8; 4]>::try_from(data)
            .ok()
            .map(|octets| Ipv4Addr::from(octets).to_string()),
        "ip6 saddr" | "ip6 daddr" => <[u8; 16]>::try_from(data)
            .ok()
            .map(|octets| Ipv6Addr::from(octets).to_string()),
        "th sport" | "th dport" => <[u8; 2]>::try_from(data)
            .ok()
            .map(|octets| u16::from_be_bytes(octets).to_string()),
        "ip protocol" | "meta l4proto" => data.first().map(|number| match number {
            6 => "tcp".into(),
            17 => "udp".into(),
            132 => "sctp".into(),
            number => number.to_string(),
        }),
        "iifname" => std::str::from_utf8(data)
            .ok()
            .map(|name| name.trim_end_matches('\0').to_owned()),
        _ => None,
    };
    known.unwrap_or_else(|| hex(data))
}

fn hex(data: &[u8]) -> String {
    let digits: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("0x{digits}")
}
