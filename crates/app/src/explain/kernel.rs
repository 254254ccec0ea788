//! The kernel's part: whether it holds the rules, would forward, has a way to each endpoint, and remembers flows that are
//! in the way. Reads only.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferry_backends::{Inspection, Presence};
use ferry_host::conntrack::{Conntrack, Filter};
use ferry_host::route::{Link, Neighbour, Route};
use ferry_host::sysctl::Sysctls;
use ferry_model::{Action, Client, Explanation, FrontendKind, Place, PortName, Protocol};

use super::report::{
    CheckReport, CheckState, FindingReport, FindingWeight, KernelReport, SettingReport, WayReport,
};
use crate::modes::{self, Mode};

/// Endpoints whose way is looked at; more would say no more.
const WAYS: usize = 64;
/// Stale flows that are named.
const NAMED_FLOWS: usize = 8;

/// What a backend read back for a service port, or why it could not.
pub(crate) type Inspected = Vec<(PortName, Result<Inspection, String>)>;

/// The interface by which this node reaches an address, and so by which its packets come in.
pub(crate) fn interface_to(address: IpAddr) -> Option<Arc<str>> {
    let mut route = Route::open().ok()?;
    let way = route.way(address).ok()?.ok()?;
    let links = route.links().ok()?;
    let link = links.into_iter().find(|link| link.index == way.interface)?;
    Some(link.name.into())
}

/// Looks at everything that the places depend on.
pub(crate) fn look(
    explanation: &Explanation,
    mode: Mode,
    inspected: Inspected,
) -> (KernelReport, Vec<FindingReport>) {
    let mut look = Look {
        mode,
        sysctls: Sysctls::default(),
        links: Vec::new(),
        report: KernelReport::default(),
        findings: Vec::new(),
    };
    look.rules(inspected);
    let carried = |place: &&Place| matches!(place.action, Action::Forward { .. });
    let places: Vec<&Place> = explanation.places.iter().filter(carried).collect();
    look.settings(&places);
    look.ways(&places);
    if mode.conntrack != modes::Conntrack::Untouched {
        look.flows(&places);
    }
    (look.report, look.findings)
}

struct Look {
    mode: Mode,
    sysctls: Sysctls,
    links: Vec<Link>,
    report: KernelReport,
    findings: Vec<FindingReport>,
}

impl Look {
    fn blocks(&mut self, cause: &str, says: String, remedy: impl Into<String>) {
        let finding = FindingReport::new(cause, FindingWeight::Blocks, says, remedy);
        self.findings.push(finding);
    }

    fn unread(&mut self, error: &dyn std::fmt::Display) {
        self.findings.push(FindingReport::new(
            "kernel-unread",
            FindingWeight::Doubt,
            format!("the kernel could not be asked: {error}"),
            "look what the error says; the plan's part of this answer holds all the same",
        ));
    }

    fn rules(&mut self, inspected: Inspected) {
        for (port, found) in inspected {
            let inspection = match found {
                Ok(inspection) => inspection,
                Err(error) => {
                    self.unread(&error);
                    continue;
                }
            };
            let total = inspection.checks.len();
            let wrong: Vec<_> = inspection
                .checks
                .iter()
                .filter(|check| check.presence != Presence::Present)
                .collect();
            if let Some(first) = wrong.first() {
                let how = match first.presence {
                    Presence::Different => "has another content",
                    Presence::Present | Presence::Missing => "is missing",
                };
                let says = format!(
                    "somebody removed or changed rules: {} of the {total} things that {port} needs in the kernel are \
                     not as they should be; first: {} {how}",
                    wrong.len(),
                    first.what
                );
                self.blocks(
                    "rules-missing",
                    says,
                    "the proxy puts them back by itself within its sync period; `ferry status` names the last repair \
                     and who caused it, so that this program can be stopped",
                );
            }
            self.report.limits.extend(inspection.limits);
            let service = port.to_string();
            let checks = inspection.checks.into_iter().map(|check| CheckReport {
                service: service.clone(),
                what: check.what,
                state: match check.presence {
                    Presence::Present => CheckState::Present,
                    Presence::Missing => CheckState::Missing,
                    Presence::Different => CheckState::Different,
                },
                packets: check.packets,
            });
            self.report.checks.extend(checks);
        }
    }

