//! Why traffic for a service goes where it goes, or nowhere: each step of the decision with the object and field behind
//! it, every endpoint with what keeps it in or out, and the causes that stand in the way. Looks up what is decided,
//! as [`crate::trace`] does, and decides nothing itself.

mod cause;
mod fates;
mod place;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::facts::{ObjectRef, Service};
use crate::names::{Family, PortName, Protocol, ServiceName};
use crate::plan::{Action, Client, Frontend, FrontendKey, FrontendKind, Plan, Planner, PortPlan};
use crate::trace::{Origin, Packet, client};

pub use cause::{Cause, Finding, HintsUnused, PolicyField, Weight};
pub use fates::{EndpointFate, Fate};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub subject: Subject,
    pub from: Asker,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Every frontend of a service, or of one of its ports.
    Service {
        name: ServiceName,
        port: Option<PortWanted>,
        protocol: Option<Protocol>,
    },
    /// What is at an address.
    Address {
        address: IpAddr,
        port: u16,
        protocol: Option<Protocol>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortWanted {
    Number(u16),
    Name(Arc<str>),
}

/// Who wants to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Whoever a frontend is there for: pods at a cluster IP, others everywhere else.
    Anybody,
    Node,
    Outside,
    /// An address, and the interface that its packets come in by, if that is known.
    Address(IpAddr, Option<Arc<str>>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    pub places: Vec<Place>,
    /// What is true of all of it; where there is no place, why.
    pub findings: Vec<Finding>,
}

impl Explanation {
    /// Everything that was found, of the whole and of each place.
    pub fn all_findings(&self) -> impl Iterator<Item = &Finding> {
        let at_places = self.places.iter().flat_map(|place| &place.findings);
        self.findings.iter().chain(at_places)
    }
}

/// One frontend, seen by one kind of client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub port: PortName,
    pub key: FrontendKey,
    pub kind: FrontendKind,
    /// Where it is asked: the frontend's address or, of a node port, one of the node's.
    pub address: IpAddr,
    pub client: Client,
    /// The client's address, where one was given.
    pub source: Option<IpAddr>,
    pub action: Action,
    pub steps: Vec<Reason>,
    pub endpoints: Vec<EndpointFate>,
    pub findings: Vec<Finding>,
}

/// One step of a decision, and what made it so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub says: String,
    pub because: Option<Because>,
}

/// A field of an object, with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Because {
    pub object: ObjectRef,
    pub field: String,
    pub value: String,
}

impl Because {
    pub(crate) fn service(name: &ServiceName, field: &str, value: impl ToString) -> Self {
        Self::of(ObjectRef::Service(name.clone()), field, value)
    }

    /// Of what the operator configured.
    pub(crate) fn configured(field: &str, value: impl ToString) -> Self {
        let object = ObjectRef::Other {
            kind: "configuration",
            name: "of this proxy".into(),
        };
        Self::of(object, field, value)
    }

    pub(crate) fn of(object: ObjectRef, field: &str, value: impl ToString) -> Self {
        Because {
            object,
            field: field.to_owned(),
            value: value.to_string(),
        }
    }
}

impl std::fmt::Display for Because {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}: {}", self.object, self.field, self.value)
    }
}

pub fn explain(planner: &Planner, question: &Question) -> Explanation {
    let explainer = Explainer {
        planner,
        plan: planner.plan(),
        from: &question.from,
    };
    match &question.subject {
        Subject::Service { name, port, protocol } => explainer.service(name, port.as_ref(), *protocol),
        Subject::Address {
            address,
            port,
            protocol,
        } => explainer.address(*address, *port, *protocol),
    }
}

struct Explainer<'a> {
    planner: &'a Planner,
    plan: &'a Plan,
    from: &'a Asker,
}

