//! THE decision: which frontends exist, who may use each, which endpoints they lead to, and what happens where there
//! are none.
//!
//! Pure, and the only place that reads [`Policy`]: what differs by mode is decided here, and who reads a plan only
//! looks it up. A [`Plan`] is updated in place by a [`Planner`], one service at a time; services that did not change
//! keep their `Arc`, and a journal tells a backend what changed since it last looked, so its work follows the change.

mod claims;
mod endpoints;
mod frontend;
mod node;
mod planner;
mod port;
mod service;
mod tally;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use crate::facts::{ObjectRef, ServiceOptions, Skipped};
use crate::names::{Family, PerFamily, ServiceName};

pub use claims::Contest;
pub(crate) use endpoints::{Topology, is_draining, merge, topology};
pub use frontend::{Action, Actions, Allowed, Client, Frontend, FrontendKey, FrontendKind, Frontends, Scope};
pub use node::{Detector, Masqueraded, NodeFamily, NodePlan, NodePorts};
pub use planner::{Planner, Replaced, Update};
pub use port::{Endpoint, Pool, PortPlan};
pub use tally::{FamilyTally, Tally};

use claims::{Claims, Lost};
use service::MAX_FRONTENDS;

/// What the node should do with packets, all of it.
#[derive(Clone, Debug)]
pub struct Plan {
    node: Arc<NodePlan>,
    services: BTreeMap<ServiceName, Arc<ServicePlan>>,
    claims: Claims,
    tally: Tally,
    revision: Revision,
    journal: VecDeque<(Revision, ServiceName)>,
    /// Changes up to here may be missing from the journal.
    journal_start: Revision,
}

/// A point in a plan's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(u64);

/// The services that differ from an earlier revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed<'a> {
    /// The earlier revision is too long ago.
    Everything,
    /// These only, in order, each once; one that is not in the plan is gone.
    Services(Vec<&'a ServiceName>),
}

impl Plan {
    pub fn node(&self) -> &Arc<NodePlan> {
        &self.node
    }

    /// Every service, in the order of its name.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &Arc<ServicePlan>> {
        self.services.values()
    }

    pub fn service(&self, name: &ServiceName) -> Option<&Arc<ServicePlan>> {
        self.services.get(name)
    }

    /// Every service port of a family, in the order of the services' names.
    pub fn ports(&self, family: Family) -> impl Iterator<Item = &PortPlan> {
        self.services().flat_map(move |service| service.ports(family))
    }

    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// What a backend that applied `since` has to look at. The node's part is apart: compare [`Plan::node`].
    pub fn changed_since(&self, since: Revision) -> Changed<'_> {
        if since < self.journal_start {
            return Changed::Everything;
        }
        let from = self.journal.partition_point(|(revision, _)| *revision <= since);
        let mut names: Vec<&ServiceName> = self.journal.range(from..).map(|(_, name)| name).collect();
        names.sort();
        names.dedup();
        Changed::Services(names)
    }

    /// The service port that answers at a frontend.
    pub fn port_at(&self, key: &FrontendKey) -> Option<&PortPlan> {
        let service = self.services.get(self.claims.owner(key)?)?;
        service.ports(key.family()).find(|port| port.is_at(key))
    }

    /// Whether an address is some service's cluster IP.
    pub fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.claims.is_cluster_ip(address)
    }

    /// Whether some service is served at an address.
    pub fn is_service_address(&self, address: IpAddr) -> bool {
        self.claims.is_service_address(address)
    }

    /// Frontends that a service asks for and another one has; of each service the first few.
    pub fn contests(&self) -> impl Iterator<Item = Contest> {
        let losers = self.claims.losers().filter_map(|name| self.services.get(name));
        let lost = losers.flat_map(|service| service.lost.iter().take(Contest::TOLD));
        lost.filter_map(|lost| Some(lost.to(&self.port_at(&lost.key)?.name)))
    }

    /// What is not served because another service has it, or because a service asks for too much.
    pub fn skipped(&self) -> Vec<Skipped> {
        let untold = self.claims.losers().filter_map(|name| self.services.get(name));
        let untold = untold.filter_map(|service| service.untold());
        let contests = self.contests().map(|contest| contest.skipped());
        contests.chain(untold).collect()
    }
}

/// One service, all ports, both families.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePlan {
    pub name: ServiceName,
    /// In the order of family, port name and protocol.
    pub ports: Vec<PortPlan>,
    pub health_check: Option<HealthCheck>,
    pub options: ServiceOptions,
    /// When the service was made: of two that ask for the same, the older one gets it.
    created: Option<i64>,
    /// Frontends that it asks for and another service, or another of its ports, has.
    lost: Vec<Lost>,
    /// How many frontends it asks for beyond what one service may have.
    excess: usize,
}

impl ServicePlan {
    pub fn ports(&self, family: Family) -> impl Iterator<Item = &PortPlan> {
        self.ports.iter().filter(move |port| port.family == family)
    }

    /// What else of it is not served, beside the contests that are told one by one.
    fn untold(&self) -> Option<Skipped> {
        let more = self.lost.len().saturating_sub(Contest::TOLD) + self.excess;
        (more > 0).then(|| Skipped {
            object: ObjectRef::Service(self.name.clone()),
            part: None,
            reason: format!(
                "{more} more of its frontends are not served: another service has them, or there are more than \
                 {MAX_FRONTENDS}"
            ),
        })
    }
}

/// Where load balancers ask whether this node should get traffic of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub port: u16,
    /// Ready endpoints on this node, by distinct address; `None` where the service has no cluster IP of the family.
    pub local_endpoints: PerFamily<Option<u32>>,
}