    fn setting(&mut self, name: &str) -> Option<i64> {
        let shown = name.replace('/', ".");
        let known = self.report.settings.iter().find(|one| one.name == shown);
        if let Some(known) = known {
            return known.value;
        }
        let value = self.sysctls.get(name).ok();
        self.report.settings.push(SettingReport { name: shown, value });
        value
    }

    fn settings(&mut self, places: &[&Place]) {
        for place in places {
            let v4 = place.address.is_ipv4();
            let forwarding = if v4 {
                "net/ipv4/ip_forward"
            } else {
                "net/ipv6/conf/all/forwarding"
            };
            let forwards = self.setting(forwarding);
            if forwards == Some(0) && place.client != Client::Node && !self.mode.relays {
                let name = forwarding.replace('/', ".");
                self.blocks(
                    "forwarding-off",
                    format!(
                        "{name} is 0: the kernel forwards nothing, so packets for {} die on this node",
                        place.port
                    ),
                    format!("sysctl -w {name}=1, and find out what set it to 0"),
                );
            }
            if v4 {
                self.setting("net/ipv4/conf/all/rp_filter");
            }
            if place.kind == FrontendKind::LocalhostNodePort
                && v4
                && !self.mode.relays
                && self.setting("net/ipv4/conf/all/route_localnet") == Some(0)
            {
                self.blocks(
                    "route-localnet-off",
                    format!(
                        "net.ipv4.conf.all.route_localnet is 0: the node port of {} is not answered on loopback",
                        place.port
                    ),
                    "sysctl -w net.ipv4.conf.all.route_localnet=1, or ask at the node's own address",
                );
            }
        }
    }

    fn ways(&mut self, places: &[&Place]) {
        let mut route = match Route::open() {
            Ok(route) => route,
            Err(error) => return self.unread(&error),
        };
        match route.links() {
            Ok(links) => self.links = links,
            Err(error) => return self.unread(&error),
        }
        let mut seen: BTreeMap<SocketAddr, bool> = BTreeMap::new();
        for place in places {
            let used = place.endpoints.iter().filter(|one| one.fate.is_used());
            let used: Vec<SocketAddr> = used.map(|one| one.address).collect();
            for endpoint in used.iter().take(WAYS) {
                if seen.contains_key(endpoint) {
                    continue;
                }
                match self.way(&mut route, *endpoint) {
                    Ok(good) => seen.insert(*endpoint, good),
                    Err(error) => return self.unread(&error),
                };
            }
            self.judge_ways(place, &used, &seen);
            self.bridged(place, &mut route);
        }
    }

    /// Whether packets for an endpoint would leave, and to somebody who answers.
    fn way(&mut self, route: &mut Route, endpoint: SocketAddr) -> Result<bool, ferry_host::route::Error> {
        let mut report = WayReport {
            endpoint,
            interface: None,
            gateway: None,
            neighbour: "unknown".into(),
            error: None,
        };
        let mut good = true;
        match route.way(endpoint.ip())? {
            Ok(way) => {
                let link = self.links.iter().find(|link| link.index == way.interface);
                report.interface = link.map(|link| link.name.clone());
                report.gateway = way.gateway;
                report.neighbour = if way.local {
                    "local".into()
                } else {
                    let next = way.gateway.unwrap_or(endpoint.ip());
                    let neighbour = route.neighbour(way.interface, next)?;
                    good = neighbour != Neighbour::Failed;
                    match neighbour {
                        Neighbour::Unknown => "unknown",
                        Neighbour::Resolved => "resolved",
                        Neighbour::Asked => "asked",
                        Neighbour::Failed => "failed",
                    }
                    .into()
                };
                let down = link.filter(|link| !link.up);
                if let Some(link) = down {
                    report.error = Some(format!("{} is down", link.name));
                    good = false;
                }
            }
            Err(error) => {
                report.error = Some(error.to_string());
                good = false;
            }
        }
        self.report.ways.push(report);
        Ok(good)
    }

