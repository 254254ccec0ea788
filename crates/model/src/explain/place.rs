//! One frontend and one client: the steps of the decision, and what stands in the way.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::fates::{Hints, fates, hints, usable};
use super::{Because, Cause, Explainer, Finding, Place, PolicyField, Reason};
use crate::facts::{EndpointSlice, ObjectRef, Service, TrafficPolicy};
use crate::plan::{
    Action, Client, Detector, Frontend, FrontendKind, Masqueraded, NodePorts, PortPlan, Scope,
};
use crate::trace::article;

impl Explainer<'_> {
    pub(super) fn place(&self, service: &Service, port: &PortPlan, frontend: &Frontend, at: IpAddr) -> Place {
        let (client, source) = self.client(frontend, at);
        let slices: Vec<&Arc<EndpointSlice>> = self.planner.snapshot().slices(&service.name).collect();
        let action = frontend.actions.of(client);
        let mut place = Place {
            port: port.name.clone(),
            key: frontend.key,
            kind: frontend.kind,
            address: at,
            client,
            source,
            action,
            steps: Vec::new(),
            endpoints: Vec::new(),
            findings: Vec::new(),
        };
        let case = Case {
            explainer: self,
            service,
            port,
            frontend,
            slices: &slices,
        };
        case.arrives(&mut place);
        case.may_enter(&mut place);
        case.policy(&mut place);
        if action.scope().is_some() {
            case.carried(&mut place);
        } else if place.findings.is_empty() {
            place.findings.push(Finding::blocks(case.refusal(action)));
        }
        place.endpoints = fates(&slices, port, case.scope(action));
        place
    }
}

/// What a place is explained from.
struct Case<'a> {
    explainer: &'a Explainer<'a>,
    service: &'a Service,
    port: &'a PortPlan,
    frontend: &'a Frontend,
    slices: &'a [&'a Arc<EndpointSlice>],
}

