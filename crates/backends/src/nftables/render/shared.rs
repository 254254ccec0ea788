//! What services share: chains by the size of pools rather than by service, and elements that several need.

use std::sync::Arc;

use ferry_host::nftables::{Key, SetDecl, Verdict};
use ferry_model::{Action, Actions, Scope};
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

/// Something that any number of services can need, and that is there as long as one does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in super::super) enum Shared {
    /// An element without data.
    Element(FixedSet, Key),
    /// Picks one of a pool's endpoints, of which there are so many.
    Pool(By, Scope, u32),
    /// Traffic from outside, with the sizes of the pools that it is led to.
    External {
        by: By,
        actions: Actions,
        cluster: u32,
        local: u32,
    },
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
            Self::Pool(of, Scope::Cluster, size) => Some(format!("{}lb-{size}", by(of)).into()),
            Self::Pool(of, Scope::Local, size) => Some(format!("{}local-{size}", by(of)).into()),
            Self::External {
                by: of,
                actions,
                cluster,
                local,
            } => Some(match actions.uniform() {
                Some(_) => format!("{}external-{cluster}", by(of)).into(),
                None => format!("{}external-{cluster}-local-{local}", by(of)).into(),
            }),
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
            Self::External {
                by, cluster, local, ..
            } => {
                let sizes = [(Scope::Cluster, *cluster), (Scope::Local, *local)];
                let pools = sizes.into_iter().filter(|(_, size)| *size > 0);
                pools.map(|(scope, size)| Self::Pool(*by, scope, size)).collect()
            }
            Self::Element(..) | Self::Pool(..) | Self::Sources(_) => Vec::new(),
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
            Self::Pool(by, scope, size) => (vec![pick(*by, *size, first_slot(*scope))], vec![]),
            Self::External {
                by,
                actions,
                cluster,
                local,
            } => {
                let pool = |scope| {
                    let size = match scope {
                        Scope::Cluster => *cluster,
                        Scope::Local => *local,
                    };
                    Self::Pool(*by, scope, size).chain_name()
                };
                (external(context, actions, pool), vec![])
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

/// Traffic from outside: each kind of client to its pool, masqueraded or not. Others come last, so what nobody else
/// gets needs no match.
pub(super) fn external(
    context: &Context,
    actions: &Actions,
    pool: impl Fn(Scope) -> Option<Name>,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let mut lead = |client: Option<Statement>, action: Action, comments: [Option<&'static str>; 2]| {
        let Action::Forward { scope, masquerade } = action else {
            return;
        };
        let mark = masquerade.then_some(Statement::SetMark(context.mark));
        let pool = pool(scope).map(Statement::goto);
        for (what, comment) in [mark, pool].into_iter().zip(comments) {
            if let Some(what) = what {
                let statements: Vec<Statement> = client.iter().cloned().chain([what]).collect();
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