    fn judge_ways(&mut self, place: &Place, used: &[SocketAddr], seen: &BTreeMap<SocketAddr, bool>) {
        let bad: Vec<SocketAddr> = used
            .iter()
            .copied()
            .filter(|one| seen.get(one) == Some(&false))
            .collect();
        let Some(first) = bad.first() else { return };
        let way = self.report.ways.iter().find(|way| way.endpoint == *first);
        let count = format!("{} of {} endpoint(s) of {}", bad.len(), used.len(), place.port);
        match way.and_then(|way| way.error.clone()) {
            Some(error) => self.blocks(
                "endpoint-not-routed",
                format!("this node has no way to {count}; first: {} ({error})", first.ip()),
                format!(
                    "look at `ip route get {}`: the network plugin of this node sets such routes, or the pod is gone",
                    first.ip()
                ),
            ),
            None => self.blocks(
                "neighbour-silent",
                format!("nobody answers for {count} on the link; first: {}", first.ip()),
                format!(
                    "look at `ip neighbour show {}` and whether the pod or its node is still there",
                    first.ip()
                ),
            ),
        }
    }

    /// A pod that meets another one on the same bridge gets the answer past the translation, unless bridged packets go
    /// through netfilter too.
    fn bridged(&mut self, place: &Place, route: &mut Route) {
        let (
            Some(source),
            Action::Forward {
                masquerade: false, ..
            },
        ) = (place.source, place.action)
        else {
            return;
        };
        let Ok(Ok(way)) = route.way(source) else { return };
        let link = self.links.iter().find(|link| link.index == way.interface);
        let Some(bridge) = link.filter(|link| link.kind.as_deref() == Some("bridge")) else {
            return;
        };
        let name = bridge.name.clone();
        let beside = place.endpoints.iter().filter(|one| one.fate.is_used());
        let beside = beside.filter(|one| one.address.ip() != source).find(|one| {
            let ways = &self.report.ways;
            let way = ways.iter().find(|way| way.endpoint == one.address);
            way.is_some_and(|way| way.interface.as_deref() == Some(&*name) && way.gateway.is_none())
        });
        let Some(endpoint) = beside.map(|one| one.address) else {
            return;
        };
        let setting = if place.address.is_ipv4() {
            "net/bridge/bridge-nf-call-iptables"
        } else {
            "net/bridge/bridge-nf-call-ip6tables"
        };
        if self.setting(setting) != Some(1) {
            let shown = setting.replace('/', ".");
            self.blocks(
                "bridge-nf-call-off",
                format!(
                    "{source} and {endpoint} are on the same bridge {name} and {shown} is not 1: the endpoint's answer \
                     goes past the translation back"
                ),
                format!("modprobe br_netfilter and sysctl -w {shown}=1"),
            );
        }
    }

    fn flows(&mut self, places: &[&Place]) {
        let mut conntrack = match Conntrack::open() {
            Ok(conntrack) => conntrack,
            Err(error) => return self.unread(&error),
        };
        for place in places {
            let at = SocketAddr::new(place.address, place.key.port());
            let filter = Filter::to(place.port.protocol.number(), at);
            let (mut stale, mut count) = (Vec::new(), 0u64);
            let swept = conntrack.sweep(&filter, |flow| {
                let of_asker = place.source.is_none_or(|source| flow.client.ip() == source);
                let known = |one: &ferry_model::EndpointFate| one.address == flow.responder;
                if of_asker {
                    count += 1;
                    // Only a datagram meets the flow of an earlier one; a new connection has a flow of its own.
                    if place.port.protocol == Protocol::Udp && !place.endpoints.iter().any(known) {
                        stale.push(format!("{} -> {at}, answered by {}", flow.client, flow.responder));
                    }
                }
                false
            });
            if let Err(error) = swept {
                return self.unread(&error);
            }
            self.report.flows += count;
            if let Some(first) = stale.first() {
                let says = format!(
                    "{} tracked flow(s) to {at} lead to something that is no endpoint of {}; first: {first}",
                    stale.len(),
                    place.port
                );
                let remedy = format!(
                    "conntrack -D -p {} --orig-dst {} --orig-port-dst {}",
                    place.port.protocol,
                    at.ip(),
                    at.port()
                );
                self.blocks("stale-conntrack", says, remedy);
            }
            stale.truncate(NAMED_FLOWS);
            self.report.stale_flows.extend(stale);
        }
    }
}
