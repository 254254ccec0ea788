//! Who may come in through a door, and which endpoints are open to them: the plan's verdict for one class of
//! frontends, asked per client.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_model::{Scope, Verdict};
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
    fn includes(&self, client: IpAddr) -> bool {
        client.is_loopback()
            || self.node.contains(&client)
            || self.pods.is_some_and(|pods| pods.contains(&client))
    }
}

/// The rule of one door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) verdict: Verdict,
    /// What clients of this node get, where that differs.
    pub(crate) at_home: Option<(Arc<Home>, Verdict)>,
    /// If any, only these may come; others are dropped. The node's own addresses count as given here only.
    pub(crate) sources: Vec<IpNet>,
}

impl Access {
    pub(crate) fn open(verdict: Verdict) -> Self {
        Access {
            verdict,
            at_home: None,
            sources: Vec::new(),
        }
    }

    /// What a client gets. A host that talks to an address of its own does so from that address, unless told
    /// otherwise, so `destination` tells the node itself where its list of addresses is behind.
    pub(crate) fn verdict(&self, client: IpAddr, destination: impl FnOnce() -> Option<IpAddr>) -> Verdict {
        let client = client.to_canonical();
        if !self.sources.is_empty() && !self.sources.iter().any(|net| net.contains(&client)) {
            return Verdict::Drop;
        }
        match &self.at_home {
            Some((home, verdict)) if home.includes(client) || destination() == Some(client) => *verdict,
            _ => self.verdict,
        }
    }

    /// What each kind of client gets, a line each.
    pub(crate) fn describe(&self, pools: &Pools) -> Vec<String> {
        let words = |verdict: Verdict| match verdict {
            Verdict::Forward(scope) => {
                let pool = match scope {
                    Scope::Cluster => &pools.cluster,
                    Scope::Local => &pools.local,
                };
                let pool: Vec<String> = pool.iter().map(ToString::to_string).collect();
                format!("forward to {}", pool.join(", "))
            }
            Verdict::Drop => "drop".to_owned(),
            Verdict::Reject => "refuse".to_owned(),
        };
        let mut lines = Vec::new();
        if !self.sources.is_empty() {
            let sources: Vec<String> = self.sources.iter().map(ToString::to_string).collect();
            lines.push(format!("only from {}", sources.join(", ")));
        }
        if let Some((_, verdict)) = &self.at_home {
            lines.push(format!("pods and the node: {}", words(*verdict)));
        }
        lines.push(words(self.verdict));
        lines
    }

    /// The one verdict for every client, if there is one.
    pub(crate) fn uniform(&self) -> Option<Verdict> {
        let same_at_home = self
            .at_home
            .as_ref()
            .is_none_or(|(_, verdict)| *verdict == self.verdict);
        (same_at_home && (self.sources.is_empty() || self.verdict == Verdict::Drop)).then_some(self.verdict)
    }
}
