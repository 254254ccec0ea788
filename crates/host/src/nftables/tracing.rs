//! The kernel's own word about a packet: a rule in a table of its own marks it, and the kernel tells each rule that it
//! meets from there on, in whosever table.
//!
//! Always holds: the table belongs to the socket that made it, so it goes with the process however that ends. Kernels
//! before 5.12 do not know owners; there a killed process leaves a table whose only element has timed out.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch::{Batch, Owner};
use super::client::{Client, Error};
use super::expr::{Expr, MetaKey, PayloadBase, Register};
use super::set::{Element, Field, SetDecl, Value};
use super::{BaseChain, ChainDecl, ChainKind, Family, Hook, Key, Rule, SUBSYSTEM};
use crate::netlink::{self, Bus, Message, Socket, Wait, messages};

const GROUP: u32 = 9;
const TRACE: u16 = 17;
/// Before anybody else.
const PRIORITY: i32 = -450;
const CHAIN_NAMES: [(&str, Hook); 2] = [("arriving", Hook::Prerouting), ("sent", Hook::Output)];

mod attribute {
    pub(super) const TABLE: u16 = 1;
    pub(super) const CHAIN: u16 = 2;
    pub(super) const HANDLE: u16 = 3;
    pub(super) const KIND: u16 = 4;
    pub(super) const VERDICT: u16 = 5;
    pub(super) const ID: u16 = 6;
    pub(super) const NETWORK_HEADER: u16 = 8;
    pub(super) const TRANSPORT_HEADER: u16 = 9;
    pub(super) const INPUT: u16 = 10;
    pub(super) const OUTPUT: u16 = 12;
    pub(super) const POLICY: u16 = 16;
}

/// Which packets to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Whoever sends it, if nobody is named.
    pub source: Option<IpAddr>,
    pub destination: SocketAddr,
    /// IP protocol number.
    pub protocol: u8,
    pub sent: Sent,
}

/// Where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// This node.
    Here,
    /// Others.
    Elsewhere,
    Anywhere,
}

/// One thing that happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traced {
    /// The same for all that happens to one packet.
    pub packet: u32,
    /// The table's family, as the kernel numbers it.
    pub family: u8,
    pub table: String,
    pub chain: String,
    pub event: TraceEvent,
    pub verdict: TraceVerdict,
    /// The packet's ends, where the kernel shows its headers: with the first event of each table.
    pub ends: Option<(SocketAddr, SocketAddr)>,
    /// Numbers of the interfaces.
    pub input: Option<u32>,
    pub output: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A rule, by its number.
    Rule(u64),
    /// The end of a chain that was jumped to.
    Return,
    /// The end of a base chain.
    Policy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceVerdict {
    Accept,
    Drop,
    Continue,
    Jump(String),
    Goto(String),
    Return,
    /// Handed to a program, or taken over.
    Elsewhere,
}

impl Traced {
    /// The word that `nft` has for the table's family.
    pub fn family_name(&self) -> &'static str {
        match self.family {
            1 => "inet",
            2 => "ip",
            5 => "netdev",
            7 => "bridge",
            10 => "ip6",
            _ => "?",
        }
    }

    fn read(message: &Message<'_>) -> Option<Self> {
        if message.kind != SUBSYSTEM | TRACE {
            return None;
        }
        let all = message.netfilter_attrs();
        let number = |kind: u16| all.get(kind).and_then(|attr| attr.be32());
        let text = |kind: u16| Some(all.get(kind)?.str()?.to_owned());
        let event = match number(attribute::KIND)? {
            1 => TraceEvent::Policy,
            2 => TraceEvent::Return,
            3 => TraceEvent::Rule(all.get(attribute::HANDLE)?.be64()?),
            _ => return None,
        };
        let verdict = match event {
            TraceEvent::Policy => policy(number(attribute::POLICY)?),
            TraceEvent::Rule(_) | TraceEvent::Return => {
                let nested = all.get(attribute::VERDICT)?.nested();
                let code = nested.get(super::attr::VERDICT_CODE)?.be32()? as i32;
                let chain = nested.get(super::attr::VERDICT_CHAIN).and_then(|name| name.str());
                verdict(code, chain.unwrap_or_default())
            }
        };
        let headers = all
            .get(attribute::NETWORK_HEADER)
            .zip(all.get(attribute::TRANSPORT_HEADER));
        Some(Self {
            packet: number(attribute::ID)?,
            family: message.netfilter_family(),
            table: text(attribute::TABLE)?,
            chain: text(attribute::CHAIN)?,
            event,
            verdict,
            ends: headers.and_then(|(network, transport)| ends(network.data, transport.data)),
            input: number(attribute::INPUT),
            output: number(attribute::OUTPUT),
        })
    }
}