impl<'a> Explainer<'a> {
    fn service(
        &self,
        name: &ServiceName,
        wanted: Option<&PortWanted>,
        protocol: Option<Protocol>,
    ) -> Explanation {
        let snapshot = self.planner.snapshot();
        let Some(service) = snapshot.service(name) else {
            let namesakes = snapshot.services().map(|service| &service.name);
            let namesakes = namesakes.filter(|other| other.name() == name.name());
            return nothing(Cause::UnknownService {
                name: name.clone(),
                namesakes: namesakes.take(3).cloned().collect(),
            });
        };
        let is_wanted = |port: &PortName, number: u16| {
            protocol.is_none_or(|protocol| protocol == port.protocol)
                && match wanted {
                    None => true,
                    Some(PortWanted::Number(wanted)) => *wanted == number,
                    Some(PortWanted::Name(name)) => *name == port.port,
                }
        };
        let ports = self.plan.service(name).map(|plan| plan.ports.as_slice());
        let ports = ports.unwrap_or_default().iter();
        let ports = ports.filter(|port| is_wanted(&port.name, port.port));
        let mut explanation = Explanation::default();
        for port in ports {
            let frontends = port.deciding().filter(|frontend| self.concerns(frontend));
            let places =
                frontends.map(|frontend| self.place(service, port, frontend, self.asked_at(frontend)));
            explanation.places.extend(places);
        }
        let contests = self.plan.contests();
        let lost = contests.filter(|contest| contest.loser.service == *name);
        let lost = lost.filter(|contest| wanted.is_none() || is_wanted(&contest.loser, contest.key.port()));
        explanation
            .findings
            .extend(lost.map(|contest| Finding::blocks(Cause::Contested(contest))));
        if explanation.places.is_empty() && explanation.findings.is_empty() {
            return nothing(unknown_port(service, wanted));
        }
        explanation
    }

    /// Whether whoever asks could mean this frontend: nobody but the node reaches its loopback addresses.
    fn concerns(&self, frontend: &Frontend) -> bool {
        let family = |address: IpAddr| Family::of(address) == frontend.key.family();
        match self.from {
            Asker::Anybody | Asker::Outside => frontend.kind != FrontendKind::LocalhostNodePort,
            Asker::Node => true,
            Asker::Address(address, _) => {
                family(*address)
                    && (address.is_loopback() || frontend.kind != FrontendKind::LocalhostNodePort)
            }
        }
    }

    /// The address by which a frontend is asked; nothing in particular of a node whose addresses are not known.
    fn asked_at(&self, frontend: &Frontend) -> IpAddr {
        let family = frontend.key.family();
        let loopback = frontend.kind == FrontendKind::LocalhostNodePort;
        match (frontend.key.address(), family) {
            (Some(address), _) => address,
            (None, Family::V4) if loopback => Ipv4Addr::LOCALHOST.into(),
            (None, Family::V6) if loopback => Ipv6Addr::LOCALHOST.into(),
            (None, Family::V4) => self
                .node_port_address(family)
                .unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            (None, Family::V6) => self
                .node_port_address(family)
                .unwrap_or(Ipv6Addr::UNSPECIFIED.into()),
        }
    }

    /// Where node ports of a family can be asked.
    fn node_port_address(&self, family: Family) -> Option<IpAddr> {
        let own = self.plan.node().family(family);
        let addresses = own.node_ip.into_iter().chain(own.addresses.iter().copied());
        let mut addresses = addresses.filter(|address| !address.is_loopback());
        addresses.find(|address| own.answers_node_ports_at(*address))
    }

    fn address(&self, address: IpAddr, port: u16, protocol: Option<Protocol>) -> Explanation {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let mut explanation = Explanation::default();
        for protocol in all.into_iter().filter(|one| protocol.is_none_or(|p| p == *one)) {
            let at = FrontendKey::Address(address, port, protocol);
            let at_node = FrontendKey::NodePort(Family::of(address), port, protocol);
            let own = self.plan.node().family(Family::of(address));
            if let Some(plan) = self.plan.port_at(&at) {
                let frontend = plan.deciding().find(|frontend| frontend.key == at);
                self.add(&mut explanation, plan, frontend, address);
            } else if let Some(plan) = self.plan.port_at(&at_node).filter(|_| own.has(address)) {
                self.at_node_port(&mut explanation, plan, address);
            }
        }
        let claims = self.plan.contests();
        let claims = claims.filter(|contest| contest.key.address() == Some(address));
        let claims = claims.filter(|contest| contest.key.port() == port);
        explanation
            .findings
            .extend(claims.map(|contest| Finding::note(Cause::Contested(contest))));
        if explanation.places.is_empty() && explanation.findings.is_empty() {
            return nothing(self.nothing_at(address, port));
        }
        explanation
    }

