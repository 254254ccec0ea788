//! The desired state of the table as a value. `Display` writes it as `nft -f` reads it.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ferry_host::nftables::{BaseChain, DataType, Element, Family, Field, Key, SetDecl, Value, Verdict};
use ferry_model::Protocol;
use ipnet::IpNet;

/// A name of a chain, set or map.
pub(super) type Name = Arc<str>;

/// Everything that the table of one family should hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ruleset {
    pub(super) family: Family,
    pub(super) table: &'static str,
    pub(super) comment: &'static str,
    pub(super) sets: BTreeMap<Name, Set>,
    pub(super) chains: BTreeMap<Name, Chain>,
}

/// A set or map with its elements. What rules add to a dynamic set is theirs and not listed here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) decl: SetDecl,
    pub(super) elements: BTreeMap<ElementKey, Element>,
}

/// An interval's end can have the same key as another one's start.
pub(super) type ElementKey = (Key, bool);

pub(super) fn element_key(element: &Element) -> ElementKey {
    (element.key, element.interval_end)
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) base: Option<BaseChain>,
    pub(super) comment: Option<&'static str>,
    pub(super) rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) statements: Vec<Statement>,
    pub(super) comment: Option<&'static str>,
}

/// What a key is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Source,
    Destination,
    Protocol,
    Port,
    /// What [`Statement::SetClassOf`] found.
    Class,
    /// A random number in `offset..offset + modulus`.
    Random {
        modulus: u32,
        offset: u32,
    },
}

/// One of the packet's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Destination,
}

/// The port that a masqueraded connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ports {
    /// The client's, unless another connection has it.
    Kept,
    Random,
}

/// One match or action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// The first packet of a connection.
    New,
    /// The destination was translated.
    Translated,
    Within {
        side: Side,
        net: IpNet,
        not: bool,
    },
    InSet {
        key: Vec<Load>,
        set: Name,
        not: bool,
    },
    /// The packet came in through this interface, or one whose name starts so.
    Interface {
        name: Arc<str>,
        prefix: bool,
        not: bool,
    },
    /// The address is one of the host's own.
    HostsOwn(Side),
    Protocol(Protocol),
    HasMark(u32),
    SetMark(u32),
    FlipMark(u32),
    Masquerade(Ports),
    /// By an ICMP error.
    Reject,
    /// By a reset, if it is TCP.
    ResetTcp,
    Verdict(Verdict),
    VerdictOf {
        key: Vec<Load>,
        map: Name,
    },
    DnatOf {
        key: Vec<Load>,
        map: Name,
    },
    /// Keeps what a map has for the key as the packet's priority: the one place that rules can write to and look
    /// things up by, and that nobody else reads before [`Statement::ClearClass`].
    SetClassOf {
        key: Vec<Load>,
        map: Name,
    },
    ClearClass,
    /// Remembers for a while what was found for the client; what is remembered already stays, for as long again.
    Remember {
        map: Name,
        timeout: Duration,
    },
    /// Forgets what is remembered of the client.
    Forget {
        map: Name,
    },
}

impl Statement {
    pub(super) fn jump(chain: &str) -> Self {
        Self::Verdict(Verdict::Jump(chain.into()))
    }

    pub(super) fn goto(chain: impl Into<Name>) -> Self {
        Self::Verdict(Verdict::Goto(chain.into()))
    }

    pub(super) fn in_set(key: &[Load], set: &str) -> Self {
        Self::InSet {
            key: key.into(),
            set: set.into(),
            not: false,
        }
    }

    pub(super) fn verdict_of(key: &[Load], map: impl Into<Name>) -> Self {
        Self::VerdictOf {
            key: key.into(),
            map: map.into(),
        }
    }
}

impl From<Vec<Statement>> for Rule {
    fn from(statements: Vec<Statement>) -> Self {
        Self {
            statements,
            comment: None,
        }
    }
}

