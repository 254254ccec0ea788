//! What services share: chains by the size of pools rather than by service, and elements that several need.

use std::sync::Arc;

use ferry_host::nftables::{Data, Element, Key, SetDecl, Value, Verdict};
use ferry_model::{Action, Actions, FrontendKey, Scope};
use ipnet::IpNet;

use super::fixed::{self, FRONTEND, NODE_PORT, address_field};
use super::port::first_slot;
use super::{Context, FixedSet, Octets, set};
use crate::nftables::names;
use crate::nftables::ruleset::{Chain, Load, Name, Rule, Set, Side, Statement};

/// Whether a pool is found by a packet's address and port, or by its node port alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum By {
    Address,
    NodePort,
}

impl By {
    pub(super) fn of(frontend: FrontendKey) -> Self {
        match frontend {
            FrontendKey::Address(..) => Self::Address,
            FrontendKey::NodePort(..) => Self::NodePort,
        }
    }

    /// One of two sets, whichever has keys of this kind.
    pub(super) fn choose<T>(self, by_address: T, by_node_port: T) -> T {
        match self {
            Self::Address => by_address,
            Self::NodePort => by_node_port,
        }
    }

    fn key(self) -> Vec<Load> {
        self.choose(&FRONTEND[..], &NODE_PORT[..]).to_vec()
    }

    fn prefix(self) -> &'static str {
        self.choose("", "nodeport-")
    }

    /// The map of the ways that frontends are balanced.
    pub(super) fn frontends(self, door: Door) -> FixedSet {
        match door {
            Door::Front => self.choose(FixedSet::Frontends, FixedSet::NodePorts),
            Door::ShortCircuit => self.choose(FixedSet::ShortCircuits, FixedSet::NodePortShortCircuits),
        }
    }

    fn balancers(self, door: Door) -> FixedSet {
        match door {
            Door::Front => self.choose(FixedSet::Balancers, FixedSet::NodePortBalancers),
            Door::ShortCircuit => self.choose(
                FixedSet::ShortCircuitBalancers,
                FixedSet::NodePortShortCircuitBalancers,
            ),
        }
    }

    /// Balances the packet in the way that the map has for its frontend, if it has one.
    pub(super) fn balance(self, door: Door) -> Vec<Statement> {
        let class = Statement::SetClassOf {
            key: self.key(),
            map: self.frontends(door).name().into(),
        };
        vec![class, Statement::goto(self.chain(door))]
    }

    pub(super) fn chain(self, door: Door) -> &'static str {
        match door {
            Door::Front => self.choose(names::BALANCE, names::NODE_PORT_BALANCE),
            Door::ShortCircuit => self.choose(names::SHORT_CIRCUIT, names::NODE_PORT_SHORT_CIRCUIT),
        }
    }

    /// Leads to the chain of the way that was found.
    pub(super) fn dispatch(self, door: Door) -> Rule {
        vec![Statement::verdict_of(&[Load::Class], self.balancers(door).name())].into()
    }
}

/// How a packet comes to its pool: through its frontend, or past a Local policy, as pods and the node may. The kernel
/// would see a loop if chains behind a door led to it again, so there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    Front,
    ShortCircuit,
}

/// Something that any number of services can need, and that is there as long as one does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Shared {
    /// An element without data.
    Element(FixedSet, Key),
    /// Picks one of a pool's endpoints, of which there are so many.
    Pool(By, Scope, u32),
    /// Traffic from outside, with the size of the pool that others are led to. Where pods and the node may use more
    /// than others, the map of short circuits has their pool.
    External { by: By, actions: Actions, size: u32 },
    /// Leads pods and the node to a Cluster pool of so many, past a Local policy.
    ShortCircuit(By, u32),
    /// Services with chains of their own.
    Own(By),
    /// Who may use an address.
    Sources(Arc<[IpNet]>),
}

/// What is in the table.
#[derive(Debug, Default)]
pub(in super::super) struct Objects {
    pub(in super::super) chains: Vec<(Name, Chain)>,
    pub(in super::super) sets: Vec<(Name, Set)>,
    pub(in super::super) elements: Vec<(FixedSet, Element)>,
}

