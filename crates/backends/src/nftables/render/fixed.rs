//! The part of the table that no service owns: hooks, checks, and the sets that services fill.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_host::nftables::{
    BaseChain, ChainKind, DataType, Element, Family, Field, Hook, Key, SetDecl, Value, Verdict,
};
use ferry_model::{Action, Detector, Masqueraded, NodePorts, Protocol};
use ipnet::IpNet;

use super::shared::{By, Door};
use super::{Context, FixedSet, Octets, set, text};
use crate::Likeness;
use crate::nftables::names;
use crate::nftables::ruleset::{Chain, Load, Name, Ports, Rule, Ruleset, Set, Side, Statement, after};

/// The key of the maps of frontends.
pub(super) const FRONTEND: [Load; 3] = [Load::Destination, Load::Protocol, Load::Port];
/// The key of the maps of node ports.
pub(super) const NODE_PORT: [Load; 2] = [Load::Protocol, Load::Port];

pub(in super::super) fn render(context: &Context) -> Ruleset {
    Ruleset {
        family: context.family,
        table: names::TABLE,
        comment: names::TABLE_COMMENT,
        sets: FixedSet::ALL
            .into_iter()
            .map(|fixed| (fixed.name().into(), fixed_set(fixed, context)))
            .collect(),
        chains: chains(context),
    }
}

pub(super) fn address_field(family: Family) -> Field {
    match family {
        Family::Ip => Field::Ipv4,
        Family::Ip6 => Field::Ipv6,
    }
}

fn fixed_set(fixed: FixedSet, context: &Context) -> Set {
    let address = address_field(context.family);
    let (proto, port, number) = (Field::Proto, Field::Port, Field::Number);
    let verdict = || Some(DataType::Verdict);
    let endpoint = || Some(DataType::Fields([address, port].into()));
    let class = || Some(DataType::Fields([Field::Class].into()));
    let (key, data, comment): (&[Field], Option<DataType>, &str) = match fixed {
        FixedSet::ClusterIps => (&[address], None, "Active ClusterIPs"),
        FixedSet::NodePortIps => (&[address], None, "IPs that accept NodePort traffic"),
        FixedSet::Hairpin => (
            &[address, address, proto, port],
            None,
            "service hairpin connections",
        ),
        FixedSet::ServiceIps => (
            &[address, proto, port],
            verdict(),
            "ClusterIP, ExternalIP and LoadBalancer IP traffic",
        ),
        FixedSet::ServiceNodePorts => (&[proto, port], verdict(), "NodePort traffic"),
        FixedSet::Frontends => (
            &[address, proto, port],
            class(),
            "how each ClusterIP, ExternalIP and LoadBalancer IP is balanced",
        ),
        FixedSet::NodePorts => (&[proto, port], class(), "how each NodePort is balanced"),
        FixedSet::ShortCircuits => (
            &[address, proto, port],
            class(),
            "how each is balanced for pods and the node, past a Local policy",
        ),
        FixedSet::NodePortShortCircuits => (
            &[proto, port],
            class(),
            "how each is balanced for pods and the node, past a Local policy",
        ),
        FixedSet::Balancers => (&[Field::Class], verdict(), "ways to balance, by kind and size"),
        FixedSet::NodePortBalancers => (
            &[Field::Class],
            verdict(),
            "ways to balance a NodePort, by kind and size",
        ),
        FixedSet::ShortCircuitBalancers | FixedSet::NodePortShortCircuitBalancers => (
            &[Field::Class],
            verdict(),
            "ways to balance for pods and the node, by size",
        ),
        FixedSet::NoEndpointServices => (
            &[address, proto, port],
            verdict(),
            "vmap to drop or reject packets to services with no endpoints",
        ),
        FixedSet::NoEndpointNodePorts => (
            &[proto, port],
            verdict(),
            "vmap to drop or reject packets to service nodeports with no endpoints",
        ),
        FixedSet::FirewallIps => (
            &[address, proto, port],
            verdict(),
            "destinations that are subject to LoadBalancerSourceRanges",
        ),
        FixedSet::ServiceCidrs => (&[address], None, "networks of ClusterIPs"),
        FixedSet::Protocols => (&[proto], None, "protocols that services can have"),
        FixedSet::Endpoints => (
            &[address, proto, port, number],
            endpoint(),
            "endpoints by frontend and slot",
        ),
        FixedSet::NodePortEndpoints => (
            &[proto, port, number],
            endpoint(),
            "endpoints by NodePort and slot",
        ),
    };
    let declaration = SetDecl {
        key: key.into(),
        data,
        comment: text(comment),
        interval: fixed == FixedSet::ServiceCidrs,
        counter: context.counters && fixed.counts_traffic(),
        ..SetDecl::new(fixed.name())
    };
    set(declaration, own_elements(fixed, context))
}

