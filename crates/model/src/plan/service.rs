//! One service and its slices -> what to do with its traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::endpoints::{Wanted, endpoints};
use super::{
    Action, Actions, Allowed, Client, Endpoint, Frontend, FrontendKey, FrontendKind, Frontends, HealthCheck,
    NodeFamily, NodePlan, PortPlan, Scope, ServicePlan,
};
use crate::facts::{EndpointSlice, Service, ServicePort, TrafficPolicy};
use crate::names::{Family, PerFamily, PortName};

/// External and load-balancer frontends of one service: its addresses times its ports. Nobody needs so many, and
/// an object that fits into the API server could ask for a billion.
pub(super) const MAX_FRONTENDS: usize = 100_000;

pub(super) fn plan_service<'a>(
    service: &Service,
    slices: impl Iterator<Item = &'a Arc<EndpointSlice>>,
    node: &NodePlan,
) -> ServicePlan {
    let slices: Vec<_> = slices.collect();
    let mut plan = ServicePlan {
        name: service.name.clone(),
        ports: Vec::with_capacity(service.ports.len()),
        health_check: None,
        options: service.options.clone(),
        created: service.created,
        lost: Vec::new(),
        excess: 0,
    };
    // Two ports of one name and protocol: the last one counts.
    let by_name: BTreeMap<_, &ServicePort> = service
        .ports
        .iter()
        .map(|port| ((&*port.name, port.protocol), port))
        .collect();
    let mut room = MAX_FRONTENDS;
    for family in Family::BOTH {
        let mut cluster_ips = service.cluster_ips.iter().copied();
        let Some(cluster_ip) = cluster_ips.find(|ip| Family::of(*ip) == family) else {
            continue;
        };
        let shared = Shared::of(service, family, cluster_ip, node);
        for port in by_name.values() {
            let mut planned = plan_port(service, port, &slices, &shared, node);
            planned.frontends = shared.frontends(port, &planned, &mut room, &mut plan.excess);
            plan.ports.push(planned);
        }
    }
    settle_siblings(&mut plan);
    plan.health_check = service.health_check_node_port.map(|port| HealthCheck {
        port,
        local_endpoints: PerFamily::from_fn(|family| local_ready(service, &plan.ports, family)),
    });
    plan
}

/// What the ports of a service have in common in one family.
struct Shared<'a> {
    node: &'a NodePlan,
    family: Family,
    cluster_ip: IpAddr,
    /// Open to the outside by its addresses, whether or not the gate lets external IPs be served.
    declared_external: bool,
    /// External IPs, then load-balancer IPs.
    addresses: Vec<Address>,
    allowed: Option<Arc<Allowed>>,
}

/// An address other than the cluster IP.
struct Address {
    ip: IpAddr,
    kind: FrontendKind,
    shadowed: bool,
    /// Source ranges hold here.
    guarded: bool,
    /// The node's own traffic does not meet a refusal here.
    unseen_from_node: bool,
}

