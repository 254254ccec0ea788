//! What a plan means for one packet: the executable specification that every backend is held to. It looks up what is
//! decided and says why.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::facts::TrafficPolicy;
use crate::names::{Family, PortName, Protocol};
use crate::plan::{
    Action, Client, Detector, Frontend, FrontendKey, FrontendKind, Masqueraded, NodeFamily, Plan, PortPlan,
    Scope,
};

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
    pub action: Action,
    /// The service port whose it is.
    pub port: Option<PortName>,
    /// It goes to one of these, each as likely as the other; with an affinity, to the one the client had before.
    pub targets: Vec<Target>,
    pub affinity: Option<Duration>,
    pub steps: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: SocketAddr,
    /// The endpoint sees the node's address in place of the client's.
    pub masquerade: bool,
}

pub fn trace(plan: &Plan, packet: &Packet) -> Outcome {
    let mut tracer = Tracer::new(plan, packet);
    tracer.outcome.action = tracer.action();
    tracer.outcome
}

/// As what the sender of a packet counts at a frontend.
pub(crate) fn client(plan: &Plan, packet: &Packet, frontend: &Frontend) -> Client {
    Tracer::new(plan, packet).client(frontend)
}

struct Tracer<'a> {
    plan: &'a Plan,
    packet: &'a Packet,
    node: &'a NodeFamily,
    outcome: Outcome,
}

impl<'a> Tracer<'a> {
    fn new(plan: &'a Plan, packet: &'a Packet) -> Self {
        Tracer {
            plan,
            packet,
            node: plan.node().family(Family::of(packet.destination)),
            outcome: Outcome {
                action: Action::NotOurs,
                port: None,
                targets: Vec::new(),
                affinity: None,
                steps: Vec::new(),
            },
        }
    }

    fn action(&mut self) -> Action {
        let Packet {
            destination,
            port,
            protocol,
            ..
        } = *self.packet;
        let key = FrontendKey::Address(destination, port, protocol);
        if let Some(service_port) = self.plan.port_at(&key)
            && let Some(frontend) = service_port.deciding().find(|frontend| frontend.key == key)
        {
            self.step(format!(
                "{destination}:{port} is {} of {}",
                article(frontend.kind),
                service_port.name
            ));
            return self.at(service_port, frontend);
        }
        if !self.node.has(destination) {
            return self.at_no_frontend();
        }
        let key = FrontendKey::NodePort(Family::of(destination), port, protocol);
        let Some(service_port) = self.plan.port_at(&key) else {
            self.step(format!(
                "{destination} is this node's own and {port}/{protocol} is no node port"
            ));
            return Action::NotOurs;
        };
        self.at_node_port(service_port)
    }

    fn at_node_port(&mut self, port: &'a PortPlan) -> Action {
        let (destination, number) = (self.packet.destination, self.packet.port);
        let kind = if destination.is_loopback() {
            FrontendKind::LocalhostNodePort
        } else {
            FrontendKind::NodePort
        };
        let is = format!("{number} is a node port of {}", port.name);
        if self.node.answers_node_ports_at(destination)
            && let Some(frontend) = port.frontends(kind).next()
        {
            self.step(is);
            return self.at(port, frontend);
        }
        let others = port.frontends(FrontendKind::NodePort).next();
        let refusal = others.map(|frontend| frontend.actions.others);
        match refusal.filter(|_| self.plan.node().refuses_node_ports_everywhere) {
            Some(Action::Reject) => {
                self.step(format!("{is}, which no endpoint can serve: rejected"));
                Action::Reject
            }
            Some(Action::Drop) => {
                self.step(format!("{is}, which has no local endpoint: dropped"));
                Action::Drop
            }
            Some(Action::Forward { .. } | Action::NotOurs) | None => {
                self.step(format!("{is}, but not answered at {destination}"));
                Action::NotOurs
            }
        }
    }

    fn at(&mut self, port: &'a PortPlan, frontend: &Frontend) -> Action {
        self.outcome.port = Some(port.name.clone());
        if let Some(allowed) = &frontend.allowed {
            let source = self.packet.source;
            if !allowed.contains(source) {
                self.step(format!(
                    "{source} is outside the service's source ranges: dropped"
                ));
                return Action::Drop;
            }
            self.step(format!("{source} is within the service's source ranges"));
        }
        let client = self.client(frontend);
        let action = frontend.actions.of(client);
        if frontend.kind == FrontendKind::ClusterIp {
            self.explain_internal(action, client);
        } else {
            self.explain_external(port, action, client);
        }
        if let Action::Forward { scope, masquerade } = action {
            self.forward(port, scope, masquerade);
        }
        action
    }