/// What is in a set whatever the services are.
fn own_elements(fixed: FixedSet, context: &Context) -> Vec<Element> {
    let member = |octets: &[u8]| Element::new(Key::of(octets), Value::None);
    match fixed {
        FixedSet::NodePortIps => node_port_addresses(context)
            .map(|ip| member(Octets::of(ip).as_slice()))
            .collect(),
        FixedSet::ServiceCidrs => intervals(&context.node.service_cidrs),
        FixedSet::Protocols => [Protocol::Tcp, Protocol::Udp, Protocol::Sctp]
            .map(|protocol| member(&[protocol.number()]))
            .into(),
        _ => Vec::new(),
    }
}

fn node_port_addresses(context: &Context) -> impl Iterator<Item = IpAddr> {
    let addresses: &[IpAddr] = match &context.node.node_ports {
        NodePorts::All => &[],
        NodePorts::Only(addresses) => addresses,
    };
    let loopback = answers_on_loopback(context);
    addresses
        .iter()
        .copied()
        .filter(move |address| loopback || !address.is_loopback())
}

/// Networks as the elements of an interval set: overlapping and adjoining ones become one range.
pub(super) fn intervals(networks: &[IpNet]) -> Vec<Element> {
    let mut wanted: Vec<(IpAddr, Option<IpAddr>)> =
        networks.iter().map(|net| (net.network(), after(net))).collect();
    wanted.sort();
    let mut ranges: Vec<(IpAddr, Option<IpAddr>)> = Vec::new();
    for (start, end) in wanted {
        match ranges.last_mut() {
            Some((_, last)) if last.is_none_or(|last| start <= last) => {
                let further = last.zip(end).map(|(last, end)| last.max(end));
                *last = further;
            }
            _ => ranges.push((start, end)),
        }
    }
    let bound = |address: IpAddr, interval_end: bool| Element {
        interval_end,
        ..Element::new(Key::of(Octets::of(address).as_slice()), Value::None)
    };
    let both = |(start, end): (IpAddr, Option<IpAddr>)| {
        std::iter::once(bound(start, false)).chain(end.map(|end| bound(end, true)))
    };
    ranges.into_iter().flat_map(both).collect()
}

fn chains(context: &Context) -> BTreeMap<Name, Chain> {
    let base = |kind, hook, priority| Some(BaseChain { kind, hook, priority });
    let (filter, nat) = (ChainKind::Filter, ChainKind::Nat);
    let check = |chain: &str| Rule::from(vec![Statement::New, Statement::jump(chain)]);
    let jump = |chain: &str| Rule::from(vec![Statement::jump(chain)]);
    let chain = |base: Option<BaseChain>, rules: Vec<Rule>| Chain {
        base,
        comment: None,
        rules,
    };
    let mut prerouting = vec![check(names::FIREWALL_CHECK)];
    prerouting.splice(0..0, loopback_guard(context));
    let own = (context.likeness == Likeness::Outcomes).then(|| (names::MASQUERADE, masquerade()));
    [
        (
            names::FILTER_PREROUTING,
            chain(base(filter, Hook::Prerouting, -110), prerouting),
        ),
        (
            names::FILTER_OUTPUT_PRE_DNAT,
            chain(
                base(filter, Hook::Output, -110),
                vec![check(names::FIREWALL_CHECK)],
            ),
        ),
        (
            names::FILTER_INPUT,
            chain(
                base(filter, Hook::Input, 0),
                vec![check(names::NODE_PORT_CHECK), check(names::SERVICE_CHECK)],
            ),
        ),
        (
            names::FILTER_FORWARD,
            chain(
                base(filter, Hook::Forward, 0),
                vec![check(names::SERVICE_CHECK), check(names::CLUSTER_IPS_CHECK)],
            ),
        ),
        (
            names::FILTER_OUTPUT,
            chain(
                base(filter, Hook::Output, 0),
                vec![check(names::SERVICE_CHECK), check(names::CLUSTER_IPS_CHECK)],
            ),
        ),
        (
            names::NAT_PREROUTING,
            chain(base(nat, Hook::Prerouting, -100), vec![jump(names::SERVICES)]),
        ),
        (
            names::NAT_OUTPUT,
            chain(base(nat, Hook::Output, -100), vec![jump(names::SERVICES)]),
        ),
        (
            names::NAT_POSTROUTING,
            chain(base(nat, Hook::Postrouting, 100), vec![jump(names::MASQUERADING)]),
        ),
        (
            names::FIREWALL_CHECK,
            chain(
                None,
                vec![vec![Statement::verdict_of(&FRONTEND, names::FIREWALL_IPS)].into()],
            ),
        ),
        (
            names::SERVICE_CHECK,
            chain(
                None,
                vec![vec![Statement::verdict_of(&FRONTEND, names::NO_ENDPOINT_SERVICES)].into()],
            ),
        ),
        (
            names::NODE_PORT_CHECK,
            chain(None, vec![node_port_check(context)]),
        ),
        (names::CLUSTER_IPS_CHECK, chain(None, cluster_ips_check(context))),
        (names::SERVICES, chain(None, services(context))),
        (names::MASQUERADING, chain(None, masquerading(context))),
        (
            names::REJECT,
            Chain {
                base: None,
                comment: Some("helper for @no-endpoint-services / @no-endpoint-nodeports"),
                rules: reject(context),
            },
        ),
    ]
    .into_iter()
    .chain(own)
    .chain(doors().map(|(name, rule)| (name, chain(None, vec![rule]))))
    .map(|(name, chain)| (name.into(), chain))
    .collect()
}

