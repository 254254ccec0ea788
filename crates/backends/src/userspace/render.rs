//! Plan into doors: pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ferry_model::{
    Detector, Family, Frontend, FrontendKind, NodeFamily, NodePlan, NodePorts, PortPlan, Protocol, Scope,
    ServicePlan,
};

use super::ruleset::{DoorRule, Ingress, Place, PortRule, Way};
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
            let mut doors = Doors {
                own: node.family(family),
                home,
                ingress,
                rule: &mut rule,
            };
            port.deciding().for_each(|frontend| doors.add(frontend));
            rule
        })
        .collect()
}

fn pools(port: &PortPlan) -> Pools {
    let addresses = |scope| port.pool(scope).addresses().collect();
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
    own: &'a NodeFamily,
    home: &'a Arc<Home>,
    ingress: Ingress,
    rule: &'a mut PortRule,
}

impl Doors<'_> {
    fn add(&mut self, frontend: &Frontend) {
        match frontend.kind {
            FrontendKind::ClusterIp => self.address(Way::Internal, frontend),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp if frontend.allowed.is_some() => {
                self.address(Way::Restricted, frontend);
            }
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp => self.address(Way::External, frontend),
            FrontendKind::NodePort | FrontendKind::LocalhostNodePort => self.node_port(frontend),
        }
    }

    fn address(&mut self, way: Way, frontend: &Frontend) {
        let Some(ip) = frontend.key.address() else { return };
        let at = SocketAddr::new(ip, frontend.key.port());
        match self.ingress {
            Ingress::Loopback => {
                self.rule.addresses.insert(ip);
                self.door(Place::At(at), frontend);
            }
            Ingress::Mapped => self.door(Place::Proxy(way), frontend),
            Ingress::Portals => {
                if self.own.addresses.contains(&ip) {
                    self.rule.claims.insert(at);
                }
                self.door(Place::Proxy(way), frontend);
            }
        }
    }

    /// With rules, node ports lead to the proxy port and are only held; else they are listened on. What listens on
    /// every address, or is led to, includes loopback.
    fn node_port(&mut self, frontend: &Frontend) {
        let on_loopback = frontend.kind == FrontendKind::LocalhostNodePort;
        let number = frontend.key.port();
        let everywhere = SocketAddr::new(any(frontend.key.family()), number);
        match (self.ingress, &self.own.node_ports) {
            (Ingress::Portals, _) if !on_loopback => {
                self.rule.claims.insert(everywhere);
                self.door(Place::Proxy(Way::External), frontend);
            }
            (Ingress::Loopback | Ingress::Mapped, NodePorts::All) if !on_loopback => {
                self.door(Place::At(everywhere), frontend);
            }
            (Ingress::Portals, _) | (_, NodePorts::All) => {}
            (Ingress::Loopback | Ingress::Mapped, NodePorts::Only(addresses)) => {
                for ip in addresses.iter().filter(|ip| ip.is_loopback() == on_loopback) {
                    self.door(Place::At(SocketAddr::new(*ip, number)), frontend);
                }
            }
        }
    }

    fn door(&mut self, place: Place, frontend: &Frontend) {
        let new = || DoorRule {
            access: Access::of(frontend, self.home),
            leads: Default::default(),
        };
        let door = self.rule.doors.entry(place).or_insert_with(new);
        door.leads.insert(frontend.key);
    }
}