impl Case<'_> {
    fn of_service(&self, field: &str, value: impl ToString) -> Option<Because> {
        Some(Because::service(&self.service.name, field, value))
    }

    fn arrives(&self, place: &mut Place) {
        let kind = place.kind;
        let field = match kind {
            FrontendKind::ClusterIp => "spec.clusterIPs",
            FrontendKind::ExternalIp => "spec.externalIPs",
            FrontendKind::LoadBalancerIp => "status.loadBalancer.ingress",
            FrontendKind::NodePort | FrontendKind::LocalhostNodePort => "spec.ports[].nodePort",
        };
        let value = match place.key.address() {
            Some(address) => address.to_string(),
            None => place.key.port().to_string(),
        };
        let protocol = self.port.protocol();
        let says = match place.key.address() {
            Some(_) => format!("{}/{protocol} is {} of {}", place.key, article(kind), place.port),
            None => format!("{value}/{protocol} is {} of {}", article(kind), place.port),
        };
        place.step(says, self.of_service(field, value));
        if place.key.address().is_some() {
            return;
        }
        let own = self.explainer.plan.node().family(place.key.family());
        if let NodePorts::Only(addresses) = &own.node_ports {
            let list: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
            let because = Because::configured("--nodeport-addresses", list.join(", "));
            place.step(
                format!("node ports are answered at {} address(es) only", list.len()),
                Some(because),
            );
        }
    }

    /// Source ranges, and who the client is taken for.
    fn may_enter(&self, place: &mut Place) {
        if let Some(allowed) = &self.frontend.allowed {
            let ranges: Vec<String> = allowed.ranges.iter().map(IpNet::to_string).collect();
            let because = self.of_service("spec.loadBalancerSourceRanges", ranges.join(", "));
            match place.source {
                Some(source) if !allowed.contains(source) => {
                    place.step(format!("{source} is not let in"), because);
                    place.action = Action::Drop;
                    place.findings.push(Finding::blocks(Cause::OutsideSourceRanges {
                        port: place.port.clone(),
                        source,
                        ranges: allowed.ranges.clone(),
                    }));
                    return;
                }
                Some(source) => place.step(format!("{source} is let in"), because),
                None => place.step("only clients of some networks are let in".into(), because),
            }
        }
        let says = match place.client {
            Client::Pod => "the client counts as a pod of this cluster",
            Client::Node => "the client is this node itself",
            Client::Other => "the client counts as one from outside",
        };
        place.step(says.into(), self.detector(place));
    }

    fn detector(&self, place: &Place) -> Option<Because> {
        let own = self.explainer.plan.node().family(place.key.family());
        let value = match &own.detector {
            Detector::None => return None,
            Detector::Cidr(cidr) => cidr.to_string(),
            Detector::Bridge(name) => format!("bridge {name}"),
            Detector::InterfacePrefix(prefix) => format!("interfaces {prefix}*"),
        };
        (place.client != Client::Node).then(|| Because::configured("--detect-local-mode", value))
    }

    fn policy_field(&self) -> (PolicyField, TrafficPolicy) {
        match self.frontend.kind {
            FrontendKind::ClusterIp => (PolicyField::Internal, self.port.internal_policy),
            FrontendKind::LoadBalancerIp
            | FrontendKind::ExternalIp
            | FrontendKind::NodePort
            | FrontendKind::LocalhostNodePort => (PolicyField::External, self.port.external_policy),
        }
    }

    fn policy(&self, place: &mut Place) {
        let (field, policy) = self.policy_field();
        let value = match policy {
            TrafficPolicy::Cluster => "Cluster",
            TrafficPolicy::Local => "Local",
        };
        let because = self.of_service(field.as_str(), value);
        let says = match (policy, place.action) {
            (TrafficPolicy::Cluster, _) => "every usable endpoint of the cluster will do",
            (
                TrafficPolicy::Local,
                Action::Forward {
                    scope: Scope::Cluster,
                    ..
                },
            ) if place.client == Client::Other => {
                "there is none on this node: this mode uses those of the cluster"
            }
            (
                TrafficPolicy::Local,
                Action::Forward {
                    scope: Scope::Cluster,
                    ..
                },
            ) => "the client is of this cluster: every usable endpoint will do",
            (TrafficPolicy::Local, _) => "only endpoints on this node will do",
        };
        place.step(says.into(), because);
    }

    /// What happens on the way to an endpoint.
    fn carried(&self, place: &mut Place) {
        let node = self.explainer.plan.node();
        let own = node.family(place.key.family());
        if place.action.scope() == Some(Scope::Cluster) {
            self.topology(place);
        }
        if node.relays {
            place.step(
                "this node relays: the endpoint sees the node's address".into(),
                None,
            );
        } else if place.action.masquerades() {
            let because = match (place.kind, own.masqueraded) {
                (FrontendKind::ClusterIp, Masqueraded::Everybody) => {
                    Some(Because::configured("--masquerade-all", true))
                }
                (FrontendKind::ClusterIp, _) => self.detector(place),
                _ => self.of_service(PolicyField::External.as_str(), "Cluster"),
            };
            place.step(
                "masqueraded: the endpoint sees the node's address".into(),
                because,
            );
        } else {
            place.step("the endpoint sees the client's address".into(), None);
        }
        if let Some(timeout) = self.port.affinity {
            let says = format!("a client keeps its endpoint for {} s", timeout.as_secs());
            place.step(says, self.of_service("spec.sessionAffinity", "ClientIP"));
        }
        let options = &self.service.options;
        let annotated = [
            ("scheduler", options.scheduler.as_deref().map(str::to_owned)),
            (
                "drain-deadline",
                options.drain.map(|drain| format!("{} s", drain.as_secs())),
            ),
            (
                "proxy-protocol",
                options.proxy_protocol.then(|| "true".to_owned()),
            ),
        ];
        for (name, value) in annotated {
            if let Some(value) = value {
                let field = format!("metadata.annotations[ferry.dev/{name}]");
                place.step(
                    format!("asked for {name} {value}, where the mode can"),
                    self.of_service(&field, value),
                );
            }
        }
    }

    fn topology(&self, place: &mut Place) {
        let node = self.explainer.plan.node();
        let field = |name: &'static str, value: &str| {
            let object = ObjectRef::Other {
                kind: "Node",
                name: node.name.to_string(),
            };
            Some(Because::of(object, name, value))
        };
        match hints(self.slices, self.port, node) {
            Hints::Absent => {}
            Hints::Node => place.step(
                "hints are followed: endpoints meant for this node".into(),
                field("metadata.name", &node.name),
            ),
            Hints::Zone => place.step(
                "hints are followed: endpoints meant for this zone".into(),
                field(
                    "metadata.labels[topology.kubernetes.io/zone]",
                    node.zone.as_deref().unwrap_or_default(),
                ),
            ),
            Hints::Unused(why) => {
                place.step(
                    format!("hints are not followed: {why}"),
                    field(
                        "metadata.labels[topology.kubernetes.io/zone]",
                        node.zone.as_deref().unwrap_or("unset"),
                    ),
                );
                place.findings.push(Finding::note(Cause::HintsUnused {
                    port: place.port.clone(),
                    why,
                }));
            }
        }
    }

    /// Which pool is, or would be, used.
    fn scope(&self, action: Action) -> Scope {
        action.scope().unwrap_or(match self.policy_field().1 {
            TrafficPolicy::Cluster => Scope::Cluster,
            TrafficPolicy::Local => Scope::Local,
        })
    }

    /// Why no endpoint gets it.
    fn refusal(&self, action: Action) -> Cause {
        let port = self.port.name.clone();
        if self.port.has_endpoints {
            let (policy, value) = self.policy_field();
            return match value {
                TrafficPolicy::Local if action != Action::NotOurs => Cause::NoLocalEndpoint {
                    port,
                    policy,
                    elsewhere: usable(self.slices, self.port),
                },
                TrafficPolicy::Local | TrafficPolicy::Cluster => Cause::OwnOnly { port },
            };
        }
        let slices = || {
            self.slices
                .iter()
                .filter(|slice| slice.family == self.port.family)
        };
        let filled = || slices().filter(|slice| !slice.endpoints.is_empty());
        let has_port = |slice: &&&Arc<EndpointSlice>| {
            let mut ports = slice.ports.iter();
            ports.any(|one| *one.name == *port.port && one.protocol == port.protocol)
        };
        match filled().next() {
            None => Cause::NoEndpoints {
                slices: slices().count(),
                port,
            },
            Some(slice) if !filled().any(|slice| has_port(&slice)) => Cause::TargetPortMissing {
                slice: slice.name.clone(),
                has: slice
                    .ports
                    .iter()
                    .map(|one| format!("{}/{}", one.port, one.protocol))
                    .collect(),
                port,
            },
            Some(_) if action == Action::NotOurs => Cause::OwnTrafficIgnored { port },
            Some(_) => Cause::AllUnready {
                count: self.port.endpoints.len(),
                port,
            },
        }
    }
}

impl Place {
    fn step(&mut self, says: String, because: Option<Because>) {
        self.steps.push(Reason { says, because });
    }
}
