//! Plan into doors: pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ferry_model::{
    Detector, Family, NodeFamily, NodePlan, NodePorts, PortPlan, Protocol, Scope, ServicePlan, TrafficPolicy,
    Verdict,
};
use ipnet::IpNet;

use super::ruleset::{DoorRule, Frontend, Ingress, Place, PortRule, Way};
use crate::relay::{Access, Home, Pools, PortOptions};

/// Who counts as a client of this node, for every service of a family.
pub(super) fn home(node: &NodeFamily) -> Arc<Home> {
    let pods = match &node.detector {
        Detector::Cidr(cidr) => Some(*cidr),
        // A socket does not know the interface that a client came in by.
        Detector::None | Detector::Bridge(_) | Detector::InterfacePrefix(_) => None,
    };
    Arc::new(Home {
        node: node.addresses.iter().copied().collect(),
        pods,
    })
}

/// The wildcard address of a family.
pub(super) fn any(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// What a service needs in a family. SCTP has no sockets that could be relayed here.
pub(super) fn render(
    service: &ServicePlan,
    node: &NodePlan,
    family: Family,
    home: &Arc<Home>,
    ingress: Ingress,
) -> Vec<PortRule> {
    let relayed = service
        .ports(family)
        .filter(|port| port.protocol() != Protocol::Sctp);
    relayed
        .map(|port| {
            let options = PortOptions {
                proxy_protocol: service.options.proxy_protocol && port.protocol() == Protocol::Tcp,
                drain: service.options.drain,
            };
            let mut rule = PortRule {
                pools: pools(port),
                affinity: port.affinity,
                options,
                ..PortRule::empty(port.name.clone())
            };
            Doors {
                port,
                node,
                home,
                ingress,
                rule: &mut rule,
            }
            .all();
            rule
        })
        .collect()
}

fn pools(port: &PortPlan) -> Pools {
    let addresses = |scope| port.pool(scope).map(|endpoint| endpoint.address()).collect();
    let known = match port.protocol() {
        // Established connections end by themselves, however unready their endpoint.
        Protocol::Tcp | Protocol::Sctp => port.endpoints.iter().map(|endpoint| endpoint.address()).collect(),
        // A flow of datagrams has no end: it moves on when its endpoint can no longer serve.
        Protocol::Udp => port.serving().map(|endpoint| endpoint.address()).collect(),
    };
    Pools {
        cluster: addresses(Scope::Cluster),
        local: addresses(Scope::Local),
        known,
    }
}

struct Doors<'a> {
    port: &'a PortPlan,
    node: &'a NodePlan,
    home: &'a Arc<Home>,
    ingress: Ingress,
    rule: &'a mut PortRule,
}

impl Doors<'_> {
    fn all(mut self) {
        let port = self.port;
        let internal = Access::open(port.internal);
        self.add(
            Way::Internal,
            Frontend::ClusterIp(port.cluster_ip, port.port),
            &internal,
        );
        let external = self.external();
        for ip in &port.external_ips {
            self.add(Way::External, Frontend::ExternalIp(*ip, port.port), &external);
        }
        let restricted = self.restricted(&external);
        let way = if restricted == external {
            Way::External
        } else {
            Way::Restricted
        };
        for ip in &port.load_balancer_ips {
            self.add(way, Frontend::LoadBalancerIp(*ip, port.port), &restricted);
        }
        if let Some(number) = port.node_port {
            self.node_port(number, &external);
        }
    }

    fn external(&self) -> Access {
        let port = self.port;
        let short_circuits = port.external.policy == TrafficPolicy::Local
            && self.node.policy.short_circuit
            && port.external.verdict != Verdict::Reject;
        let at_home = short_circuits.then(|| (self.home.clone(), Verdict::Forward(Scope::Cluster)));
        Access {
            verdict: port.external.verdict,
            at_home,
            sources: Vec::new(),
        }
    }

    fn restricted(&self, external: &Access) -> Access {
        let port = self.port;
        let mut access = external.clone();
        if port.has_endpoints || self.node.policy.source_ranges_first {
            access.sources.clone_from(&port.source_ranges);
            if port.node_in_source_ranges && !access.sources.is_empty() {
                access
                    .sources
                    .extend(port.load_balancer_ips.iter().copied().map(IpNet::from));
            }
        }
        access
    }

    fn add(&mut self, way: Way, frontend: Frontend, access: &Access) {
        let (Frontend::ClusterIp(ip, number)
        | Frontend::ExternalIp(ip, number)
        | Frontend::LoadBalancerIp(ip, number)) = frontend
        else {
            return;
        };
        let at = SocketAddr::new(ip, number);
        match self.ingress {
            Ingress::Loopback => {
                self.rule.addresses.insert(ip);
                self.door(Place::At(at), frontend, access);
            }
            Ingress::Mapped => self.door(Place::Proxy(way), frontend, access),
            Ingress::Portals => {
                if self.node.family(self.port.family).addresses.contains(&ip) {
                    self.rule.claims.insert(at);
                }
                self.door(Place::Proxy(way), frontend, access);
            }
        }
    }

    /// With rules, node ports lead to the proxy port and are only held; else they are listened on.
    fn node_port(&mut self, number: u16, access: &Access) {
        let frontend = Frontend::NodePort(number);
        let everywhere = SocketAddr::new(any(self.port.family), number);
        if self.ingress == Ingress::Portals {
            self.rule.claims.insert(everywhere);
            return self.door(Place::Proxy(Way::External), frontend, access);
        }
        match &self.node.family(self.port.family).node_ports {
            NodePorts::All => self.door(Place::At(everywhere), frontend, access),
            NodePorts::Only(addresses) => {
                for ip in addresses {
                    self.door(Place::At(SocketAddr::new(*ip, number)), frontend, access);
                }
            }
        }
    }

    fn door(&mut self, place: Place, frontend: Frontend, access: &Access) {
        let new = || DoorRule {
            access: access.clone(),
            leads: Default::default(),
        };
        self.rule
            .doors
            .entry(place)
            .or_insert_with(new)
            .leads
            .insert(frontend);
    }
}
