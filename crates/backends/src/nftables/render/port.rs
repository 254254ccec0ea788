//! One service port -> its pieces.

use std::net::SocketAddr;
use std::sync::Arc;

use ferry_host::nftables::{Data, Element, Key, Value, Verdict};
use ferry_model::{Action, Actions, Frontend, FrontendKey, FrontendKind, PortPlan, Scope};
use ipnet::IpNet;

use super::shared::{By, Door, Shared};
use super::{Context, FixedSet, LOCAL_SLOTS, MAX_SLOTS, Octets, Piece, affinity};
use crate::nftables::names;

pub(super) fn render(port: &PortPlan, context: &Context, pieces: &mut Vec<Piece>) {
    let mut rendering = Rendering {
        port,
        comment: comment(port),
        cluster: port.pool(Scope::Cluster).addresses().take(MAX_SLOTS).collect(),
        local: port.pool(Scope::Local).addresses().take(MAX_SLOTS).collect(),
        pieces,
    };
    if let Some(frontend) = port.cluster_ip() {
        rendering.cluster_ip(frontend);
    }
    for frontend in port.deciding() {
        match frontend.kind {
            FrontendKind::ClusterIp => {}
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp | FrontendKind::NodePort => {
                rendering.external(frontend);
            }
            // The same elements as for other node ports; which addresses they answer at is for the fixed rules.
            FrontendKind::LocalhostNodePort => {}
        }
    }
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
    /// Who is masqueraded is for the fixed rules, so the action for others says all.
    fn cluster_ip(&mut self, frontend: &Frontend) {
        if let Some(address) = frontend.key.address() {
            let key = Key::of(Octets::of(address).as_slice());
            self.share(Shared::Element(FixedSet::ClusterIps, key));
        }
        if let Action::Forward { scope, .. } = frontend.actions.others {
            match self.port.affinity {
                Some(_) => self.own_chain(frontend.key, affinity::pool(self.port, scope)),
                None => self.balance(frontend.key, Shared::Pool(By::Address, scope, self.size(scope))),
            }
            self.slots(frontend.key, scope);
        }
        self.refuse(frontend);
    }

    fn external(&mut self, frontend: &Frontend) {
        if frontend.actions.forward() {
            match self.port.affinity {
                Some(_) => self.own_chain(frontend.key, affinity::external(self.port)),
                None => self.balance_external(frontend),
            }
            for scope in scopes(&frontend.actions) {
                self.slots(frontend.key, scope);
            }
        }
        self.refuse(frontend);
    }

    fn balance_external(&mut self, frontend: &Frontend) {
        let (by, actions) = (By::of(frontend.key), frontend.actions);
        let size = actions.others.scope().map_or(0, |scope| self.size(scope));
        self.balance(frontend.key, Shared::External { by, actions, size });
        let inside = [actions.pods, actions.node].map(Action::scope);
        if actions.uniform().is_none() && inside.contains(&Some(Scope::Cluster)) {
            let way = Shared::ShortCircuit(by, self.size(Scope::Cluster));
            self.class(by.frontends(Door::ShortCircuit), frontend.key, way);
        }
    }

    fn size(&self, scope: Scope) -> u32 {
        match scope {
            Scope::Cluster => self.cluster.len() as u32,
            Scope::Local => self.local.len() as u32,
        }
    }

    fn sources(&mut self) {
        let port = self.port;
        let guarded = || {
            port.deciding()
                .filter_map(|frontend| Some((frontend.key, frontend.allowed.as_ref()?)))
        };
        // All of a service have the same.
        let Some((_, allowed)) = guarded().next() else {
            return;
        };
        let mut ranges = IpNet::aggregate(&allowed.networks().collect());
        ranges.sort();
        let sources = Shared::Sources(ranges.into());
        let Some(lead) = sources.goto() else { return };
        for (frontend, _) in guarded() {
            self.share(sources.clone());
            self.verdict(FixedSet::FirewallIps, frontend, lead.clone());
        }
    }

    fn hairpins(&mut self) {
        let proto = [self.port.protocol().number()];
        for endpoint in self.port.reachable().filter(|endpoint| endpoint.hairpins()) {
            let ip = Octets::of(endpoint.address().ip());
            let port = endpoint.address().port().to_be_bytes();
            let key = Key::concat(&[ip.as_slice(), ip.as_slice(), &proto, &port]);
            self.share(Shared::Element(FixedSet::Hairpin, key));
        }
    }

    fn share(&mut self, shared: Shared) {
        self.pieces.push(Piece::Shared(shared));
    }

    /// How a frontend is balanced.
    fn balance(&mut self, frontend: FrontendKey, way: Shared) {
        self.class(By::of(frontend).frontends(Door::Front), frontend, way);
    }

    /// The same for one that has a chain of its own.
    fn own_chain(&mut self, frontend: FrontendKey, lead: Verdict) {
        let by = By::of(frontend);
        self.balance(frontend, Shared::Own(by));
        let set = by.choose(FixedSet::ServiceIps, FixedSet::ServiceNodePorts);
        self.verdict(set, frontend, lead);
    }

    fn class(&mut self, map: FixedSet, frontend: FrontendKey, way: Shared) {
        if let Some(class) = way.class_data() {
            self.element(map, frontend, Value::Data(class));
            self.share(way);
        }
    }

    /// What is not forwarded meets the refusal of others: who is forwarded has another destination by then.
    fn refuse(&mut self, frontend: &Frontend) {
        let verdict = match frontend.actions.others {
            Action::Drop => Verdict::Drop,
            Action::Reject => Verdict::Goto(names::REJECT.into()),
            Action::Forward { .. } | Action::NotOurs => return,
        };
        let by = By::of(frontend.key);
        let set = by.choose(FixedSet::NoEndpointServices, FixedSet::NoEndpointNodePorts);
        self.verdict(set, frontend.key, verdict);
    }

    /// The endpoints of a pool as a frontend sees them. A service with affinity has chains for them instead.
    fn slots(&mut self, frontend: FrontendKey, scope: Scope) {
        if self.port.affinity.is_some() {
            return;
        }
        let set = By::of(frontend).choose(FixedSet::Endpoints, FixedSet::NodePortEndpoints);
        let first = first_slot(scope);
        let pool = match scope {
            Scope::Cluster => &self.cluster,
            Scope::Local => &self.local,
        };
        for (slot, endpoint) in (first..).zip(pool) {
            let ip = Octets::of(endpoint.ip());
            let data = Data::concat(&[ip.as_slice(), &endpoint.port().to_be_bytes()]);
            let element = Element::new(key(frontend, &slot.to_ne_bytes()), Value::Data(data));
            self.pieces.push(Piece::Element(set, element));
        }
    }

    fn verdict(&mut self, set: FixedSet, frontend: FrontendKey, verdict: Verdict) {
        self.element(set, frontend, Value::Verdict(verdict));
    }

    fn element(&mut self, set: FixedSet, frontend: FrontendKey, value: Value) {
        let element = Element {
            comment: Some(Arc::clone(&self.comment)),
            ..Element::new(key(frontend, &[]), value)
        };
        self.pieces.push(Piece::Element(set, element));
    }
}

fn key(frontend: FrontendKey, slot: &[u8]) -> Key {
    match frontend {
        FrontendKey::Address(address, port, protocol) => Key::concat(&[
            Octets::of(address).as_slice(),
            &[protocol.number()],
            &port.to_be_bytes(),
            slot,
        ]),
        FrontendKey::NodePort(_, port, protocol) => {
            Key::concat(&[&[protocol.number()], &port.to_be_bytes(), slot])
        }
    }
}

/// Where the slots of a pool start in the maps of endpoints.
pub(super) fn first_slot(scope: Scope) -> u32 {
    match scope {
        Scope::Cluster => 0,
        Scope::Local => LOCAL_SLOTS,
    }
}

/// The pools that some client is led to, each once.
pub(super) fn scopes(actions: &Actions) -> impl Iterator<Item = Scope> {
    let used = [actions.pods, actions.node, actions.others].map(Action::scope);
    [Scope::Cluster, Scope::Local]
        .into_iter()
        .filter(move |scope| used.contains(&Some(*scope)))
}
