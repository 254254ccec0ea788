//! Who may come in through a door, and which endpoints are open to them: what the plan decides for a frontend, asked per
//! client.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::{Action, Actions, Allowed, Client, Frontend, Scope};
use ipnet::IpNet;

use super::balancer::Pools;

/// How clients that belong to this node are told from others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// Addresses of the node itself.
    pub(crate) node: BTreeSet<IpAddr>,
    /// Pods whose traffic counts as local.
    pub(crate) pods: Option<IpNet>,
}

impl Home {
    /// A host that talks to an address of its own does so from that address, unless told otherwise, so `destination`
    /// tells the node itself where its list of addresses is behind.
    fn client(&self, address: IpAddr, destination: impl FnOnce() -> Option<IpAddr>) -> Client {
        if self.pods.is_some_and(|pods| pods.contains(&address)) {
            Client::Pod
        } else if address.is_loopback() || self.node.contains(&address) || destination() == Some(address) {
            Client::Node
        } else {
            Client::Other
        }
    }
}

/// The rule of one door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) actions: Actions,
    /// Tells clients apart, where that matters.
    pub(crate) home: Option<Arc<Home>>,
    /// If given, only these may come; others are dropped.
    pub(crate) allowed: Option<Arc<Allowed>>,
}

impl Access {
    pub(crate) fn of(frontend: &Frontend, home: &Arc<Home>) -> Self {
        let tells_apart = frontend.actions.uniform().is_none();
        Access {
            actions: frontend.actions,
            home: tells_apart.then(|| Arc::clone(home)),
            allowed: frontend.allowed.clone(),
        }
    }

    /// The same for everyone.
    pub(crate) fn open(action: Action) -> Self {
        Access {
            actions: Actions::all(action),
            home: None,
            allowed: None,
        }
    }

    /// What a client gets.
    pub(crate) fn action(&self, client: IpAddr, destination: impl FnOnce() -> Option<IpAddr>) -> Action {
        let client = client.to_canonical();
        if self
            .allowed
            .as_ref()
            .is_some_and(|allowed| !allowed.contains(client))
        {
            return Action::Drop;
        }
        match &self.home {
            Some(home) => self.actions.of(home.client(client, destination)),
            None => self.actions.others,
        }
    }

    /// What each kind of client gets, a line each.
    pub(crate) fn describe(&self, pools: &Pools) -> Vec<String> {
        let words = |action: Action| match action {
            Action::Forward { scope, .. } => {
                let pool = match scope {
                    Scope::Cluster => &pools.cluster,
                    Scope::Local => &pools.local,
                };
                let pool: Vec<String> = pool.iter().map(ToString::to_string).collect();
                format!("forward to {}", pool.join(", "))
            }
            Action::Drop => "drop".to_owned(),
            Action::Reject | Action::NotOurs => "refuse".to_owned(),
        };
        let mut lines = Vec::new();
        if let Some(allowed) = &self.allowed {
            let sources: Vec<String> = allowed.networks().map(|net| net.to_string()).collect();
            lines.push(format!("only from {}", sources.join(", ")));
        }
        if self.actions.pods == self.actions.node && self.actions.uniform().is_none() {
            lines.push(format!("pods and the node: {}", words(self.actions.node)));
        } else if self.actions.uniform().is_none() {
            lines.push(format!("pods: {}", words(self.actions.pods)));
            lines.push(format!("the node: {}", words(self.actions.node)));
        }
        lines.push(words(self.actions.others));
        lines
    }

    /// The one action for every client, if there is one.
    pub(crate) fn uniform(&self) -> Option<Action> {
        let action = self.actions.uniform()?;
        (self.allowed.is_none() || action == Action::Drop).then_some(action)
    }
}