impl<'a> Shared<'a> {
    fn of(service: &Service, family: Family, cluster_ip: IpAddr, node: &'a NodePlan) -> Self {
        let of_family = |ips: &'_ [IpAddr]| -> Vec<IpAddr> {
            let own = ips.iter().copied();
            own.filter(|ip| Family::of(*ip) == family).collect()
        };
        let mut external_ips = of_family(&service.external_ips);
        let load_balancer_ips = of_family(&service.load_balancer_ips);
        let declared_external = !external_ips.is_empty() || !load_balancer_ips.is_empty();
        if !node.allow_external_ips {
            external_ips.clear();
        }
        Shared {
            node,
            family,
            cluster_ip,
            declared_external,
            allowed: allowed(service, node.family(family), family, &load_balancer_ips),
            addresses: addresses(
                cluster_ip,
                &external_ips,
                &load_balancer_ips,
                node.family(family),
                node,
            ),
        }
    }

    /// Everything that a port asks for.
    fn frontends(
        &self,
        port: &ServicePort,
        plan: &PortPlan,
        room: &mut usize,
        excess: &mut usize,
    ) -> Frontends {
        let own = self.node.family(self.family);
        let decision = Decision::of(plan, self.node, own);
        let node_port = port.node_port.zip(plan.external);
        let count = self.addresses.len().min(*room);
        *room -= count;
        *excess += self.addresses.len() - count;

        let at_node = node_port.map_or(0, |_| 1 + usize::from(own.localhost_node_ports));
        let at_cluster_ip = Frontend {
            key: FrontendKey::Address(self.cluster_ip, port.port, port.protocol),
            kind: FrontendKind::ClusterIp,
            shadowed: false,
            allowed: None,
            actions: decision.internal(plan.internal_policy),
        };
        if count + at_node == 0 {
            return at_cluster_ip.into();
        }
        let mut frontends = Vec::with_capacity(1 + count + at_node);
        frontends.push(at_cluster_ip);
        let guard = decision.guards().then_some(self.allowed.as_ref()).flatten();
        for address in self.addresses.iter().take(count) {
            let Some(mut actions) = plan.external else {
                continue;
            };
            if address.unseen_from_node && actions.node == Action::Reject {
                actions.node = Action::NotOurs;
            }
            frontends.push(Frontend {
                key: FrontendKey::Address(address.ip, port.port, port.protocol),
                kind: address.kind,
                shadowed: address.shadowed,
                allowed: guard.filter(|_| address.guarded).cloned(),
                actions,
            });
        }
        if let Some((number, actions)) = node_port {
            let at_node = |kind, actions| Frontend {
                key: FrontendKey::NodePort(self.family, number, port.protocol),
                kind,
                shadowed: false,
                allowed: None,
                actions,
            };
            frontends.push(at_node(FrontendKind::NodePort, actions));
            if own.localhost_node_ports {
                // Nobody else reaches loopback addresses.
                let own_only = Actions {
                    node: actions.node,
                    ..Actions::all(Action::Drop)
                };
                frontends.push(at_node(FrontendKind::LocalhostNodePort, own_only));
            }
        }
        frontends.into()
    }
}

fn addresses(
    cluster_ip: IpAddr,
    external_ips: &[IpAddr],
    load_balancer_ips: &[IpAddr],
    own: &NodeFamily,
    node: &NodePlan,
) -> Vec<Address> {
    if external_ips.is_empty() && load_balancer_ips.is_empty() {
        return Vec::new();
    }
    let mut seen = BTreeSet::from([cluster_ip]);
    let balanced: BTreeSet<IpAddr> = load_balancer_ips.iter().copied().collect();
    let external = external_ips.iter().map(|ip| (*ip, FrontendKind::ExternalIp));
    let balanced_ips = load_balancer_ips
        .iter()
        .map(|ip| (*ip, FrontendKind::LoadBalancerIp));
    external
        .chain(balanced_ips)
        .map(|(ip, kind)| Address {
            ip,
            kind,
            shadowed: !seen.insert(ip),
            guarded: kind == FrontendKind::LoadBalancerIp
                || !node.policy.external_ips_pass_source_ranges && balanced.contains(&ip),
            unseen_from_node: !node.policy.verdicts_for_own_traffic && !own.has(ip),
        })
        .collect()
}

/// Who may use the load-balancer IPs; everyone if there are no ranges of the family, or one that holds everything.
fn allowed(
    service: &Service,
    own: &NodeFamily,
    family: Family,
    load_balancer_ips: &[IpAddr],
) -> Option<Arc<Allowed>> {
    let ranges = service.source_ranges.iter().copied();
    let ranges: Vec<IpNet> = ranges.filter(|range| Family::of_net(range) == family).collect();
    if ranges.is_empty() || ranges.iter().any(|range| range.prefix_len() == 0) {
        return None;
    }
    let includes = |ip: IpAddr| ranges.iter().any(|range| range.contains(&ip));
    let own_addresses = if own.node_ip.is_some_and(includes) {
        load_balancer_ips.to_vec()
    } else {
        Vec::new()
    };
    Some(Arc::new(Allowed {
        ranges,
        own_addresses,
    }))
}

fn plan_port(
    service: &Service,
    port: &ServicePort,
    slices: &[&Arc<EndpointSlice>],
    shared: &Shared<'_>,
    node: &NodePlan,
) -> PortPlan {
    let open_outside = port.node_port.is_some() || shared.declared_external;
    let internal_local = service.internal_policy == TrafficPolicy::Local;
    let external_local = service.external_policy == TrafficPolicy::Local;
    let wanted = Wanted {
        cluster: !internal_local || open_outside,
        local: internal_local || (external_local && open_outside),
    };
    let (endpoints, has_endpoints) =
        endpoints(slices, shared.family, &port.name, port.protocol, wanted, node);
    let mut plan = PortPlan {
        family: shared.family,
        name: PortName {
            service: service.name.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
        },
        port: port.port,
        frontends: Frontends::default(),
        internal_policy: service.internal_policy,
        external_policy: service.external_policy,
        external: None,
        has_endpoints,
        affinity: service.affinity,
        endpoints,
    };
    if open_outside {
        let decision = Decision::of(&plan, node, node.family(shared.family));
        plan.external = Some(decision.external(service.external_policy));
    }
    plan
}