/// The chains that lead to the way to balance that was found.
fn doors() -> impl Iterator<Item = (&'static str, Rule)> {
    [By::Address, By::NodePort]
        .into_iter()
        .flat_map(|by| [Door::Front, Door::ShortCircuit].map(|door| (by.chain(door), by.dispatch(door))))
}

/// Where node ports answer on 127.0.0.1, the kernel has been told to route that network, so what comes in from
/// elsewhere for it must be stopped. IPv6 needs no such telling, and the kernel stops ::1 from outside itself.
fn loopback_guard(context: &Context) -> Option<Rule> {
    let guarded = answers_on_loopback(context);
    let loopback = Statement::Within {
        side: Side::Destination,
        net: loopback(context.family),
        not: false,
    };
    let elsewhere = Statement::Interface {
        name: "lo".into(),
        prefix: false,
        not: true,
    };
    let drop = Statement::Verdict(Verdict::Drop);
    guarded.then(|| {
        Rule::commented(
            vec![elsewhere, loopback, drop],
            "nobody else reaches loopback addresses",
        )
    })
}

/// Whether rules translate connections to loopback addresses. For `::1` they cannot: see [`crate::nftables`]'s relays.
fn answers_on_loopback(context: &Context) -> bool {
    context.family == Family::Ip && context.node.localhost_node_ports
}

fn loopback(family: Family) -> IpNet {
    match family {
        Family::Ip => IpNet::V4(ipnet::Ipv4Net::new_assert(
            std::net::Ipv4Addr::new(127, 0, 0, 0),
            8,
        )),
        Family::Ip6 => IpNet::from(IpAddr::from(std::net::Ipv6Addr::LOCALHOST)),
    }
}

/// The match for addresses that answer node ports. Where all do, whether one is local is for the route tables to say,
/// which only the rules before routing ask.
fn node_port_address(context: &Context, ask_routes: bool) -> Vec<Statement> {
    match &context.node.node_ports {
        NodePorts::Only(_) => vec![Statement::in_set(&[Load::Destination], names::NODE_PORT_IPS)],
        NodePorts::All => {
            let local = ask_routes.then_some(Statement::HostsOwn(Side::Destination));
            let outside = Statement::Within {
                side: Side::Destination,
                net: loopback(context.family),
                not: true,
            };
            let outside = (!answers_on_loopback(context)).then_some(outside);
            local.into_iter().chain(outside).collect()
        }
    }
}

fn node_port_check(context: &Context) -> Rule {
    let mut statements = node_port_address(context, false);
    statements.push(Statement::verdict_of(&NODE_PORT, names::NO_ENDPOINT_NODE_PORTS));
    statements.into()
}

