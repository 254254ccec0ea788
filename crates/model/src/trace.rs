//! What a plan means for one packet: the executable specification that every backend is held to.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::facts::TrafficPolicy;
use crate::names::{Family, PortName, Protocol};
use crate::plan::{Detector, FrontendKey, NodeFamily, NodePorts, Plan, PortPlan, Scope, Verdict};

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    pub source: IpAddr,
    pub origin: Origin,
    pub destination: IpAddr,
    pub port: u16,
    pub protocol: Protocol,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A process in the node's own network namespace.
    Node,
    /// It came in, through this interface if that is known.
    Network(Option<Arc<str>>),
}

/// What becomes of a packet, and why, step by step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub fate: Fate,
    pub steps: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It goes to one of these, each as likely as the other; with an affinity, to the one the client had before.
    Forward {
        port: PortName,
        targets: Vec<Target>,
        affinity: Option<Duration>,
    },
    Drop,
    Reject,
    /// It is not for a service: the host treats it as if we were not there.
    Host,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    /// The endpoint sees the node's address in place of the client's.
    pub masquerade: bool,
}

pub fn trace(plan: &Plan, packet: &Packet) -> Outcome {
    let mut tracer = Tracer {
        plan,
        packet,
        node: plan.node().family(Family::of(packet.destination)),
        steps: vec![],
    };
    let fate = tracer.fate();
    Outcome {
        fate,
        steps: tracer.steps,
    }
}

struct Tracer<'a> {
    plan: &'a Plan,
    packet: &'a Packet,
    node: &'a NodeFamily,
    steps: Vec<String>,
}

impl<'a> Tracer<'a> {
    fn fate(&mut self) -> Fate {
        let Packet {
            destination,
            port,
            protocol,
            ..
        } = *self.packet;
        if let Some(service_port) = self
            .plan
            .port_at(&FrontendKey::Address(destination, port, protocol))
        {
            return self.at_address(service_port);
        }
        let node_port = FrontendKey::NodePort(Family::of(destination), port, protocol);
        if self.is_local_address(destination) {
            if let Some(service_port) = self.plan.port_at(&node_port) {
                return self.at_node_port(service_port);
            }
            self.step(format!(
                "{destination} is this node's own and {port}/{protocol} is no node port"
            ));
            return Fate::Host;
        }
        self.at_no_frontend()
    }

    fn at_address(&mut self, port: &'a PortPlan) -> Fate {
        let destination = self.packet.destination;
        if destination == port.cluster_ip {
            self.step(format!(
                "{destination}:{} is the cluster IP of {}",
                port.port, port.name
            ));
            return self.at_cluster_ip(port);
        }
        let kind = if port.load_balancer_ips.contains(&destination) {
            "load-balancer"
        } else {
            "external"
        };
        self.step(format!(
            "{destination}:{} is a {kind} IP of {}",
            port.port, port.name
        ));
        if !self.passes_source_ranges(port) {
            return Fate::Drop;
        }
        let verdicts_reach_it = self.plan.node().policy.verdicts_for_own_traffic
            || !self.is_from_node()
            || self.is_local_address(destination);
        self.at_external(port, verdicts_reach_it)
    }

    fn at_cluster_ip(&mut self, port: &'a PortPlan) -> Fate {
        match port.internal {
            Verdict::Forward(scope) => {
                let masquerade = self.masquerade_cluster_ip();
                self.forward(port, scope, masquerade)
            }
            Verdict::Drop => {
                self.step(
                    "the internal traffic policy is Local, this node has no endpoint, others have: dropped"
                        .into(),
                );
                Fate::Drop
            }
            Verdict::Reject => {
                self.step("no endpoint can serve it: rejected".into());
                Fate::Reject
            }
        }
    }

    fn masquerade_cluster_ip(&mut self) -> bool {
        if self.plan.node().masquerade_all {
            self.step("all cluster IP traffic is masqueraded".into());
            return true;
        }
        match (&self.node.detector, self.is_from_local_pod()) {
            (Detector::None, _)
                if self.plan.node().policy.binds_addresses && self.plan.is_cluster_ip(self.packet.source) =>
            {
                self.step("the client is the node, by the service's own address: masqueraded".into());
                true
            }
            (Detector::None, _) => {
                self.step("local pods cannot be told from others: the source address is kept".into());
                false
            }
            (_, true) => {
                self.step("the client is a pod: the source address is kept".into());
                false
            }
            (_, false) => {
                self.step("the client is no pod: masqueraded, so that answers come back this way".into());
                true
            }
        }
    }

    fn at_node_port(&mut self, port: &'a PortPlan) -> Fate {
        let destination = self.packet.destination;
        let answered = match &self.node.node_ports {
            NodePorts::All => !destination.is_loopback() || self.node.localhost_node_ports,
            NodePorts::Only(addresses) => addresses.contains(&destination),
        };
        let number = self.packet.port;
        if answered {
            self.step(format!("{number} is a node port of {}", port.name));
            return self.at_external(port, true);
        }
        if self.plan.node().policy.node_port_verdicts_everywhere && !port.has_endpoints {
            self.step(format!(
                "{number} is a node port of {}, which no endpoint can serve: rejected",
                port.name
            ));
            return Fate::Reject;
        }
        if self.plan.node().policy.node_port_verdicts_everywhere && port.external.verdict == Verdict::Drop {
            self.step(format!(
                "{number} is a node port of {}, which has no local endpoint: dropped",
                port.name
            ));
            return Fate::Drop;
        }
        self.step(format!(
            "{number} is a node port of {}, but not answered at {destination}",
            port.name
        ));
        Fate::Host
    }