impl Shared {
    fn chain_name(&self) -> Option<Name> {
        match self {
            Self::Element(..) => None,
            Self::ShortCircuit(by, size) => Self::Pool(*by, Scope::Cluster, *size).chain_name(),
            Self::Pool(by, Scope::Cluster, size) => Some(format!("{}lb-{size}", by.prefix()).into()),
            Self::Pool(by, Scope::Local, size) => Some(format!("{}local-{size}", by.prefix()).into()),
            Self::External { by, actions, size } => Some(match actions.uniform() {
                Some(_) => format!("{}external-{size}", by.prefix()).into(),
                None => format!("{}external-local-{size}", by.prefix()).into(),
            }),
            Self::Own(by) => Some(format!("{}own", by.prefix()).into()),
            Self::Sources(ranges) => Some(names::of_content("firewall-", &octets(ranges))),
        }
    }

    /// What leads there.
    pub(super) fn goto(&self) -> Option<Verdict> {
        self.chain_name().map(Verdict::Goto)
    }

    /// Its number among the ways to balance: the kind in the upper half, the size in the lower. Frontends have this
    /// number and no verdict, because the kernel walks all verdicts of a table whenever one is added.
    fn class(&self) -> Option<u32> {
        let (kind, size) = match self {
            Self::Pool(_, Scope::Cluster, size) | Self::ShortCircuit(_, size) => (1, size),
            Self::Pool(_, Scope::Local, size) => (2, size),
            Self::External { actions, size, .. } if actions.uniform().is_some() => (3, size),
            Self::External { size, .. } => (4, size),
            Self::Own(_) => (5, &0),
            Self::Element(..) | Self::Sources(_) => return None,
        };
        Some(kind << 16 | size)
    }

    /// The number, as maps have it.
    pub(super) fn class_data(&self) -> Option<Data> {
        self.class().map(|class| Data::concat(&[&class.to_ne_bytes()]))
    }

    /// What else has to be there for it. Its own chain is not among them.
    pub(in super::super) fn needs(&self) -> Vec<Shared> {
        match self {
            Self::External { by, actions, size } => {
                let scope = actions.others.scope();
                scope
                    .map(|scope| Self::Pool(*by, scope, *size))
                    .into_iter()
                    .collect()
            }
            Self::ShortCircuit(by, size) => vec![Self::Pool(*by, Scope::Cluster, *size)],
            Self::Element(..) | Self::Pool(..) | Self::Own(_) | Self::Sources(_) => Vec::new(),
        }
    }

    /// Its chains, sets and elements, with what it needs.
    pub(in super::super) fn objects(&self, context: &Context) -> Objects {
        let mut objects = self.own_objects(context);
        for needed in self.needs() {
            let needed = needed.own_objects(context);
            objects.chains.extend(needed.chains);
            objects.sets.extend(needed.sets);
            objects.elements.extend(needed.elements);
        }
        objects
    }

    /// The same, without what it needs.
    pub(in super::super) fn own_objects(&self, context: &Context) -> Objects {
        let mut objects = Objects::default();
        if let Self::Element(set, key) = self {
            objects.elements.push((*set, Element::new(*key, Value::None)));
        }
        if let Some((name, rules)) = self.chain_name().zip(self.rules(context)) {
            let chain = Chain {
                rules,
                ..Chain::default()
            };
            objects.chains.push((name, chain));
        }
        if let Self::Sources(ranges) = self {
            objects.sets.push(source_set(context, ranges));
        }
        let lead = self.class().zip(self.goto());
        if let Some((map, (class, lead))) = self.balancers().zip(lead) {
            let element = Element::new(Key::of(&class.to_ne_bytes()), Value::Verdict(lead));
            objects.elements.push((map, element));
        }
        objects
    }

    /// Where its chain is found by its number.
    fn balancers(&self) -> Option<FixedSet> {
        match self {
            Self::Pool(by, ..) | Self::External { by, .. } | Self::Own(by) => Some(by.balancers(Door::Front)),
            Self::ShortCircuit(by, _) => Some(by.balancers(Door::ShortCircuit)),
            Self::Element(..) | Self::Sources(_) => None,
        }
    }