/// What decides about a port's traffic.
struct Decision<'a> {
    node: &'a NodePlan,
    own: &'a NodeFamily,
    has_endpoints: bool,
    has_local: bool,
    has_cluster: bool,
}

impl<'a> Decision<'a> {
    fn of(plan: &PortPlan, node: &'a NodePlan, own: &'a NodeFamily) -> Self {
        Decision {
            node,
            own,
            has_endpoints: plan.has_endpoints,
            has_local: plan.endpoints.iter().any(Endpoint::in_local_pool),
            has_cluster: plan.endpoints.iter().any(Endpoint::in_cluster_pool),
        }
    }

    /// Whether source ranges are looked at.
    fn guards(&self) -> bool {
        self.has_endpoints || self.node.policy.source_ranges_first
    }

    /// The pool that a traffic policy leads to, or what happens as there is none.
    fn pool(&self, policy: TrafficPolicy) -> Result<Scope, Action> {
        let falls_back = self.node.policy.local_falls_back;
        match policy {
            _ if !self.has_endpoints => Err(Action::Reject),
            TrafficPolicy::Cluster => Ok(Scope::Cluster),
            TrafficPolicy::Local if self.has_local => Ok(Scope::Local),
            TrafficPolicy::Local if falls_back && self.has_cluster => Ok(Scope::Cluster),
            TrafficPolicy::Local if falls_back => Err(Action::Reject),
            TrafficPolicy::Local => Err(Action::Drop),
        }
    }

    /// For the cluster IP.
    fn internal(&self, policy: TrafficPolicy) -> Actions {
        let action = |client| match self.pool(policy) {
            Ok(scope) => Action::Forward {
                scope,
                masquerade: self.own.masqueraded.includes(client),
            },
            Err(refusal) => refusal,
        };
        Actions {
            pods: action(Client::Pod),
            node: action(Client::Node),
            others: action(Client::Other),
        }
    }

    /// For every other address, and node ports.
    fn external(&self, policy: TrafficPolicy) -> Actions {
        let forward = |scope, masquerade| Action::Forward {
            scope,
            masquerade: masquerade || self.node.relays,
        };
        let others = match self.pool(policy) {
            Ok(scope) => forward(scope, policy == TrafficPolicy::Cluster),
            Err(refusal) => refusal,
        };
        if policy == TrafficPolicy::Local && self.node.policy.short_circuit && self.has_endpoints {
            Actions {
                pods: forward(Scope::Cluster, false),
                node: forward(Scope::Cluster, true),
                others,
            }
        } else {
            Actions::all(others)
        }
    }
}

/// Two ports of one service with the same number: the first by name has it.
fn settle_siblings(plan: &mut ServicePlan) {
    if plan.ports.len() < 2 {
        return;
    }
    let (mut ports, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
    for port in &mut plan.ports {
        let (family, protocol) = (port.family, port.protocol());
        let number_taken = !ports.insert((family, port.port, protocol));
        let node_port = port.node_port();
        let node_port_taken = node_port.is_some_and(|number| !node_ports.insert((family, number, protocol)));
        let taken = |frontend: &Frontend| match frontend.key {
            FrontendKey::Address(..) => number_taken,
            FrontendKey::NodePort(..) => node_port_taken,
        };
        if number_taken || node_port_taken {
            port.give_up(taken, &mut plan.lost);
        }
    }
}

/// Ready endpoints on this node by distinct address: a pod with two ports counts once, a draining one not at all.
fn local_ready(service: &Service, ports: &[PortPlan], family: Family) -> Option<u32> {
    service.cluster_ips.iter().find(|ip| Family::of(**ip) == family)?;
    let ready = ports
        .iter()
        .filter(|port| port.family == family)
        .flat_map(|port| port.endpoints.iter())
        .filter(|endpoint| endpoint.is_local() && endpoint.is_ready())
        .map(|endpoint| endpoint.address().ip());
    Some(ready.collect::<BTreeSet<_>>().len() as u32)
}
