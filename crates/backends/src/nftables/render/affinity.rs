//! Session affinity. Only services that ask for it pay for it: they have a chain of their own for each pool, and
//! three maps, whatever the size of the pool. A client is remembered by its endpoint's ticket, a number; a ticket that no
//! endpoint has any more leads nowhere, so the client whose endpoint went is dealt another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use ferry_host::nftables::{Data, DataType, Element, Field, Key, SetDecl, Value, Verdict};
use ferry_model::{PortPlan, Scope};

use super::fixed::address_field;
use super::port::first_slot;
use super::shared::external as external_rules;
use super::{Context, MAX_SLOTS, Octets, Piece, set};
use crate::nftables::names;
use crate::nftables::ruleset::{Chain, Load, Name, Rule, Statement};

/// What leads to a pool.
pub(super) fn pool(port: &PortPlan, scope: Scope) -> Verdict {
    Verdict::Goto(pool_name(port, scope))
}

/// What leads to the port for traffic from outside.
pub(super) fn external(port: &PortPlan) -> Verdict {
    Verdict::Goto(named("external-", port))
}

fn named(prefix: &str, port: &PortPlan) -> Name {
    format!("{prefix}{}", names::of_port(&port.name)).into()
}

fn pool_name(port: &PortPlan, scope: Scope) -> Name {
    named(by_scope(scope, "service-", "local-"), port)
}

fn endpoints_name(port: &PortPlan, scope: Scope) -> Name {
    named(by_scope(scope, "endpoints-", "local-endpoints-"), port)
}

fn by_scope(scope: Scope, cluster: &'static str, local: &'static str) -> &'static str {
    match scope {
        Scope::Cluster => cluster,
        Scope::Local => local,
    }
}

/// The chains and maps of a port with affinity.
pub(super) fn render(port: &PortPlan, context: &Context, pieces: &mut Vec<Piece>) {
    let Some(timeout) = port.affinity else { return };
    let tickets = tickets(port);
    let mut slots = Vec::new();
    for scope in [Scope::Cluster, Scope::Local] {
        let pool: Vec<SocketAddr> = port.pool(scope).addresses().take(MAX_SLOTS).collect();
        if !pool.is_empty() {
            let rules = deal(port, scope, pool.len() as u32, timeout);
            pieces.push(chain(pool_name(port, scope), rules));
            pieces.push(endpoints(port, scope, &pool, &tickets, context));
            let numbered = (first_slot(scope)..).zip(&pool);
            slots.extend(numbered.filter_map(|(slot, endpoint)| {
                let ticket = Data::concat(&[&tickets.get(endpoint)?.to_ne_bytes()]);
                Some(Element::new(Key::of(&slot.to_ne_bytes()), Value::Data(ticket)))
            }));
        }
    }
    if slots.is_empty() {
        return;
    }
    let ticket = || Some(DataType::Fields([Field::Class].into()));
    let decl = SetDecl {
        key: [Field::Number].into(),
        data: ticket(),
        ..SetDecl::new(named("slots-", port))
    };
    pieces.push(Piece::Set(decl.name.clone(), set(decl, slots)));
    let decl = SetDecl {
        key: [address_field(context.family)].into(),
        data: ticket(),
        dynamic: true,
        ..SetDecl::new(named("affinity-", port))
    };
    pieces.push(Piece::Set(decl.name.clone(), set(decl, [])));
    if let Some(actions) = port.external.filter(|actions| actions.forward()) {
        let goto = |scope| vec![Statement::goto(pool_name(port, scope))];
        let rules = external_rules(context, &actions, goto);
        pieces.push(chain(named("external-", port), rules));
    }
}

fn chain(name: Name, rules: Vec<Rule>) -> Piece {
    let chain = Chain {
        rules,
        ..Chain::default()
    };
    Piece::Chain(name, chain)
}

/// Sends known clients where they were, and deals new ones out. The time is in the rule and not in the map, because a
/// map cannot be changed while it is used; and if the map is full, the client is served all the same.
fn deal(port: &PortPlan, scope: Scope, size: u32, timeout: Duration) -> Vec<Rule> {
    let clients = named("affinity-", port);
    let find = |key: &[Load], map: &Name| Statement::SetClassOf {
        key: key.into(),
        map: map.clone(),
    };
    let remember = || Statement::Remember {
        map: clients.clone(),
        timeout,
    };
    let random = Load::Random {
        modulus: size,
        offset: first_slot(scope),
    };
    let send = || {
        let map = endpoints_name(port, scope);
        let key = vec![Load::Class];
        vec![
            Statement::Protocol(port.protocol()),
            Statement::DnatOf { key, map },
        ]
    };
    let rules: [Vec<Statement>; 6] = [
        vec![find(&[Load::Source], &clients), remember()],
        send(),
        // Its endpoint has gone. What is remembered cannot be overwritten.
        vec![Statement::Forget { map: clients.clone() }],
        vec![find(&[random], &named("slots-", port))],
        vec![remember()],
        send(),
    ];
    rules.map(Rule::from).into()
}

/// The endpoints of a pool by their tickets.
fn endpoints(
    port: &PortPlan,
    scope: Scope,
    pool: &[SocketAddr],
    tickets: &BTreeMap<SocketAddr, u32>,
    context: &Context,
) -> Piece {
    let decl = SetDecl {
        key: [Field::Class].into(),
        data: Some(DataType::Fields(
            [address_field(context.family), Field::Port].into(),
        )),
        ..SetDecl::new(endpoints_name(port, scope))
    };
    let elements = pool.iter().filter_map(|endpoint| {
        let key = Key::of(&tickets.get(endpoint)?.to_ne_bytes());
        let ip = Octets::of(endpoint.ip());
        let data = Data::concat(&[ip.as_slice(), &endpoint.port().to_be_bytes()]);
        Some(Element::new(key, Value::Data(data)))
    });
    Piece::Set(decl.name.clone(), set(decl, elements))
}

/// A number for each endpoint, the same as long as it lives. Two that would have the same get neighbouring ones; one of
/// them may then move when the other goes, and some clients with it. The number stays in the priority of a connection's
/// first packet, so its last four bits, by which queues are chosen, are those of a packet without a priority.
fn tickets(port: &PortPlan) -> BTreeMap<SocketAddr, u32> {
    const NUMBERS: u32 = 1 << 24;
    let mut taken = BTreeSet::new();
    let ticket = |endpoint: SocketAddr| {
        let hash = hash(endpoint);
        let number = (0..NUMBERS)
            .map(|step| hash.wrapping_add(step) % NUMBERS)
            .find(|number| taken.insert(*number))?;
        Some((endpoint, 0x4000_0000 | number << 4))
    };
    let reachable = port.reachable().map(|endpoint| endpoint.address());
    reachable.filter_map(ticket).collect()
}

/// FNV-1a.
fn hash(endpoint: SocketAddr) -> u32 {
    let ip = Octets::of(endpoint.ip());
    let port = endpoint.port().to_be_bytes();
    let bytes = ip.as_slice().iter().chain(&port);
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    });
    hash ^ hash >> 24
}