    fn rules(&self, context: &Context) -> Option<Vec<Rule>> {
        match self {
            Self::Element(..) | Self::ShortCircuit(..) => None,
            Self::Pool(by, scope, size) => Some(vec![pick(*by, *size, first_slot(*scope))]),
            Self::External { by, actions, size } => {
                let split = actions.uniform().is_none();
                let lead = |scope| match scope {
                    Scope::Cluster if split => by.balance(Door::ShortCircuit),
                    scope => Self::Pool(*by, scope, *size)
                        .goto()
                        .map(Statement::Verdict)
                        .into_iter()
                        .collect(),
                };
                Some(external(context, actions, lead))
            }
            Self::Own(by) => {
                let chains = by.choose(names::SERVICE_IPS, names::SERVICE_NODE_PORTS);
                let lead = Statement::verdict_of(&by.key(), chains);
                Some(vec![vec![Statement::ClearClass, lead].into()])
            }
            Self::Sources(ranges) => Some(vec![sources(ranges)]),
        }
    }
}

/// A random endpoint of the frontend that the packet is for.
fn pick(by: By, size: u32, offset: u32) -> Rule {
    let map = by.choose(names::ENDPOINTS, names::NODE_PORT_ENDPOINTS);
    let mut key = by.key();
    key.push(Load::Random {
        modulus: size,
        offset,
    });
    // The map has no other protocols; the match is what `nft` wants to see before it translates ports.
    vec![
        Statement::ClearClass,
        Statement::in_set(&[Load::Protocol], names::PROTOCOLS),
        Statement::DnatOf { key, map: map.into() },
    ]
    .into()
}

/// Traffic from outside: each kind of client to its pool, masqueraded or not. Others come last, so what nobody else
/// gets needs no match.
pub(super) fn external(
    context: &Context,
    actions: &Actions,
    pool: impl Fn(Scope) -> Vec<Statement>,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut lead = |client: Option<Statement>, action: Action, comments: [Option<&'static str>; 2]| {
        let Action::Forward { scope, masquerade } = action else {
            return;
        };
        let mark = Vec::from_iter(masquerade.then_some(Statement::SetMark(context.mark)));
        for (what, comment) in [mark, pool(scope)].into_iter().zip(comments) {
            if !what.is_empty() {
                let statements: Vec<Statement> = client.iter().cloned().chain(what).collect();
                rules.push(match comment {
                    Some(comment) => Rule::commented(statements, comment),
                    None => statements.into(),
                });
            }
        }
    };
    if actions.uniform().is_none() {
        if let Some(pod) = fixed::from_pod(context) {
            let comments = [Some("masquerade pod traffic"), Some("short-circuit pod traffic")];
            lead(Some(pod), actions.pods, comments);
        }
        let own = Statement::HostsOwn(Side::Source);
        let comments = [
            Some("masquerade local traffic"),
            Some("short-circuit local traffic"),
        ];
        lead(Some(own), actions.node, comments);
    }
    lead(None, actions.others, [Some("masquerade"), None]);
    rules
}

/// Drops what comes from outside these networks. Services with the same networks share it.
fn sources(ranges: &[IpNet]) -> Rule {
    let outside = Statement::InSet {
        key: vec![Load::Source],
        set: source_set_name(ranges),
        not: true,
    };
    vec![outside, Statement::Verdict(Verdict::Drop)].into()
}

fn source_set(context: &Context, ranges: &[IpNet]) -> (Name, Set) {
    let name = source_set_name(ranges);
    let decl = SetDecl {
        key: [address_field(context.family)].into(),
        interval: true,
        ..SetDecl::new(name.clone())
    };
    (name, set(decl, fixed::intervals(ranges)))
}

fn source_set_name(ranges: &[IpNet]) -> Name {
    names::of_content("sources-", &octets(ranges))
}

fn octets(ranges: &[IpNet]) -> Vec<u8> {
    let mut content = Vec::new();
    for range in ranges {
        content.extend_from_slice(Octets::of(range.network()).as_slice());
        content.push(range.prefix_len());
    }
    content
}
