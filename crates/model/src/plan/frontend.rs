//! Where traffic for a service port arrives, and what becomes of it there.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::Arc;

use ipnet::IpNet;

use crate::names::{Family, Protocol};

/// A place where traffic arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrontendKey {
    Address(IpAddr, u16, Protocol),
    NodePort(Family, u16, Protocol),
}

impl FrontendKey {
    pub fn family(&self) -> Family {
        match self {
            FrontendKey::Address(address, ..) => Family::of(*address),
            FrontendKey::NodePort(family, ..) => *family,
        }
    }

    /// Its address, unless it is a node port.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            FrontendKey::Address(address, ..) => Some(*address),
            FrontendKey::NodePort(..) => None,
        }
    }

    /// Its port, or node port.
    pub fn port(&self) -> u16 {
        match self {
            FrontendKey::Address(_, port, _) | FrontendKey::NodePort(_, port, _) => *port,
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrontendKey::Address(address, port, _) => write!(f, "{}", SocketAddr::new(*address, *port)),
            FrontendKey::NodePort(_, port, _) => write!(f, "node port {port}"),
        }
    }
}

/// What a frontend is to its service. Where services ask for the same address and port, the claim that comes first
/// here wins: a cluster IP is assigned by the API server, a load-balancer IP by a controller, and an external IP is
/// whatever a user wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrontendKind {
    ClusterIp,
    LoadBalancerIp,
    ExternalIp,
    /// At the node's addresses that answer node ports.
    NodePort,
    /// At its loopback addresses.
    LocalhostNodePort,
}

impl fmt::Display for FrontendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrontendKind::ClusterIp => "cluster IP",
            FrontendKind::LoadBalancerIp => "load-balancer IP",
            FrontendKind::ExternalIp => "external IP",
            FrontendKind::NodePort => "node port",
            FrontendKind::LocalhostNodePort => "node port on loopback",
        })
    }
}

/// A place where a service port is answered, with all that is decided about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    pub key: FrontendKey,
    pub kind: FrontendKind,
    /// An earlier frontend of the same port has the same address and decides.
    pub shadowed: bool,
    /// If given, others than these are dropped.
    pub allowed: Option<Arc<Allowed>>,
    pub actions: Actions,
}

/// The frontends of a service port. Nearly always there is one, which then lies in the port itself: another place in
/// memory for each port would cost more than the frontend does, to hold and to visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontends(Held);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    One(Frontend),
    Others(Box<[Frontend]>),
}

impl Default for Frontends {
    fn default() -> Self {
        Frontends(Held::Others(Box::default()))
    }
}

impl From<Frontend> for Frontends {
    fn from(frontend: Frontend) -> Self {
        Frontends(Held::One(frontend))
    }
}

impl From<Vec<Frontend>> for Frontends {
    fn from(mut frontends: Vec<Frontend>) -> Self {
        match frontends.pop() {
            Some(only) if frontends.is_empty() => only.into(),
            last => {
                frontends.extend(last);
                Frontends(Held::Others(frontends.into()))
            }
        }
    }
}

impl Deref for Frontends {
    type Target = [Frontend];

    fn deref(&self) -> &[Frontend] {
        match &self.0 {
            Held::One(frontend) => std::slice::from_ref(frontend),
            Held::Others(frontends) => frontends,
        }
    }
}

impl<'a> IntoIterator for &'a Frontends {
    type Item = &'a Frontend;
    type IntoIter = std::slice::Iter<'a, Frontend>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Who may use a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub ranges: Vec<IpNet>,
    /// Where the node is within the ranges: addresses that it may send from when it talks to itself.
    pub own_addresses: Vec<IpAddr>,
}

impl Allowed {
    pub fn contains(&self, client: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&client)) || self.own_addresses.contains(&client)
    }

    /// Everything that is allowed, as networks.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        let own = self.own_addresses.iter().map(|address| IpNet::from(*address));
        self.ranges.iter().copied().chain(own)
    }
}

/// Who sends. One that is a pod and the node at once, by its address, is a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod that is recognised as local.
    Pod,
    /// The node itself.
    Node,
    Other,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    Forward {
        scope: Scope,
        /// The endpoint sees the node's address in place of the client's.
        masquerade: bool,
    },
    /// There are endpoints, but none that this traffic may use: another node will do better, so stay silent.
    Drop,
    /// There is no endpoint anywhere: say so at once.
    Reject,
    /// The host treats it as if we were not there.
    NotOurs,
}

impl Action {
    /// The pool that it leads to.
    pub fn scope(self) -> Option<Scope> {
        match self {
            Action::Forward { scope, .. } => Some(scope),
            Action::Drop | Action::Reject | Action::NotOurs => None,
        }
    }

    pub fn masquerades(self) -> bool {
        match self {
            Action::Forward { masquerade, .. } => masquerade,
            Action::Drop | Action::Reject | Action::NotOurs => false,
        }
    }
}

/// Which pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    Cluster,
    Local,
}

/// What each kind of client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Actions {
    pub pods: Action,
    pub node: Action,
    pub others: Action,
}

impl Actions {
    /// The same for everyone.
    pub fn all(action: Action) -> Self {
        Actions {
            pods: action,
            node: action,
            others: action,
        }
    }

    pub fn of(&self, client: Client) -> Action {
        match client {
            Client::Pod => self.pods,
            Client::Node => self.node,
            Client::Other => self.others,
        }
    }

    /// Whether anybody is led to an endpoint.
    pub fn forward(&self) -> bool {
        [self.pods, self.node, self.others]
            .iter()
            .any(|action| action.scope().is_some())
    }

    /// The one action for everyone, if there is one.
    pub fn uniform(&self) -> Option<Action> {
        (self.pods == self.others && self.node == self.others).then_some(self.others)
    }
}