impl Rule {
    pub(super) fn commented(statements: Vec<Statement>, comment: &'static str) -> Self {
        Self {
            statements,
            comment: Some(comment),
        }
    }
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.family;
        writeln!(f, "table {} {} {{", family.as_str(), self.table)?;
        writeln!(f, "\tcomment \"{}\"", self.comment)?;
        for (name, set) in &self.sets {
            writeln!(
                f,
                "\n\t{} {name} {{",
                if set.decl.data.is_some() { "map" } else { "set" }
            )?;
            write_set(f, set)?;
            writeln!(f, "\t}}")?;
        }
        for (name, chain) in &self.chains {
            writeln!(f, "\n\tchain {name} {{")?;
            if let Some(comment) = chain.comment {
                writeln!(f, "\t\tcomment \"{comment}\"")?;
            }
            if let Some(BaseChain { kind, hook, priority }) = &chain.base {
                let (kind, hook) = (kind.as_str(), hook.as_str());
                writeln!(
                    f,
                    "\t\ttype {kind} hook {hook} priority {priority}; policy accept;"
                )?;
            }
            for rule in &chain.rules {
                writeln!(f, "\t\t{}", InFamily(family, rule))?;
            }
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}

fn write_set(f: &mut fmt::Formatter<'_>, set: &Set) -> fmt::Result {
    let decl = &set.decl;
    let fields = |fields: &[Field]| {
        let name = |field: &Field| {
            if decl.is_typeof() {
                typeof_name(*field)
            } else {
                type_name(*field)
            }
        };
        fields.iter().map(name).collect::<Vec<_>>().join(" . ")
    };
    let data = match &decl.data {
        None => String::new(),
        Some(DataType::Verdict) => " : verdict".into(),
        Some(DataType::Fields(data)) => format!(" : {}", fields(data)),
    };
    let by = if decl.is_typeof() { "typeof" } else { "type" };
    writeln!(f, "\t\t{by} {}{data}", fields(&decl.key))?;
    if decl.dynamic {
        writeln!(f, "\t\tsize 65535")?; // the kernel's own limit, given so that a listing compares equal
        writeln!(f, "\t\tflags dynamic,timeout")?;
    }
    if decl.interval {
        writeln!(f, "\t\tflags interval")?;
    }
    if decl.counter {
        writeln!(f, "\t\tcounter")?;
    }
    if let Some(comment) = &decl.comment {
        writeln!(f, "\t\tcomment \"{comment}\"")?;
    }
    let texts = if decl.interval {
        intervals(set)
    } else {
        set.elements.values().map(|e| element(decl, e)).collect()
    };
    if !texts.is_empty() {
        writeln!(f, "\t\telements = {{ {} }}", texts.join(",\n\t\t\t     "))?;
    }
    Ok(())
}

fn type_name(field: Field) -> &'static str {
    match field {
        Field::Ipv4 => "ipv4_addr",
        Field::Ipv6 => "ipv6_addr",
        Field::Proto => "inet_proto",
        Field::Port => "inet_service",
        Field::Number => "integer",
        Field::Class => "classid",
    }
}

fn typeof_name(field: Field) -> &'static str {
    match field {
        Field::Ipv4 => "ip daddr",
        Field::Ipv6 => "ip6 daddr",
        Field::Proto => "meta l4proto",
        Field::Port => "th dport",
        Field::Number => "numgen random mod 2",
        Field::Class => "meta priority",
    }
}

/// One element, as it stands between the braces.
pub(super) fn element(decl: &SetDecl, element: &Element) -> String {
    let mut text = joined(&decl.key, element.key.as_slice());
    if decl.counter {
        text.push_str(" counter packets 0 bytes 0");
    }
    if let Some(comment) = &element.comment {
        text.push_str(&format!(" comment \"{comment}\""));
    }
    match (&element.value, &decl.data) {
        (Value::Verdict(verdict), _) => text.push_str(&format!(" : {}", VerdictText(verdict))),
        (Value::Data(data), Some(DataType::Fields(fields))) => {
            text.push_str(&format!(" : {}", joined(fields, data.as_slice())));
        }
        (Value::None, _) | (Value::Data(_), _) => {}
    }
    text
}

