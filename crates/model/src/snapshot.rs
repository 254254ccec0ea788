//! All facts at one moment, and what a changed fact touches.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::facts::{EndpointSlice, Host, Node, Service};
use crate::names::{Family, ServiceName, SliceName};

/// One object as it is now; `None` where it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Service(ServiceName, Option<Arc<Service>>),
    Slice(SliceName, Option<Arc<EndpointSlice>>),
    Node(Option<Arc<Node>>),
    /// A ServiceCIDR object by its name.
    ServiceCidr(Arc<str>, Option<Vec<IpNet>>),
    Host(Arc<Host>),
}

impl From<Service> for Event {
    fn from(service: Service) -> Self {
        Event::Service(service.name.clone(), Some(Arc::new(service)))
    }
}

impl From<EndpointSlice> for Event {
    fn from(slice: EndpointSlice) -> Self {
        Event::Slice(slice.name.clone(), Some(Arc::new(slice)))
    }
}

/// What an event makes it necessary to plan again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Affected {
    Nothing,
    Services([Option<ServiceName>; 2]),
    /// The node's own part, and with it every service.
    Node,
}

/// The slices of one service in the order of their names. Nearly always one: a map for each would be most of the
/// snapshot's memory.
type Slices = Vec<Arc<EndpointSlice>>;

/// Everything known. Equal for any order in which the same objects arrived, but for what a Node no longer says of
/// itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    services: BTreeMap<ServiceName, Arc<Service>>,
    slices: BTreeMap<ServiceName, Slices>,
    /// Whose slice it is: a delete tells only its name, and a relabelled slice leaves its old service.
    slice_service: HashMap<SliceName, ServiceName>,
    node: Option<Arc<Node>>,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    host: Arc<Host>,
}

impl Snapshot {
    /// Takes an object's new state; tells what has to be planned again because of it.
    pub fn apply(&mut self, event: Event) -> Affected {
        match event {
            Event::Service(name, service) => self.apply_service(name, service),
            Event::Slice(name, slice) => self.apply_slice(name, slice),
            // A deleted Node stays in force as it was last seen: losing our own address would help nobody.
            Event::Node(None) => Affected::Nothing,
            Event::Node(Some(node)) => {
                let node = self.with_last_known(node);
                if self.node.as_ref() == Some(&node) {
                    return Affected::Nothing;
                }
                self.node = Some(node);
                Affected::Node
            }
            Event::ServiceCidr(name, cidrs) => {
                let before = match cidrs.clone() {
                    Some(cidrs) => self.service_cidrs.insert(name, cidrs),
                    None => self.service_cidrs.remove(&name),
                };
                if before == cidrs {
                    Affected::Nothing
                } else {
                    Affected::Node
                }
            }
            Event::Host(host) => {
                // A host has its loopback address at least: who sees none could not look.
                if self.host == host || host.addresses.is_empty() {
                    return Affected::Nothing;
                }
                self.host = host;
                Affected::Node
            }
        }
    }

    /// A Node whose addresses or pod networks of a family vanish keeps those that it had: while it is registered anew,
    /// or its cloud controller is not done yet, nothing that depends on them may open to everyone.
    fn with_last_known(&self, node: Arc<Node>) -> Arc<Node> {
        let Some(last) = &self.node else { return node };
        let is_missing = |family: Family| !node.addresses.iter().any(|ip| Family::of(*ip) == family);
        let addresses = last.addresses.iter().copied();
        let addresses: Vec<IpAddr> = addresses.filter(|ip| is_missing(Family::of(*ip))).collect();
        let is_missing = |family: Family| !node.pod_cidrs.iter().any(|cidr| Family::of_net(cidr) == family);
        let pod_cidrs = last.pod_cidrs.iter().copied();
        let pod_cidrs: Vec<IpNet> = pod_cidrs
            .filter(|cidr| is_missing(Family::of_net(cidr)))
            .collect();
        if addresses.is_empty() && pod_cidrs.is_empty() {
            return node;
        }
        let mut node = Node::clone(&node);
        node.addresses.extend(addresses);
        node.pod_cidrs.extend(pod_cidrs);
        Arc::new(node)
    }

    fn apply_service(&mut self, name: ServiceName, service: Option<Arc<Service>>) -> Affected {
        let before = match service.clone() {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(&name),
        };
        if before == service {
            Affected::Nothing
        } else {
            Affected::Services([Some(name), None])
        }
    }

    fn apply_slice(&mut self, name: SliceName, slice: Option<Arc<EndpointSlice>>) -> Affected {
        let old_service = self.slice_service.get(&name).cloned();
        let new_service = slice.as_ref().map(|slice| slice.service.clone());
        let before = old_service
            .as_ref()
            .and_then(|service| self.slices.get(service)?.iter().find(|slice| slice.name == name));
        if before == slice.as_ref() {
            return Affected::Nothing;
        }
        if let Some(service) = old_service
            .as_ref()
            .filter(|old| Some(*old) != new_service.as_ref())
        {
            self.remove_slice(&name, service);
        }
        if let Some(slice) = slice {
            let slices = self.slices.entry(slice.service.clone()).or_default();
            match position(slices, &name) {
                Ok(index) => slices[index] = Arc::clone(&slice),
                Err(index) => {
                    slices.reserve_exact(1);
                    slices.insert(index, Arc::clone(&slice));
                }
            }
            self.slice_service.insert(name, slice.service.clone());
        }
        let moved_from = old_service.filter(|old| Some(old) != new_service.as_ref());
        Affected::Services([new_service, moved_from])
    }

    fn remove_slice(&mut self, name: &SliceName, service: &ServiceName) {
        self.slice_service.remove(name);
        if let Some(slices) = self.slices.get_mut(service) {
            slices.retain(|slice| slice.name != *name);
            if slices.is_empty() {
                self.slices.remove(service);
            }
        }
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// The slices of a service, by name.
    pub fn slices(&self, service: &ServiceName) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.slices.get(service).into_iter().flatten()
    }

    /// All of it, as the events that would make it.
    pub fn facts(&self) -> Vec<Event> {
        let services = self.services.iter();
        let services =
            services.map(|(name, service)| Event::Service(name.clone(), Some(Arc::clone(service))));
        let slices = self.slices.values().flatten();
        let slices = slices.map(|slice| Event::Slice(slice.name.clone(), Some(Arc::clone(slice))));
        let cidrs = self.service_cidrs.iter();
        let cidrs = cidrs.map(|(name, cidrs)| Event::ServiceCidr(Arc::clone(name), Some(cidrs.clone())));
        let node = self.node.iter().map(|node| Event::Node(Some(Arc::clone(node))));
        let host = [Event::Host(Arc::clone(&self.host))];
        services
            .chain(slices)
            .chain(cidrs)
            .chain(node)
            .chain(host)
            .collect()
    }

    pub fn slice(&self, name: &SliceName) -> Option<&Arc<EndpointSlice>> {
        let slices = self.slices.get(self.slice_service.get(name)?)?;
        position(slices, name).ok().map(|index| &slices[index])
    }

    pub fn node(&self) -> Option<&Arc<Node>> {
        self.node.as_ref()
    }

    pub fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// Every service network, each once, whichever and however many ServiceCIDR objects hold it.
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let mut cidrs: Vec<IpNet> = self.service_cidrs.values().flatten().copied().collect();
        cidrs.sort();
        cidrs.dedup();
        cidrs
    }

    pub fn slice_count(&self) -> usize {
        self.slice_service.len()
    }
}

fn position(slices: &Slices, name: &SliceName) -> Result<usize, usize> {
    slices.binary_search_by(|slice| slice.name.cmp(name))
}