    /// Traffic for an address or port that is open to the outside.
    fn at_external(&mut self, port: &'a PortPlan, verdicts_reach_it: bool) -> Fate {
        if !port.has_endpoints {
            if !verdicts_reach_it {
                self.step(
                    "no endpoint can serve it, and the node's own traffic is not looked at: it leaves".into(),
                );
                return Fate::Host;
            }
            self.step("no endpoint can serve it: rejected".into());
            return Fate::Reject;
        }
        match port.external.policy {
            TrafficPolicy::Cluster => {
                self.step("the external traffic policy is Cluster: masqueraded".into());
                self.forward(port, Scope::Cluster, true)
            }
            TrafficPolicy::Local => self.at_local_policy(port),
        }
    }

    fn at_local_policy(&mut self, port: &'a PortPlan) -> Fate {
        if self.plan.node().policy.short_circuit {
            if self.is_from_local_pod() {
                self.step(
                    "the external traffic policy is Local, but the client is a pod: every endpoint will do"
                        .into(),
                );
                return self.forward(port, Scope::Cluster, false);
            }
            if self.is_from_node() {
                self.step("the external traffic policy is Local, but the client is the node: every endpoint will do".into());
                return self.forward(port, Scope::Cluster, true);
            }
        }
        self.step(
            "the external traffic policy is Local: only endpoints here, the source address is kept".into(),
        );
        match port.external.verdict {
            Verdict::Forward(scope) => self.forward(port, scope, false),
            Verdict::Drop => {
                self.step("this node has no endpoint, others have: dropped".into());
                Fate::Drop
            }
            Verdict::Reject => Fate::Reject,
        }
    }

    fn passes_source_ranges(&mut self, port: &PortPlan) -> bool {
        let policy = &self.plan.node().policy;
        let destination = &self.packet.destination;
        let guarded = port.load_balancer_ips.contains(destination)
            && !(policy.external_ips_pass_source_ranges && port.external_ips.contains(destination))
            && !port.source_ranges.is_empty()
            && (port.has_endpoints || policy.source_ranges_first);
        if !guarded {
            return true;
        }
        let source = self.packet.source;
        let allowed = port.source_ranges.iter().any(|range| range.contains(&source))
            || (port.node_in_source_ranges && port.load_balancer_ips.contains(&source));
        let verdict = if allowed { "within" } else { "outside" };
        let end = if allowed { "" } else { ": dropped" };
        self.step(format!("{source} is {verdict} the service's source ranges{end}"));
        allowed
    }

    fn forward(&mut self, port: &PortPlan, scope: Scope, masquerade: bool) -> Fate {
        let source = self.packet.source;
        let targets: Vec<Target> = port
            .pool(scope)
            .map(|endpoint| Target {
                address: endpoint.address(),
                masquerade: masquerade || endpoint.address().ip() == source,
            })
            .collect();
        let pool = match scope {
            Scope::Cluster => "of the cluster",
            Scope::Local => "on this node",
        };
        self.step(format!("one of {} endpoint(s) {pool} gets it", targets.len()));
        if !masquerade && targets.iter().any(|target| target.masquerade) {
            self.step("the client may meet itself: masqueraded then".into());
        }
        if let Some(timeout) = port.affinity {
            self.step(format!("a client keeps its endpoint for {} s", timeout.as_secs()));
        }
        Fate::Forward {
            port: port.name.clone(),
            targets,
            affinity: port.affinity,
        }
    }

    fn at_no_frontend(&mut self) -> Fate {
        let Packet {
            destination,
            port,
            protocol,
            ..
        } = *self.packet;
        let policy = &self.plan.node().policy;
        if self.plan.is_cluster_ip(destination) {
            return match policy.reject_unknown_ports {
                true => {
                    self.step(format!(
                        "{destination} is a cluster IP, but has no port {port}/{protocol}: rejected"
                    ));
                    Fate::Reject
                }
                false => {
                    self.step(format!(
                        "{destination} is a cluster IP, but has no port {port}/{protocol}"
                    ));
                    Fate::Host
                }
            };
        }
        if policy.binds_addresses && self.plan.is_service_address(destination) {
            self.step(format!(
                "{destination} is a service's address, but has no port {port}/{protocol}: rejected"
            ));
            return Fate::Reject;
        }
        if policy.drop_unallocated
            && self
                .node
                .service_cidrs
                .iter()
                .any(|cidr| cidr.contains(&destination))
        {
            self.step(format!(
                "{destination} is of the service network, but no service has it: dropped"
            ));
            return Fate::Drop;
        }
        self.step(format!("no service is at {destination}:{port}/{protocol}"));
        Fate::Host
    }

    fn is_local_address(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.node.addresses.contains(&address)
    }

    fn is_from_node(&self) -> bool {
        self.packet.origin == Origin::Node || self.is_local_address(self.packet.source)
    }

    fn is_from_local_pod(&self) -> bool {
        let interface = match &self.packet.origin {
            Origin::Network(Some(interface)) => Some(&**interface),
            Origin::Network(None) | Origin::Node => None,
        };
        match &self.node.detector {
            Detector::None => false,
            Detector::Cidr(cidr) => cidr.contains(&self.packet.source),
            Detector::Bridge(name) => interface == Some(&**name),
            Detector::InterfacePrefix(prefix) => interface.is_some_and(|name| name.starts_with(&**prefix)),
        }
    }

    fn step(&mut self, what: String) {
        self.steps.push(what);
    }
}