fn policy(code: u32) -> TraceVerdict {
    match code {
        0 => TraceVerdict::Drop,
        _ => TraceVerdict::Accept,
    }
}

fn verdict(code: i32, chain: &str) -> TraceVerdict {
    match code {
        0 => TraceVerdict::Drop,
        1 => TraceVerdict::Accept,
        -1 | -2 => TraceVerdict::Continue,
        -3 => TraceVerdict::Jump(chain.to_owned()),
        -4 => TraceVerdict::Goto(chain.to_owned()),
        -5 => TraceVerdict::Return,
        _ => TraceVerdict::Elsewhere,
    }
}

fn ends(network: &[u8], transport: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| Some(u16::from_be_bytes(transport.get(at..at + 2)?.try_into().ok()?));
    let (source, destination): (IpAddr, IpAddr) = match network.first()? >> 4 {
        4 => {
            let address = |at: usize| <[u8; 4]>::try_from(network.get(at..at + 4)?).ok();
            (address(12)?.into(), address(16)?.into())
        }
        6 => {
            let address = |at: usize| <[u8; 16]>::try_from(network.get(at..at + 16)?).ok();
            (address(8)?.into(), address(24)?.into())
        }
        _ => return None,
    };
    Some((
        SocketAddr::new(source, port(0)?),
        SocketAddr::new(destination, port(2)?),
    ))
}

/// A running trace. Dropping it ends it.
#[derive(Debug)]
pub struct Tracing {
    /// Owns the table.
    client: Client,
    listener: Socket,
    family: Family,
    table: String,
}

impl Tracing {
    /// Follows these packets from now on, for at most this long.
    pub fn start(followed: &Followed, lifetime: Duration) -> Result<Self, Error> {
        let mut listener = Socket::open(Bus::Netfilter)?;
        listener.subscribe(GROUP)?;
        let mut client = Client::open()?;
        let family = match followed.destination {
            SocketAddr::V4(_) => Family::Ip,
            SocketAddr::V6(_) => Family::Ip6,
        };
        let table = format!("ferry-explain-{}", std::process::id());
        let batch = |owner| batch(family, &table, followed, lifetime, owner);
        if let Err(error) = client.commit(batch(Owner::Socket)) {
            // A kernel that knows no owners refuses the flag.
            if !matches!(&error, Error::Refused { refusal, .. } if matches!(refusal.errno, libc::EOPNOTSUPP | libc::EINVAL))
            {
                return Err(error);
            }
            client.commit(batch(Owner::Nobody))?;
        }
        Ok(Self {
            client,
            listener,
            family,
            table,
        })
    }

