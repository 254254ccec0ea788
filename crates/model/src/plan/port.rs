//! One port of a service in one family: its frontends, and the endpoints behind them.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::frontend::{Actions, Frontend, FrontendKey, FrontendKind, Frontends, Scope};
use crate::facts::TrafficPolicy;
use crate::names::{Family, PortName, Protocol};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    pub family: Family,
    pub name: PortName,
    pub port: u16,
    /// Where it is answered: cluster IP, external IPs, load-balancer IPs, node port, node port on loopback; in this
    /// order, and where two have the same address, the first decides.
    pub frontends: Frontends,
    pub internal_policy: TrafficPolicy,
    pub external_policy: TrafficPolicy,
    /// What happens to traffic from outside, if it is open to that at all: by a node port, a load-balancer IP or an
    /// external IP, served or not. The frontends have it too, each with its own exceptions.
    pub external: Option<Actions>,
    /// Whether the cluster has an endpoint that could serve it, reachable from here or not.
    pub has_endpoints: bool,
    pub affinity: Option<Duration>,
    /// Every known endpoint, usable or not, sorted by the text `ip:port` as kube-proxy does.
    pub endpoints: Box<[Endpoint]>,
}

impl PortPlan {
    pub fn protocol(&self) -> Protocol {
        self.name.protocol
    }

    /// The endpoints that traffic of a scope is spread over.
    pub fn pool(&self, scope: Scope) -> Pool<'_> {
        Pool {
            all: &self.endpoints,
            flag: match scope {
                Scope::Cluster => Endpoint::IN_CLUSTER_POOL,
                Scope::Local => Endpoint::IN_LOCAL_POOL,
            },
        }
    }

    /// The endpoints of either pool.
    pub fn reachable(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints
            .iter()
            .filter(|endpoint| endpoint.in_cluster_pool() || endpoint.in_local_pool())
    }

    /// The endpoints that established flows may go on using.
    pub fn serving(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.is_serving())
    }

    /// The frontends of a kind.
    pub fn frontends(&self, kind: FrontendKind) -> impl Iterator<Item = &Frontend> {
        self.frontends
            .iter()
            .filter(move |frontend| frontend.kind == kind)
    }

    /// The frontend that is its cluster IP, unless another service has that.
    pub fn cluster_ip(&self) -> Option<&Frontend> {
        self.frontends
            .first()
            .filter(|frontend| frontend.kind == FrontendKind::ClusterIp)
    }

    /// The addresses of the frontends of a kind.
    pub fn addresses(&self, kind: FrontendKind) -> impl Iterator<Item = IpAddr> {
        self.frontends(kind).filter_map(|frontend| frontend.key.address())
    }

    /// The node port, if it is answered.
    pub fn node_port(&self) -> Option<u16> {
        let last = self.frontends.iter().rev();
        let mut node_ports = last.take_while(|frontend| frontend.key.address().is_none());
        node_ports
            .find(|frontend| frontend.kind == FrontendKind::NodePort)
            .map(|frontend| frontend.key.port())
    }

    /// The frontends that decide, one for each place; node ports on loopback have a place of their own.
    pub fn deciding(&self) -> impl Iterator<Item = &Frontend> {
        self.frontends.iter().filter(|frontend| !frontend.shadowed)
    }

    /// Whether it is answered there. The numbers are compared first, because a service can have many addresses.
    pub(super) fn is_at(&self, key: &FrontendKey) -> bool {
        match key {
            FrontendKey::Address(address, port, protocol) => {
                (self.port, self.protocol()) == (*port, *protocol)
                    && self
                        .frontends
                        .iter()
                        .any(|frontend| frontend.key.address() == Some(*address))
            }
            FrontendKey::NodePort(_, port, protocol) => {
                self.protocol() == *protocol && self.node_port() == Some(*port)
            }
        }
    }

    /// Every place where this port is answered, each once.
    pub fn keys(&self) -> impl Iterator<Item = FrontendKey> {
        self.deciding()
            .filter(|frontend| frontend.kind != FrontendKind::LocalhostNodePort)
            .map(|frontend| frontend.key)
    }

    /// A Local internal policy that no local endpoint can serve, though others of the cluster could.
    pub fn lacks_local_internally(&self) -> bool {
        self.internal_policy == TrafficPolicy::Local && self.lacks_local()
    }

    /// The same for the external policy.
    pub fn lacks_local_externally(&self) -> bool {
        self.external_policy == TrafficPolicy::Local && self.lacks_local()
    }

    fn lacks_local(&self) -> bool {
        self.has_endpoints && self.pool(Scope::Local).is_empty()
    }
}

/// Endpoints to choose from, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Pool<'a> {
    all: &'a [Endpoint],
    flag: u8,
}

impl<'a> Pool<'a> {
    pub fn iter(self) -> impl Iterator<Item = &'a Endpoint> {
        self.all.iter().filter(move |endpoint| endpoint.is(self.flag))
    }

    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        self.iter().map(Endpoint::address)
    }

    pub fn is_empty(self) -> bool {
        self.iter().next().is_none()
    }
}

/// Twenty-two bytes, because a cluster has many: a `SocketAddr` alone would take 32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    ip: IpAddr,
    flags: u8,
    port: u16,
    weight: u16,
}

impl Endpoint {
    pub(super) const LOCAL: u8 = 1;
    pub(super) const READY: u8 = 2;
    pub(super) const SERVING: u8 = 4;
    pub(super) const TERMINATING: u8 = 8;
    pub(super) const IN_CLUSTER_POOL: u8 = 16;
    pub(super) const IN_LOCAL_POOL: u8 = 32;
    pub(super) const HAIRPIN: u8 = 64;

    pub(super) fn new(address: SocketAddr, flags: u8) -> Self {
        Endpoint {
            ip: address.ip(),
            flags,
            port: address.port(),
            weight: 1,
        }
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    /// Its share of its pool's traffic, relative to the others'. The same for all until a service can ask for more.
    pub fn weight(&self) -> u16 {
        self.weight
    }

    fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Runs on this node.
    pub fn is_local(&self) -> bool {
        self.is(Self::LOCAL)
    }

    pub fn is_ready(&self) -> bool {
        self.is(Self::READY)
    }

    pub fn is_serving(&self) -> bool {
        self.is(Self::SERVING)
    }

    pub fn is_terminating(&self) -> bool {
        self.is(Self::TERMINATING)
    }

    pub fn in_cluster_pool(&self) -> bool {
        self.is(Self::IN_CLUSTER_POOL)
    }

    pub fn in_local_pool(&self) -> bool {
        self.is(Self::IN_LOCAL_POOL)
    }

    /// Is masqueraded when it meets itself as a client: it would not take an answer from itself.
    pub fn hairpins(&self) -> bool {
        self.is(Self::HAIRPIN)
    }
}
