//! Session affinity. Only services that ask for it pay for it: they have chains of their own, as with kube-proxy, one
//! for each pool and each endpoint, and each endpoint has a set of the clients that came to it lately. A client whose
//! endpoint goes finds its set gone too, and is dealt a new one.

use std::net::SocketAddr;
use std::time::Duration;

use ferry_host::nftables::{DataType, Element, Field, Key, SetDecl, Value, Verdict};
use ferry_model::{PortPlan, Scope};

use super::fixed::address_field;
use super::shared::external as external_rules;
use super::{Context, Piece, set};
use crate::nftables::names;
use crate::nftables::ruleset::{Chain, Load, Name, Rule, Statement};

/// What leads to a pool.
pub(super) fn pool(port: &PortPlan, scope: Scope) -> Verdict {
    Verdict::Goto(pool_name(port, scope))
}

/// What leads to the port for traffic from outside.
pub(super) fn external(port: &PortPlan) -> Verdict {
    Verdict::Goto(external_name(port))
}

fn pool_name(port: &PortPlan, scope: Scope) -> Name {
    let prefix = match scope {
        Scope::Cluster => "service",
        Scope::Local => "local",
    };
    format!("{prefix}-{}", names::of_port(&port.name)).into()
}

fn external_name(port: &PortPlan) -> Name {
    format!("external-{}", names::of_port(&port.name)).into()
}

/// The chains and sets of a port with affinity.
pub(super) fn render(port: &PortPlan, context: &Context, pieces: &mut Vec<Piece>) {
    let Some(timeout) = port.affinity else { return };
    for endpoint in port.reachable() {
        remember(port, endpoint.address(), timeout, context, pieces);
    }
    for scope in [Scope::Cluster, Scope::Local] {
        deal(port, scope, pieces);
    }
    if let Some(actions) = port.external.filter(|actions| actions.forward()) {
        let rules = external_rules(context, &actions, |scope| {
            vec![Statement::goto(pool_name(port, scope))]
        });
        pieces.push(Piece::Chain(
            external_name(port),
            Chain {
                rules,
                ..Chain::default()
            },
        ));
    }
}

fn endpoint_names(port: &PortPlan, endpoint: SocketAddr) -> (Name, Name) {
    let name = names::of_endpoint(&port.name, endpoint);
    (
        format!("endpoint-{name}").into(),
        format!("affinity-{name}").into(),
    )
}

/// The chain that sends to one endpoint, and the set of clients that it keeps.
fn remember(
    port: &PortPlan,
    endpoint: SocketAddr,
    timeout: Duration,
    context: &Context,
    pieces: &mut Vec<Piece>,
) {
    let (chain, clients) = endpoint_names(port, endpoint);
    let decl = SetDecl {
        key: [address_field(context.family)].into(),
        dynamic: true,
        ..SetDecl::new(clients.clone())
    };
    pieces.push(Piece::Set(clients.clone(), set(decl, [])));
    // Two rules: if the set is full, the client goes there all the same. The time is in the rule and not in the set,
    // because a set cannot be changed while it is used.
    let rules = vec![
        vec![Statement::Remember {
            set: clients,
            timeout,
        }]
        .into(),
        vec![Statement::Protocol(port.protocol()), Statement::Dnat(endpoint)].into(),
    ];
    pieces.push(Piece::Chain(
        chain,
        Chain {
            rules,
            ..Chain::default()
        },
    ));
}

/// The chain that sends known clients where they were, and deals new ones out.
fn deal(port: &PortPlan, scope: Scope, pieces: &mut Vec<Piece>) {
    let endpoints: Vec<SocketAddr> = port.pool(scope).addresses().collect();
    if endpoints.is_empty() {
        return;
    }
    let name = pool_name(port, scope);
    let mut rules: Vec<Rule> = Vec::with_capacity(endpoints.len() + 1);
    let mut elements = Vec::with_capacity(endpoints.len());
    for (slot, endpoint) in endpoints.iter().enumerate() {
        let (chain, clients) = endpoint_names(port, *endpoint);
        rules.push(
            vec![
                Statement::in_set(&[Load::Source], &clients),
                Statement::goto(chain.clone()),
            ]
            .into(),
        );
        let key = Key::of(&(slot as u32).to_ne_bytes());
        elements.push(Element::new(key, Value::Verdict(Verdict::Goto(chain))));
    }
    let random = Load::Random {
        modulus: endpoints.len() as u32,
        offset: 0,
    };
    rules.push(vec![Statement::verdict_of(&[random], name.clone())].into());
    let decl = SetDecl {
        key: [Field::Number].into(),
        data: Some(DataType::Verdict),
        ..SetDecl::new(name.clone())
    };
    pieces.push(Piece::Set(name.clone(), set(decl, elements)));
    pieces.push(Piece::Chain(
        name,
        Chain {
            rules,
            ..Chain::default()
        },
    ));
}