fn joined(fields: &[Field], mut bytes: &[u8]) -> String {
    let mut parts = Vec::with_capacity(fields.len());
    for field in fields {
        let (value, rest) = bytes.split_at_checked(field.size()).unwrap_or((bytes, &[]));
        parts.push(field_text(*field, value));
        let padding = field.size().next_multiple_of(4) - field.size();
        bytes = rest.get(padding..).unwrap_or_default();
    }
    parts.join(" . ")
}

fn field_text(field: Field, bytes: &[u8]) -> String {
    let known = match field {
        Field::Ipv4 => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|b| Ipv4Addr::from(b).to_string()),
        Field::Ipv6 => <[u8; 16]>::try_from(bytes)
            .ok()
            .map(|b| Ipv6Addr::from(b).to_string()),
        Field::Port => <[u8; 2]>::try_from(bytes)
            .ok()
            .map(|b| u16::from_be_bytes(b).to_string()),
        Field::Number => <[u8; 4]>::try_from(bytes)
            .ok()
            .map(|b| u32::from_ne_bytes(b).to_string()),
        Field::Class => <[u8; 4]>::try_from(bytes).ok().map(|b| {
            let class = u32::from_ne_bytes(b);
            format!("{:x}:{:x}", class >> 16, class & 0xffff)
        }),
        Field::Proto => bytes.first().map(|number| {
            let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
            let known = all.into_iter().find(|protocol| protocol.number() == *number);
            known.map_or_else(|| number.to_string(), |protocol| protocol.to_string())
        }),
    };
    known.unwrap_or_else(|| format!("{bytes:02x?}"))
}

/// The elements of an interval set: each start with the end that follows it.
fn intervals(set: &Set) -> Vec<String> {
    let mut texts = Vec::new();
    let mut keys = set.elements.keys().peekable();
    while let Some((key, end)) = keys.next() {
        let Some(start) = address(key).filter(|_| !end) else {
            continue;
        };
        let end = keys.next_if(|(_, end)| *end).and_then(|(key, _)| address(key));
        texts.push(interval(start, end));
    }
    texts
}

fn address(key: &Key) -> Option<IpAddr> {
    let bytes = key.as_slice();
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The range from `start` up to, not including, `end`, which is `None` at the end of the address space: as a network
/// if it is one, else as its first and last address.
fn interval(start: IpAddr, end: Option<IpAddr>) -> String {
    let bits = if start.is_ipv4() { 32 } else { 128 };
    let network = (0..=bits)
        .filter_map(|length| IpNet::new(start, length).ok())
        .find(|net| net.network() == start && after(net) == end);
    match (network, end) {
        (Some(net), _) if net.prefix_len() == bits => start.to_string(),
        (Some(net), _) => net.to_string(),
        (None, Some(IpAddr::V4(end))) => format!("{start}-{}", Ipv4Addr::from(u32::from(end) - 1)),
        (None, Some(IpAddr::V6(end))) => format!("{start}-{}", Ipv6Addr::from(u128::from(end) - 1)),
        (None, None) if bits == 32 => format!("{start}-255.255.255.255"),
        (None, None) => format!("{start}-{}", Ipv6Addr::from(u128::MAX)),
    }
}

/// The first address after a network; none if it reaches the end of the address space.
pub(super) fn after(net: &IpNet) -> Option<IpAddr> {
    match net.broadcast() {
        IpAddr::V4(last) => u32::from(last)
            .checked_add(1)
            .map(|next| Ipv4Addr::from(next).into()),
        IpAddr::V6(last) => u128::from(last)
            .checked_add(1)
            .map(|next| Ipv6Addr::from(next).into()),
    }
}

struct VerdictText<'a>(&'a Verdict);