    fn add(&self, to: &mut Explanation, port: &PortPlan, frontend: Option<&Frontend>, at: IpAddr) {
        let service = self.planner.snapshot().service(&port.name.service);
        if let Some((frontend, service)) = frontend.zip(service) {
            to.places.push(self.place(service, port, frontend, at));
        }
    }

    fn at_node_port(&self, to: &mut Explanation, port: &PortPlan, address: IpAddr) {
        let own = self.plan.node().family(Family::of(address));
        let kind = if address.is_loopback() {
            FrontendKind::LocalhostNodePort
        } else {
            FrontendKind::NodePort
        };
        let frontend = port.frontends(kind).next();
        match frontend.filter(|_| own.answers_node_ports_at(address)) {
            Some(frontend) => self.add(to, port, Some(frontend), address),
            None => to.findings.push(Finding::blocks(Cause::NodePortAddress {
                port: port.name.clone(),
                address,
                answered: self.node_port_address(Family::of(address)),
            })),
        }
    }

    fn nothing_at(&self, address: IpAddr, port: u16) -> Cause {
        let has = |service: &Service| {
            let mut all = service.cluster_ips.iter();
            let others = service.external_ips.iter().chain(&service.load_balancer_ips);
            all.any(|ip| *ip == address) || others.clone().any(|ip| *ip == address)
        };
        let mut services = self.planner.snapshot().services();
        if let Some(service) = services.find(|service| has(service)) {
            return unknown_port(service, Some(&PortWanted::Number(port)));
        }
        let own = self.plan.node().family(Family::of(address));
        if own.has(address) {
            return Cause::NoNodePort { address, port };
        }
        Cause::NobodyThere {
            address,
            in_service_network: own.service_cidrs.iter().any(|cidr| cidr.contains(&address)),
        }
    }

    /// As what whoever asks counts at a frontend, and by which address.
    fn client(&self, frontend: &Frontend, at: IpAddr) -> (Client, Option<IpAddr>) {
        match self.from {
            Asker::Anybody if frontend.kind == FrontendKind::ClusterIp => (Client::Pod, None),
            Asker::Anybody | Asker::Outside => (Client::Other, None),
            Asker::Node => (Client::Node, None),
            Asker::Address(source, interface) => {
                let own = self.plan.node().family(Family::of(*source));
                let packet = Packet {
                    source: *source,
                    origin: if own.has(*source) {
                        Origin::Node
                    } else {
                        Origin::Network(interface.clone())
                    },
                    destination: at,
                    port: frontend.key.port(),
                    protocol: Protocol::Tcp,
                };
                (client(self.plan, &packet, frontend), Some(*source))
            }
        }
    }
}

fn nothing(cause: Cause) -> Explanation {
    Explanation {
        places: Vec::new(),
        findings: vec![Finding::blocks(cause)],
    }
}

fn unknown_port(service: &Service, wanted: Option<&PortWanted>) -> Cause {
    let port = |port: &crate::facts::ServicePort| match &*port.name {
        "" => format!("{}/{}", port.port, port.protocol),
        name => format!("{}/{} ({name})", port.port, port.protocol),
    };
    Cause::UnknownPort {
        service: service.name.clone(),
        asked: wanted.map(|wanted| match wanted {
            PortWanted::Number(number) => number.to_string(),
            PortWanted::Name(name) => name.to_string(),
        }),
        has: service.ports.iter().map(port).collect(),
    }
}