/// TCP is refused by a reset. An ICMP error comes back, on the node and over a veth, while the caller still holds its
/// socket, so the kernel drops it, and a connect() that waits is refused a second later: by the error for the next SYN.
fn reject(context: &Context) -> Vec<Rule> {
    let reset = (context.likeness == Likeness::Outcomes).then(|| vec![Statement::ResetTcp].into());
    reset
        .into_iter()
        .chain([vec![Statement::Reject].into()])
        .collect()
}

fn rejection(context: &Context) -> Statement {
    match context.likeness {
        Likeness::Outcomes => Statement::goto(names::REJECT),
        Likeness::Rules => Statement::Reject,
    }
}

fn cluster_ips_check(context: &Context) -> Vec<Rule> {
    let refusal = |action: Action| match action {
        Action::Reject => Some(rejection(context)),
        Action::Drop => Some(Statement::Verdict(Verdict::Drop)),
        Action::Forward { .. } | Action::NotOurs => None,
    };
    let rule = |set: &str, action, comment| {
        let destination = Statement::in_set(&[Load::Destination], set);
        refusal(action).map(|refusal| Rule::commented(vec![destination, refusal], comment))
    };
    let unknown = rule(
        names::CLUSTER_IPS,
        context.unknown_ports,
        "Reject traffic to invalid ports of ClusterIPs",
    );
    let unallocated = rule(
        names::SERVICE_CIDRS,
        context.unallocated,
        "Drop traffic to unallocated ClusterIPs",
    );
    unknown.into_iter().chain(unallocated).collect()
}

fn services(context: &Context) -> Vec<Rule> {
    let mut rules = Vec::new();
    let cluster_ip = Statement::in_set(&[Load::Destination], names::CLUSTER_IPS);
    let mark = Statement::SetMark(context.mark);
    let masqueraded = match context.node.masqueraded {
        Masqueraded::Nobody => None,
        Masqueraded::Everybody => Some((vec![cluster_ip, mark], "masquerade all clusterIP traffic")),
        Masqueraded::NotPods => by_pod(context, true).map(|foreign| {
            let statements = vec![cluster_ip, foreign, mark];
            (statements, "masquerade clusterIP traffic from outside cluster")
        }),
        Masqueraded::Node => {
            let own = Statement::HostsOwn(Side::Source);
            Some((vec![cluster_ip, own, mark], "masquerade local clusterIP traffic"))
        }
    };
    rules.extend(masqueraded.map(|(statements, comment)| Rule::commented(statements, comment)));
    rules.push(By::Address.balance(Door::Front).into());
    let mut node_port = node_port_address(context, true);
    node_port.extend(By::NodePort.balance(Door::Front));
    rules.push(node_port.into());
    rules
}

/// The match for traffic of local pods, where there is a way to tell.
pub(super) fn from_pod(context: &Context) -> Option<Statement> {
    by_pod(context, false)
}

fn by_pod(context: &Context, not: bool) -> Option<Statement> {
    let interface = |name: &Arc<str>, prefix| Statement::Interface {
        name: name.clone(),
        prefix,
        not,
    };
    match &context.node.detector {
        Detector::None => None,
        Detector::Cidr(net) => Some(Statement::Within {
            side: Side::Source,
            net: *net,
            not,
        }),
        Detector::Bridge(name) => Some(interface(name, false)),
        Detector::InterfacePrefix(name) => Some(interface(name, true)),
    }
}

fn masquerading(context: &Context) -> Vec<Rule> {
    let mark = context.mark;
    let hairpin = [Load::Source, Load::Destination, Load::Protocol, Load::Port];
    let masquerade = match context.likeness {
        Likeness::Outcomes => Statement::goto(names::MASQUERADE),
        Likeness::Rules => Statement::Masquerade(Ports::Random),
    };
    vec![
        vec![
            Statement::HasMark(mark),
            Statement::FlipMark(mark),
            masquerade.clone(),
        ]
        .into(),
        vec![
            Statement::Translated,
            Statement::in_set(&hairpin, names::HAIRPIN),
            masquerade,
        ]
        .into(),
    ]
}

/// TCP keeps its port where that is free. A random one is, sooner or later, one that the endpoint remembers of another
/// connection (TIME_WAIT): it then drops every second SYN, whose timestamp looks old to it, and the client waits a second.
fn masquerade() -> Chain {
    let tcp = vec![
        Statement::Protocol(Protocol::Tcp),
        Statement::Masquerade(Ports::Kept),
    ];
    Chain {
        base: None,
        comment: Some("helper for masquerading"),
        rules: vec![tcp.into(), vec![Statement::Masquerade(Ports::Random)].into()],
    }
}
