//! Health-check node ports: a load balancer asks here whether this node has endpoints of one service.
//!
//! One set of listeners per service and family, on the addresses where node ports are answered. Opening is all or
//! nothing across those addresses; what could not be opened is tried again after the next successful sync. A listener
//! whose address stays is left alone, and one that goes is closed before another is opened: a wildcard and an address
//! of the same port exclude each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ferry_model::{Family, NodePorts, PerFamily, ServiceName};
use http::{HeaderValue, StatusCode};
use tokio::runtime::Handle;

use super::connections::Connections;
use super::health::Health;
use super::listen::{self, ListenError, Wildcard};
use super::serve::{JSON, Reply, Server, reply, room_for_clients};
use crate::clock::Now;
use crate::events::{Event, Recorder};

/// All health-check node ports of this node.
#[derive(Debug)]
pub struct ServiceHealth {
    runtime: Handle,
    health: Arc<Health>,
    recorder: Recorder,
    node_name: Arc<str>,
    addresses: PerFamily<Vec<IpAddr>>,
    /// Shared by all ports, so that the number of services does not multiply what clients can hold.
    connections: Arc<Connections>,
    checks: BTreeMap<(Family, ServiceName), Check>,
    unopened: BTreeSet<(Family, ServiceName)>,
}

/// What one service wants checked.
#[derive(Debug)]
struct Check {
    port: u16,
    local_endpoints: Arc<AtomicU32>,
    /// Empty while they could not be opened.
    servers: Vec<Server>,
}

/// A port and how many endpoints it should tell of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// `spec.healthCheckNodePort`.
    pub port: u16,
    /// Ready endpoints on this node.
    pub local_endpoints: u32,
}

impl ServiceHealth {
    /// Nothing is open yet.
    pub fn new(runtime: Handle, health: Arc<Health>, recorder: Recorder, node_name: Arc<str>) -> Self {
        Self {
            runtime,
            health,
            recorder,
            node_name,
            addresses: PerFamily::from_fn(|family| vec![wildcard(family)]),
            connections: room_for_clients("service health checks"),
            checks: BTreeMap::new(),
            unopened: BTreeSet::new(),
        }
    }

    /// Node ports of a family are answered on these addresses; takes effect when opened.
    pub fn set_addresses(&mut self, family: Family, node_ports: &NodePorts) {
        let addresses = match node_ports {
            NodePorts::All => vec![wildcard(family)],
            NodePorts::Only(addresses) => addresses.iter().copied().filter(can_be_bound).collect(),
        };
        if *self.addresses.get(family) == addresses {
            return;
        }
        *self.addresses.get_mut(family) = addresses;
        let of_family = self.checks.keys().filter(|(of, _)| *of == family);
        self.unopened.extend(of_family.cloned());
    }

    /// What a service wants now; `None` closes what it had.
    pub fn set(&mut self, family: Family, name: &ServiceName, wanted: Option<Wanted>) {
        let key = (family, name.clone());
        let Some(wanted) = wanted else {
            self.checks.remove(&key);
            self.unopened.remove(&key);
            return;
        };
        match self.checks.get(&key) {
            Some(check) if check.port == wanted.port => {
                check
                    .local_endpoints
                    .store(wanted.local_endpoints, Ordering::Relaxed);
            }
            _ => {
                let local_endpoints = Arc::new(AtomicU32::new(wanted.local_endpoints));
                let check = Check {
                    port: wanted.port,
                    local_endpoints,
                    servers: Vec::new(),
                };
                // Drops, and so closes, what was open on another port.
                self.checks.insert(key.clone(), check);
                self.unopened.insert(key);
            }
        }
    }

    /// Opens what is not open yet. To be called once everything that changed was [`ServiceHealth::set`]: a port may
    /// have moved from one service to another.
    pub fn open(&mut self) {
        let unopened = std::mem::take(&mut self.unopened);
        for key in &unopened {
            let addresses = self.addresses.get(key.0);
            if let Some(check) = self.checks.get_mut(key) {
                check
                    .servers
                    .retain(|server| addresses.contains(&server.address().ip()));
            }
        }
        for key in unopened {
            let Some(check) = self.checks.get(&key) else {
                continue;
            };
            let opened = self.listen(&key, check);
            let port = check.port;
            match opened {
                Ok(servers) => {
                    if let Some(check) = self.checks.get_mut(&key) {
                        check.servers.extend(servers);
                    }
                }
                Err(error) => {
                    self.report(&key.1, port, &error);
                    if let Some(check) = self.checks.get_mut(&key) {
                        check.servers.clear();
                    }
                    self.unopened.insert(key);
                }
            }
        }
    }

    /// Listens on the addresses where nothing listens yet.
    fn listen(
        &self,
        (family, name): &(Family, ServiceName),
        check: &Check,
    ) -> Result<Vec<Server>, ListenError> {
        let is_open = |address| check.servers.iter().any(|server| server.address() == address);
        let addresses = self.addresses.get(*family).iter();
        let addresses = addresses.map(|address| SocketAddr::new(*address, check.port));
        addresses
            .filter(|address| !is_open(*address))
            .map(|address| {
                let listener = listen::bind(address, Wildcard::OwnFamily)?;
                let (name, health) = (name.clone(), Arc::clone(&self.health));
                let local_endpoints = Arc::clone(&check.local_endpoints);
                let connections = Arc::clone(&self.connections);
                Server::start_among(connections, listener, &self.runtime, move |_| {
                    let count = local_endpoints.load(Ordering::Relaxed);
                    let reply = answer(&name, count, health.healthy(Now::read()));
                    async move { reply }
                })
                .map_err(|source| ListenError::new(address, source))
            })
            .collect()
    }

    fn report(&self, name: &ServiceName, port: u16, error: &ListenError) {
        let note = format!(
            "node {} failed to start healthcheck {:?} on port {port}: {error}",
            self.node_name,
            name.as_str()
        );
        tracing::error!(service = name.as_str(), port, err = %error, "Failed to start healthcheck");
        self.recorder
            .record(Event::service_health_check_failed(name, note));
    }
}

fn wildcard(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// A link-local address means nothing without its interface, and no load balancer asks there.
fn can_be_bound(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => true,
        IpAddr::V6(address) => !address.is_unicast_link_local(),
    }
}

fn answer(name: &ServiceName, local_endpoints: u32, healthy: bool) -> Reply {
    let status = if local_endpoints != 0 && healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {:?},\n\t\t\"name\": {:?}\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}",
        name.namespace(),
        name.name(),
    );
    let mut reply = reply(status, JSON, body);
    reply.headers_mut().insert(
        "x-load-balancing-endpoint-weight",
        HeaderValue::from(local_endpoints),
    );
    reply
}