impl fmt::Display for VerdictText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
        }
    }
}

/// Something whose text depends on the table's family.
struct InFamily<'a, T>(Family, &'a T);

impl fmt::Display for InFamily<'_, Rule> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, statement) in self.1.statements.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}", InFamily(self.0, statement))?;
        }
        match self.1.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

/// What stands before a value that is not to match.
fn operator(not: bool) -> &'static str {
    if not { "!= " } else { "" }
}

impl Side {
    fn field(self) -> &'static str {
        match self {
            Side::Source => "saddr",
            Side::Destination => "daddr",
        }
    }
}

impl fmt::Display for InFamily<'_, Statement> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = self.0.as_str();
        let key = |key: &[Load]| {
            let texts = key.iter().map(|load| InFamily(self.0, load).to_string());
            texts.collect::<Vec<_>>().join(" . ")
        };
        match self.1 {
            Statement::New => f.write_str("ct state new"),
            Statement::Translated => f.write_str("ct status dnat"),
            Statement::Within { side, net, not } if net.prefix_len() == net.max_prefix_len() => {
                write!(f, "{family} {} {}{}", side.field(), operator(*not), net.addr())
            }
            Statement::Within { side, net, not } => {
                write!(f, "{family} {} {}{net}", side.field(), operator(*not))
            }
            Statement::InSet { key: loads, set, not } => {
                write!(f, "{} {}@{set}", key(loads), operator(*not))
            }
            Statement::Interface { name, prefix, not } => {
                let star = if *prefix { "*" } else { "" };
                write!(f, "iifname {}\"{name}{star}\"", operator(*not))
            }
            Statement::HostsOwn(of) => write!(f, "fib {} type local", of.field()),
            Statement::Protocol(protocol) => write!(f, "meta l4proto {protocol}"),
            Statement::HasMark(mark) => write!(f, "meta mark and {mark:#010x} != 0"),
            Statement::SetMark(mark) => write!(f, "meta mark set meta mark or {mark:#010x}"),
            Statement::FlipMark(mark) => write!(f, "meta mark set meta mark xor {mark:#010x}"),
            Statement::Masquerade(Ports::Kept) => f.write_str("masquerade"),
            Statement::Masquerade(Ports::Random) => f.write_str("masquerade fully-random"),
            Statement::Reject => f.write_str("reject"),
            Statement::ResetTcp => f.write_str("reject with tcp reset"),
            Statement::Verdict(verdict) => write!(f, "{}", VerdictText(verdict)),
            Statement::VerdictOf { key: loads, map } => write!(f, "{} vmap @{map}", key(loads)),
            Statement::DnatOf { key: loads, map } => {
                write!(f, "dnat {family} addr . port to {} map @{map}", key(loads))
            }
            Statement::SetClassOf { key: loads, map } => {
                write!(f, "meta priority set {} map @{map}", key(loads))
            }
            Statement::ClearClass => f.write_str("meta priority set none"),
            Statement::Remember { map, timeout } => {
                let seconds = timeout.as_secs();
                write!(
                    f,
                    "update @{map} {{ {family} saddr timeout {seconds}s : meta priority }}"
                )
            }
            Statement::Forget { map } => write!(f, "delete @{map} {{ {family} saddr : meta priority }}"),
        }
    }
}

impl fmt::Display for InFamily<'_, Load> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Load::Source => write!(f, "{} saddr", self.0.as_str()),
            Load::Destination => write!(f, "{} daddr", self.0.as_str()),
            Load::Protocol => f.write_str("meta l4proto"),
            Load::Port => f.write_str("th dport"),
            Load::Class => f.write_str("meta priority"),
            Load::Random { modulus, offset: 0 } => write!(f, "numgen random mod {modulus}"),
            Load::Random { modulus, offset } => write!(f, "numgen random mod {modulus} offset {offset}"),
        }
    }
}
