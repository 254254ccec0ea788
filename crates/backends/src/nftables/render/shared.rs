//! What services share: chains by the size of pools rather than by service, and elements that several need.

use std::sync::Arc;

use ferry_host::nftables::{Key, SetDecl, Verdict};
use ipnet::IpNet;

use super::fixed::{self, FRONTEND, NODE_PORT, address_field};
use super::{Context, FixedSet, LOCAL_SLOTS, Octets, set};
use crate::nftables::names;
use crate::nftables::ruleset::{Chain, Load, Name, Rule, Set, Side, Statement};

/// Whether a pool is found by a packet's address and port, or by its node port alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum By {
    Address,
    NodePort,
}

/// Something that any number of services can need, and that is there as long as one does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Shared {
    /// An element without data.
    Element(FixedSet, Key),
    /// Picks one of the Cluster pool's endpoints, of which there are so many.
    Pool(By, u32),
    /// Picks one of the Local pool's.
    LocalPool(By, u32),
    /// Traffic from outside under a Cluster policy.
    External(By, u32),
    /// Traffic from outside under a Local policy: sizes of the Cluster and the Local pool.
    ExternalLocal(By, u32, u32),
    /// Who may use an address.
    Sources(Arc<[IpNet]>),
}

type Objects = (Vec<(Name, Chain)>, Vec<(Name, Set)>);

impl Shared {
    pub(in super::super) fn chain_name(&self) -> Option<Name> {
        let by = |by: &By| match by {
            By::Address => "",
            By::NodePort => "nodeport-",
        };
        match self {
            Self::Element(..) => None,
            Self::Pool(of, size) => Some(format!("{}lb-{size}", by(of)).into()),
            Self::LocalPool(of, size) => Some(format!("{}local-{size}", by(of)).into()),
            Self::External(of, size) => Some(format!("{}external-{size}", by(of)).into()),
            Self::ExternalLocal(of, size, local) => {
                Some(format!("{}external-{size}-local-{local}", by(of)).into())
            }
            Self::Sources(ranges) => Some(names::of_content("firewall-", &octets(ranges))),
        }
    }

    /// What leads there.
    pub(super) fn goto(&self) -> Option<Verdict> {
        self.chain_name().map(Verdict::Goto)
    }

    /// What else has to be there for it. Its own chain is not among them.
    pub(in super::super) fn needs(&self) -> Vec<Shared> {
        match self {
            Self::External(by, size) => vec![Self::Pool(*by, *size)],
            Self::ExternalLocal(by, size, local) => {
                let cluster = (*size > 0).then_some(Self::Pool(*by, *size));
                let local = (*local > 0).then_some(Self::LocalPool(*by, *local));
                cluster.into_iter().chain(local).collect()
            }
            Self::Element(..) | Self::Pool(..) | Self::LocalPool(..) | Self::Sources(_) => Vec::new(),
        }
    }

    /// Its chains and sets, with what it needs.
    pub(in super::super) fn objects(&self, context: &Context) -> Objects {
        let mut objects: Objects = self.own_objects(context);
        for needed in self.needs() {
            let (chains, sets) = needed.own_objects(context);
            objects.0.extend(chains);
            objects.1.extend(sets);
        }
        objects
    }

    /// Its own chain and set, without what it needs.
    pub(in super::super) fn own_objects(&self, context: &Context) -> Objects {
        let Some(name) = self.chain_name() else {
            return Objects::default();
        };
        let (rules, sets) = match self {
            Self::Element(..) => return Objects::default(),
            Self::Pool(by, size) => (vec![pick(*by, *size, 0)], vec![]),
            Self::LocalPool(by, size) => (vec![pick(*by, *size, LOCAL_SLOTS)], vec![]),
            Self::External(by, size) => {
                let pool = Self::Pool(*by, *size).goto().map(Statement::Verdict);
                (external(context, pool), vec![])
            }
            Self::ExternalLocal(by, size, local) => {
                let pool = (*size > 0)
                    .then_some(Self::Pool(*by, *size))
                    .and_then(|pool| pool.goto());
                let local = (*local > 0)
                    .then_some(Self::LocalPool(*by, *local))
                    .and_then(|pool| pool.goto());
                (external_local(context, pool, local), vec![])
            }
            Self::Sources(ranges) => sources(context, ranges),
        };
        (
            vec![(
                name,
                Chain {
                    rules,
                    ..Chain::default()
                },
            )],
            sets,
        )
    }
}

/// A random endpoint of the frontend that the packet is for.
fn pick(by: By, size: u32, offset: u32) -> Rule {
    let (key, map): (&[Load], _) = match by {
        By::Address => (&FRONTEND, names::ENDPOINTS),
        By::NodePort => (&NODE_PORT, names::NODE_PORT_ENDPOINTS),
    };
    let mut key = key.to_vec();
    key.push(Load::Random {
        modulus: size,
        offset,
    });
    // The map has no other protocols; the match is what `nft` wants to see before it translates ports.
    vec![
        Statement::in_set(&[Load::Protocol], names::PROTOCOLS),
        Statement::DnatOf { key, map: map.into() },
    ]
    .into()
}

/// Traffic from outside under a Cluster policy: masqueraded, to any endpoint.
pub(super) fn external(context: &Context, pool: Option<Statement>) -> Vec<Rule> {
    let mark = Rule::commented(vec![Statement::SetMark(context.mark)], "masquerade");
    std::iter::once(mark)
        .chain(pool.map(|pool| vec![pool].into()))
        .collect()
}

/// Traffic from outside under a Local policy: pods and the node itself use every endpoint, others those here.
pub(super) fn external_local(context: &Context, pool: Option<Verdict>, local: Option<Verdict>) -> Vec<Rule> {
    let mut rules = Vec::new();
    let own = Statement::HostsOwn(Side::Source);
    if let Some(pool) = pool.map(Statement::Verdict) {
        if let Some(pod) = fixed::from_pod(context, false) {
            rules.push(Rule::commented(
                vec![pod, pool.clone()],
                "short-circuit pod traffic",
            ));
        }
        let mark = Statement::SetMark(context.mark);
        rules.push(Rule::commented(
            vec![own.clone(), mark],
            "masquerade local traffic",
        ));
        rules.push(Rule::commented(vec![own, pool], "short-circuit local traffic"));
    }
    rules.extend(local.map(|local| Rule::from(vec![Statement::Verdict(local)])));
    rules
}

/// Drops what comes from outside these networks. Services with the same networks share it.
fn sources(context: &Context, ranges: &[IpNet]) -> (Vec<Rule>, Vec<(Name, Set)>) {
    let name = names::of_content("sources-", &octets(ranges));
    let outside = Statement::InSet {
        key: vec![Load::Source],
        set: name.clone(),
        not: true,
    };
    let decl = SetDecl {
        key: [address_field(context.family)].into(),
        interval: true,
        ..SetDecl::new(name.clone())
    };
    let set = set(decl, fixed::intervals(ranges));
    (
        vec![vec![outside, Statement::Verdict(Verdict::Drop)].into()],
        vec![(name, set)],
    )
}

fn octets(ranges: &[IpNet]) -> Vec<u8> {
    let mut content = Vec::new();
    for range in ranges {
        content.extend_from_slice(Octets::of(range.network()).as_slice());
        content.push(range.prefix_len());
    }
    content
}
