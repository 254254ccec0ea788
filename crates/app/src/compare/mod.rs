//! Which services would behave differently, packet class by packet class: the kind of client times the frontend.
//!
//! Two [`PlanReport`]s go in, so that the other side may be another mode, another configuration or another program, and
//! a report comes out that says each difference once, with the services that it is true of. Pure.

mod report;

pub use report::{ClassDifference, CompareReport, NodeDifference, Side};

use std::collections::{BTreeMap, BTreeSet};

use crate::status::{DecisionReport, EndpointReport, NodeReport, PlanReport, PortReport};

/// Identifies a service port in a report.
type PortKey<'a> = (&'a str, &'a str, &'a str, &'a str);
/// What a class of packets meets, in words, by class.
type Classes = BTreeMap<(String, String), String>;

/// Compares what is with what would be.
pub fn compare(before: &PlanReport, after: &PlanReport, names: [String; 2]) -> CompareReport {
    let form = before.form.min(after.form).min(PlanReport::FORM);
    let (was, will) = (ports(before), ports(after));
    let keys: BTreeSet<&PortKey<'_>> = was.keys().chain(will.keys()).collect();
    let mut grouped: BTreeMap<(String, String, String, String), Vec<String>> = BTreeMap::new();
    let mut different = BTreeSet::new();
    for key in keys {
        let classes = |ports: &BTreeMap<PortKey<'_>, &PortReport>| {
            ports.get(key).map(|port| classes(port, form)).unwrap_or_default()
        };
        let (was, will) = (classes(&was), classes(&will));
        let all: BTreeSet<&(String, String)> = was.keys().chain(will.keys()).collect();
        for class in all {
            let absent = "not served".to_owned();
            let (before, after) = (
                was.get(class).unwrap_or(&absent),
                will.get(class).unwrap_or(&absent),
            );
            if before != after {
                different.insert(key.0);
                let group = (class.0.clone(), class.1.clone(), before.clone(), after.clone());
                grouped.entry(group).or_default().push(name(key));
            }
        }
    }
    let [before_name, after_name] = names;
    let side = |what: String, plan: &PlanReport| Side {
        what,
        mode: plan.mode.clone(),
        form: plan.form,
    };
    CompareReport {
        form,
        before: side(before_name, before),
        after: side(after_name, after),
        services: before.services.len().max(after.services.len()),
        different: different.len(),
        node: node(&before.node, &after.node, form),
        classes: grouped
            .into_iter()
            .map(|((client, frontend, before, after), services)| ClassDifference {
                client,
                frontend,
                before,
                after,
                services,
            })
            .collect(),
    }
}

fn ports(plan: &PlanReport) -> BTreeMap<PortKey<'_>, &PortReport> {
    let services = plan.services.iter();
    let ports = services.flat_map(|service| service.ports.iter().map(|port| (service.name.as_str(), port)));
    ports
        .map(|(service, port)| {
            let key = (
                service,
                port.port.as_str(),
                port.protocol.as_str(),
                port.family.as_str(),
            );
            (key, port)
        })
        .collect()
}

fn name((service, port, protocol, family): &PortKey<'_>) -> String {
    match *port {
        "" => format!("{service}/{protocol} {family}"),
        port => format!("{service}:{port}/{protocol} {family}"),
    }
}

/// What each kind of client meets at each frontend.
fn classes(port: &PortReport, form: u32) -> Classes {
    let mut classes = Classes::new();
    if form == 0 {
        let mut tell = |frontend: &str, what: &Option<String>| {
            if let Some(what) = what {
                classes.insert(("others".into(), frontend.into()), what.clone());
            }
        };
        tell("cluster IP", &port.internal);
        tell("from outside", &port.external);
        let used = endpoints(port, |endpoint| {
            endpoint.in_cluster_pool || endpoint.in_local_pool
        });
        classes.insert(("everybody".into(), "endpoints".into()), used);
        return with_common(classes, port);
    }
    // Several addresses of a kind that are treated alike are one class.
    for frontend in &port.frontends {
        let each = [
            ("pods", &frontend.pods),
            ("the node", &frontend.node),
            ("others", &frontend.others),
        ];
        for (client, decision) in each {
            let mut what = decided(decision, port);
            if !frontend.allowed.is_empty() {
                what.push_str(&format!("; only from {}", frontend.allowed.join(", ")));
            }
            let place = format!("{} {}", frontend.kind, frontend.at);
            classes.insert((client.into(), place), what);
        }
    }
    with_common(generalized(classes), port)
}