    /// The table that marks packets: what happens in it is no news.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// What happened until then; waits for it.
    pub fn receive_until(&mut self, end: Instant, mut each: impl FnMut(Traced)) -> Result<(), Error> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // Zero would wait for ever.
            self.listener
                .set_timeout(Some(left.max(Duration::from_millis(1))))?;
            match self.listener.receive(Wait::ForTimeout) {
                Ok(None) => return Ok(()),
                Ok(Some(datagram)) => messages(datagram)
                    .filter_map(|message| Traced::read(&message))
                    .for_each(&mut each),
                // Some were lost; the others are worth having.
                Err(netlink::Error::Receive(error)) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A rule that was met, by its chain and number.
    pub fn rule(&mut self, family: u8, table: &str, chain: &str, handle: u64) -> Result<Option<Rule>, Error> {
        let rules = self.client.rules(family, table, chain)?;
        let found = rules.into_iter().find(|(number, _)| *number == handle);
        Ok(found.map(|(_, rule)| rule))
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        // Where the table has an owner, closing the socket would do.
        let _ = self.client.delete_table(self.family, &self.table);
    }
}

fn batch(family: Family, table: &str, followed: &Followed, lifetime: Duration, owner: Owner) -> Batch {
    const SET: &str = "followed";
    let mut batch = Batch::new(family, table, None);
    batch.add_table_of("a trace that ferry explain --live asked for", owner);
    let (fields, key, loads) = matched(followed);
    let set: Arc<str> = SET.into();
    batch.add_set(&SetDecl {
        key: fields.into(),
        dynamic: true,
        ..SetDecl::new(Arc::clone(&set))
    });
    if let Some(key) = Key::read(&key) {
        batch.add_element_for(&set, &Element::new(key, Value::None), lifetime);
    }
    let rule = Rule {
        expressions: loads
            .into_iter()
            .chain([
                Expr::Lookup {
                    set,
                    key: Register(0),
                    inverted: false,
                },
                Expr::Load {
                    to: Register(0),
                    data: [1].into(),
                },
                Expr::SetMeta {
                    key: MetaKey::Trace,
                    from: Register(0),
                },
            ])
            .collect(),
        comment: None,
    };
    let is_wanted = |hook: Hook| match followed.sent {
        Sent::Here => hook == Hook::Output,
        Sent::Elsewhere => hook == Hook::Prerouting,
        Sent::Anywhere => true,
    };
    for (name, hook) in CHAIN_NAMES.into_iter().filter(|(_, hook)| is_wanted(*hook)) {
        let name: Arc<str> = name.into();
        batch.add_chain(&ChainDecl {
            name: Arc::clone(&name),
            base: Some(BaseChain {
                kind: ChainKind::Filter,
                hook,
                priority: PRIORITY,
            }),
            comment: None,
        });
        batch.add_rules(&name, [&rule]);
    }
    batch
}

/// The fields that a packet is told by, their values, and what loads them from a packet.
fn matched(followed: &Followed) -> (Vec<Field>, Vec<u8>, Vec<Expr>) {
    let (mut fields, mut key, mut loads) = (Vec::new(), Vec::new(), Vec::new());
    let next = |key: &[u8]| Register((key.len() / 4) as u8);
    let mut address = |address: IpAddr, offsets: (u32, u32), key: &mut Vec<u8>| {
        let (field, offset, length) = match address {
            IpAddr::V4(_) => (Field::Ipv4, offsets.0, 4),
            IpAddr::V6(_) => (Field::Ipv6, offsets.1, 16),
        };
        fields.push(field);
        loads.push(Expr::Payload {
            base: PayloadBase::Network,
            offset,
            length,
            to: next(key),
        });
        match address {
            IpAddr::V4(v4) => key.extend(v4.octets()),
            IpAddr::V6(v6) => key.extend(v6.octets()),
        }
    };
    if let Some(source) = followed.source {
        address(source, (12, 8), &mut key);
    }
    address(followed.destination.ip(), (16, 24), &mut key);
    fields.push(Field::Proto);
    loads.push(Expr::Meta {
        key: MetaKey::L4Proto,
        to: next(&key),
    });
    key.extend([followed.protocol, 0, 0, 0]);
    fields.push(Field::Port);
    loads.push(Expr::Payload {
        base: PayloadBase::Transport,
        offset: 2,
        length: 2,
        to: next(&key),
    });
    let [high, low] = followed.destination.port().to_be_bytes();
    key.extend([high, low, 0, 0]);
    (fields, key, loads)
}
