//! One service port -> its pieces.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferry_host::nftables::{Data, Element, Key, Value, Verdict};
use ferry_model::{PortPlan, Scope, TrafficPolicy, Verdict as Fate};
use ipnet::IpNet;

use super::shared::{By, Shared};
use super::{Context, FixedSet, LOCAL_SLOTS, Octets, Piece, affinity};
use crate::nftables::names;

/// Where traffic for the port arrives.
#[derive(Clone, Copy)]
enum Frontend {
    Address(IpAddr, u16),
    NodePort(u16),
}

pub(super) fn render(port: &PortPlan, context: &Context, pieces: &mut Vec<Piece>) {
    let mut rendering = Rendering {
        port,
        comment: comment(port),
        cluster: port.cluster().map(|endpoint| endpoint.address()).collect(),
        local: port.local().map(|endpoint| endpoint.address()).collect(),
        pieces,
    };
    rendering.internal();
    rendering.external();
    rendering.sources();
    rendering.hairpins();
    if port.affinity.is_some() {
        affinity::render(port, context, rendering.pieces);
    }
}

fn comment(port: &PortPlan) -> Arc<str> {
    let text = port.name.to_string();
    text[..text.floor_char_boundary(ferry_host::nftables::MAX_COMMENT)].into()
}

struct Rendering<'a> {
    port: &'a PortPlan,
    comment: Arc<str>,
    cluster: Vec<SocketAddr>,
    local: Vec<SocketAddr>,
    pieces: &'a mut Vec<Piece>,
}