    fn explain_internal(&mut self, action: Action, client: Client) {
        let why = match action {
            Action::Drop => {
                "the internal traffic policy is Local, this node has no endpoint, others have: dropped"
            }
            Action::Reject => "no endpoint can serve it: rejected",
            Action::NotOurs => "the node's own traffic is not looked at: it leaves",
            Action::Forward { .. } if self.plan.node().relays => RELAYED,
            Action::Forward { .. } => match (self.node.masqueraded, client) {
                (Masqueraded::Everybody, _) => "all cluster IP traffic is masqueraded",
                (Masqueraded::Node, Client::Node) => {
                    "the client is the node, by the service's own address: masqueraded"
                }
                (Masqueraded::Nobody | Masqueraded::Node, _) => {
                    "local pods cannot be told from others: the source address is kept"
                }
                (Masqueraded::NotPods, Client::Pod) => "the client is a pod: the source address is kept",
                (Masqueraded::NotPods, Client::Node | Client::Other) => {
                    "the client is no pod: masqueraded, so that answers come back this way"
                }
            },
        };
        self.step(why.into());
    }

    fn explain_external(&mut self, port: &PortPlan, action: Action, client: Client) {
        let local = port.external_policy == TrafficPolicy::Local;
        let why = match (action, client) {
            (Action::Reject, _) => "no endpoint can serve it: rejected",
            (Action::NotOurs, _) => {
                "no endpoint can serve it, and the node's own traffic is not looked at: it leaves"
            }
            (Action::Drop, _) if !local => "only the node itself may use it: dropped",
            (Action::Drop, _) => {
                "the external traffic policy is Local, this node has no endpoint, others have: dropped"
            }
            (Action::Forward { .. }, _) if self.plan.node().relays => RELAYED,
            (Action::Forward { .. }, _) if !local => "the external traffic policy is Cluster: masqueraded",
            (
                Action::Forward {
                    scope: Scope::Cluster,
                    ..
                },
                Client::Pod,
            ) => "the external traffic policy is Local, but the client is a pod: every endpoint will do",
            (
                Action::Forward {
                    scope: Scope::Cluster,
                    ..
                },
                Client::Node,
            ) => "the external traffic policy is Local, but the client is the node: every endpoint will do",
            (Action::Forward { .. }, _) => {
                "the external traffic policy is Local: only endpoints here, the source address is kept"
            }
        };
        self.step(why.into());
    }

    fn forward(&mut self, port: &PortPlan, scope: Scope, masquerade: bool) {
        let source = self.packet.source;
        let pool = port.pool(scope).iter();
        self.outcome.targets = pool
            .map(|endpoint| Target {
                address: endpoint.address(),
                masquerade: masquerade || endpoint.hairpins() && endpoint.address().ip() == source,
            })
            .collect();
        let place = match scope {
            Scope::Cluster => "of the cluster",
            Scope::Local => "on this node",
        };
        let count = self.outcome.targets.len();
        self.step(format!("one of {count} endpoint(s) {place} gets it"));
        if !masquerade && self.outcome.targets.iter().any(|target| target.masquerade) {
            self.step("the client may meet itself: masqueraded then".into());
        }
        self.outcome.affinity = port.affinity;
        if let Some(timeout) = port.affinity {
            self.step(format!("a client keeps its endpoint for {} s", timeout.as_secs()));
        }
    }

    fn at_no_frontend(&mut self) -> Action {
        let Packet {
            destination,
            port,
            protocol,
            ..
        } = *self.packet;
        let node = self.plan.node();
        let is_cluster_ip = self.plan.is_cluster_ip(destination);
        let bound = node.binds_service_addresses && self.plan.is_service_address(destination);
        let (what, action) = if is_cluster_ip || bound {
            let what = if is_cluster_ip {
                "cluster IP"
            } else {
                "service's address"
            };
            let what = format!("{destination} is a {what}, but has no port {port}/{protocol}");
            (what, node.unknown_ports)
        } else if self
            .node
            .service_cidrs
            .iter()
            .any(|cidr| cidr.contains(&destination))
        {
            let what = format!("{destination} is of the service network, but no service has it");
            (what, node.unallocated)
        } else {
            let what = format!("no service is at {destination}:{port}/{protocol}");
            (what, Action::NotOurs)
        };
        let end = match action {
            Action::Reject => ": rejected",
            Action::Drop => ": dropped",
            Action::Forward { .. } | Action::NotOurs => "",
        };
        self.step(what + end);
        action
    }

    /// What is not ours is not looked at, whatever address it comes from.
    fn client(&self, frontend: &Frontend) -> Client {
        let is_node = self.is_from_node();
        if self.is_from_local_pod() && !(is_node && frontend.actions.node == Action::NotOurs) {
            Client::Pod
        } else if is_node {
            Client::Node
        } else {
            Client::Other
        }
    }

    fn is_from_node(&self) -> bool {
        if self.plan.node().binds_service_addresses {
            return self.plan.is_cluster_ip(self.packet.source);
        }
        self.packet.origin == Origin::Node || self.node.has(self.packet.source)
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
        self.outcome.steps.push(what);
    }
}

const RELAYED: &str = "this node relays it: the endpoint sees the node's address";

pub(crate) fn article(kind: FrontendKind) -> String {
    match kind {
        FrontendKind::ClusterIp => format!("the {kind}"),
        FrontendKind::ExternalIp => format!("an {kind}"),
        FrontendKind::LoadBalancerIp | FrontendKind::NodePort | FrontendKind::LocalhostNodePort => {
            format!("a {kind}")
        }
    }
}