/// Names a frontend by its kind alone where all of its kind are treated alike: so do services that have one each.
fn generalized(classes: Classes) -> Classes {
    let kind_of = |place: &str| {
        let kinds = [
            "cluster IP",
            "load-balancer IP",
            "external IP",
            "node port on loopback",
            "node port",
        ];
        let kind = kinds.into_iter().find(|kind| place.starts_with(kind));
        kind.unwrap_or(place).to_owned()
    };
    let mut by_kind: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for ((client, place), what) in &classes {
        let kind = (client.clone(), kind_of(place));
        by_kind.entry(kind).or_default().insert(what.clone());
    }
    let mut general = Classes::new();
    for ((client, place), what) in classes {
        let kind = kind_of(&place);
        let alike = by_kind
            .get(&(client.clone(), kind.clone()))
            .is_some_and(|all| all.len() == 1);
        general.insert((client, if alike { kind } else { place }), what);
    }
    general
}

fn with_common(mut classes: Classes, port: &PortReport) -> Classes {
    if let Some(seconds) = port.affinity_seconds {
        let what = format!("a client keeps its endpoint for {seconds} s");
        classes.insert(("everybody".into(), "session affinity".into()), what);
    }
    classes
}

fn decided(decision: &DecisionReport, port: &PortReport) -> String {
    let Some(pool) = &decision.pool else {
        return decision.action.clone();
    };
    let of_pool = |endpoint: &EndpointReport| match pool.as_str() {
        "local" => endpoint.in_local_pool,
        _ => endpoint.in_cluster_pool,
    };
    let seen = if decision.masquerade {
        "the node's"
    } else {
        "the client's"
    };
    format!(
        "{} to {}, which see {seen} address",
        decision.action,
        endpoints(port, of_pool)
    )
}

/// A pool by its size, and by its members where they are few: two services with equal pools are one class.
fn endpoints(port: &PortReport, of: impl Fn(&EndpointReport) -> bool) -> String {
    let all = port.endpoints.iter().filter(|endpoint| of(endpoint));
    let all: Vec<&EndpointReport> = all.collect();
    let local = all.iter().filter(|endpoint| endpoint.local).count();
    let known = port.endpoints.len();
    match (all.len(), known) {
        (0, _) => "no endpoint".to_owned(),
        (used, known) if used == known => "all endpoints".to_owned(),
        (used, known) => {
            let members: Vec<&str> = all.iter().map(|endpoint| endpoint.address.as_str()).collect();
            match used {
                1..=4 => members.join(", "),
                _ if local == used => format!("the {used} endpoints on this node"),
                _ => format!("{used} of {known} endpoints, {local} of them on this node"),
            }
        }
    }
}

fn node(before: &NodeReport, after: &NodeReport, form: u32) -> Vec<NodeDifference> {
    let mut found = Vec::new();
    let mut tell = |what: String, before: &str, after: &str| {
        if before != after {
            found.push(NodeDifference {
                what,
                before: before.to_owned(),
                after: after.to_owned(),
            });
        }
    };
    tell("name of the node".into(), &before.name, &after.name);
    if form > 0 {
        tell(
            "a port of a cluster IP that no service has".into(),
            &before.unknown_ports,
            &after.unknown_ports,
        );
        tell(
            "an address of the service networks that no service has".into(),
            &before.unallocated,
            &after.unallocated,
        );
    }
    for (was, will) in before.families.iter().zip(&after.families) {
        let family = &was.family;
        tell(format!("{family}: local pods"), &was.local_pods, &will.local_pods);
        tell(
            format!("{family}: node ports are answered on"),
            &was.node_ports,
            &will.node_ports,
        );
        let address = |ip: &Option<String>| ip.clone().unwrap_or_else(|| "unknown".into());
        tell(
            format!("{family}: the node's address"),
            &address(&was.node_ip),
            &address(&will.node_ip),
        );
    }
    found
}