impl Rendering<'_> {
    fn internal(&mut self) {
        let cluster_ip = self.port.cluster_ip;
        self.share(Shared::Element(
            FixedSet::ClusterIps,
            Key::of(Octets::of(cluster_ip).as_slice()),
        ));
        let frontend = Frontend::Address(cluster_ip, self.port.port);
        match self.port.internal {
            // A pool that the plan leads to is never empty; an empty one would make the kernel refuse everything.
            Fate::Forward(scope) if self.port.pool(scope).next().is_none() => {
                self.refuse(frontend, Verdict::Goto(names::REJECT.into()));
            }
            Fate::Forward(scope) => {
                let lead = match self.port.affinity {
                    Some(_) => affinity::pool(self.port, scope),
                    None => self.pool(By::Address, scope),
                };
                self.dispatch(frontend, lead);
                self.slots(frontend, scope);
            }
            Fate::Drop => self.refuse(frontend, Verdict::Drop),
            Fate::Reject => self.refuse(frontend, Verdict::Goto(names::REJECT.into())),
        }
    }

    fn external(&mut self) {
        let port = self.port;
        let addresses: BTreeSet<IpAddr> = port
            .external_addresses()
            .filter(|address| *address != port.cluster_ip)
            .collect();
        let frontends = addresses
            .into_iter()
            .map(|address| Frontend::Address(address, port.port));
        for frontend in frontends.chain(port.node_port.map(Frontend::NodePort)) {
            if port.has_endpoints && !self.cluster.is_empty() {
                self.serve_external(frontend);
            }
            match port.external.verdict {
                Fate::Forward(_) => {}
                Fate::Drop => self.refuse(frontend, Verdict::Drop),
                Fate::Reject => self.refuse(frontend, Verdict::Goto(names::REJECT.into())),
            }
        }
    }

    fn serve_external(&mut self, frontend: Frontend) {
        let by = match frontend {
            Frontend::Address(..) => By::Address,
            Frontend::NodePort(_) => By::NodePort,
        };
        let local_size = match self.port.external.verdict {
            Fate::Forward(_) => self.local.len() as u32,
            Fate::Drop | Fate::Reject => 0,
        };
        let lead = match (self.port.affinity, self.port.external.policy) {
            (Some(_), _) => affinity::external(self.port),
            (None, TrafficPolicy::Cluster) => self.shared(Shared::External(by, self.cluster.len() as u32)),
            (None, TrafficPolicy::Local) => {
                self.shared(Shared::ExternalLocal(by, self.cluster.len() as u32, local_size))
            }
        };
        self.dispatch(frontend, lead);
        self.slots(frontend, Scope::Cluster);
        if self.port.external.policy == TrafficPolicy::Local && local_size > 0 {
            self.slots(frontend, Scope::Local);
        }
    }

    fn sources(&mut self) {
        let port = self.port;
        if port.source_ranges.is_empty() || port.load_balancer_ips.is_empty() {
            return;
        }
        let mut ranges = port.source_ranges.clone();
        if port.node_in_source_ranges {
            ranges.extend(port.load_balancer_ips.iter().map(|ip| IpNet::from(*ip)));
        }
        let mut ranges = IpNet::aggregate(&ranges);
        ranges.sort();
        let sources = Shared::Sources(ranges.into());
        let Some(lead) = sources.goto() else { return };
        let addresses: BTreeSet<IpAddr> = port.load_balancer_ips.iter().copied().collect();
        for address in addresses {
            self.share(sources.clone());
            let key = self.key(Frontend::Address(address, port.port), None);
            self.element(FixedSet::FirewallIps, key, Value::Verdict(lead.clone()), true);
        }
    }

    fn hairpins(&mut self) {
        let proto = [self.port.protocol().number()];
        for endpoint in self.port.reachable().filter(|endpoint| endpoint.is_local()) {
            let ip = Octets::of(endpoint.address().ip());
            let port = endpoint.address().port().to_be_bytes();
            let key = Key::concat(&[ip.as_slice(), ip.as_slice(), &proto, &port]);
            self.share(Shared::Element(FixedSet::Hairpin, key));
        }
    }

    /// The chain of a pool by its size.
    fn pool(&mut self, by: By, scope: Scope) -> Verdict {
        match scope {
            Scope::Cluster => self.shared(Shared::Pool(by, self.cluster.len() as u32)),
            Scope::Local => self.shared(Shared::LocalPool(by, self.local.len() as u32)),
        }
    }

    fn shared(&mut self, shared: Shared) -> Verdict {
        let lead = shared.goto().unwrap_or(Verdict::Return);
        self.share(shared);
        lead
    }

    fn share(&mut self, shared: Shared) {
        self.pieces.push(Piece::Shared(shared));
    }

    fn dispatch(&mut self, frontend: Frontend, lead: Verdict) {
        let set = match frontend {
            Frontend::Address(..) => FixedSet::ServiceIps,
            Frontend::NodePort(_) => FixedSet::ServiceNodePorts,
        };
        let key = self.key(frontend, None);
        self.element(set, key, Value::Verdict(lead), true);
    }

    fn refuse(&mut self, frontend: Frontend, verdict: Verdict) {
        let set = match frontend {
            Frontend::Address(..) => FixedSet::NoEndpointServices,
            Frontend::NodePort(_) => FixedSet::NoEndpointNodePorts,
        };
        let key = self.key(frontend, None);
        self.element(set, key, Value::Verdict(verdict), true);
    }

    /// The endpoints of a pool as a frontend sees them. A service with affinity has chains for them instead.
    fn slots(&mut self, frontend: Frontend, scope: Scope) {
        if self.port.affinity.is_some() {
            return;
        }
        let set = match frontend {
            Frontend::Address(..) => FixedSet::Endpoints,
            Frontend::NodePort(_) => FixedSet::NodePortEndpoints,
        };
        let (first, size) = match scope {
            Scope::Cluster => (0, self.cluster.len()),
            Scope::Local => (LOCAL_SLOTS, self.local.len()),
        };
        for index in 0..size {
            let endpoint = match scope {
                Scope::Cluster => self.cluster[index],
                Scope::Local => self.local[index],
            };
            let ip = Octets::of(endpoint.ip());
            let data = Data::concat(&[ip.as_slice(), &endpoint.port().to_be_bytes()]);
            let key = self.key(frontend, Some(first + index as u32));
            self.element(set, key, Value::Data(data), false);
        }
    }

    fn key(&self, frontend: Frontend, slot: Option<u32>) -> Key {
        let proto = [self.port.protocol().number()];
        let slot = slot.map(u32::to_ne_bytes);
        let slot: &[u8] = slot.as_ref().map_or(&[], |slot| slot);
        match frontend {
            Frontend::Address(address, port) => {
                Key::concat(&[Octets::of(address).as_slice(), &proto, &port.to_be_bytes(), slot])
            }
            Frontend::NodePort(port) => Key::concat(&[&proto, &port.to_be_bytes(), slot]),
        }
    }

    fn element(&mut self, set: FixedSet, key: Key, value: Value, commented: bool) {
        let comment = commented.then(|| Arc::clone(&self.comment));
        self.pieces.push(Piece::Element(
            set,
            Element {
                comment,
                ..Element::new(key, value)
            },
        ));
    }
}
