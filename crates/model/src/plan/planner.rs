//! Keeps a plan true to a snapshot, one event at a time.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::node::plan_node;
use super::service::plan_service;
use super::{Claims, NodePlan, Plan, Revision, ServicePlan, Tally};
use crate::facts::Service;
use crate::names::{Family, ServiceName};
use crate::options::PlanOptions;
use crate::snapshot::{Affected, Event, Snapshot};

/// How many changes the journal remembers; a backend that is further behind looks at everything, which is then
/// not much more work.
const JOURNAL_LENGTH: usize = 4096;

#[derive(Clone, Debug)]
pub struct Planner {
    options: PlanOptions,
    snapshot: Snapshot,
    plan: Plan,
}

/// What an update did to the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    pub node_changed: bool,
    pub replaced: Vec<Replaced>,
}

/// A service's plan before and after; `None` where there was or is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub old: Option<Arc<ServicePlan>>,
    pub new: Option<Arc<ServicePlan>>,
}

impl Planner {
    pub fn new(options: PlanOptions) -> Self {
        let snapshot = Snapshot::default();
        let plan = Plan::empty(plan_node(&options, &snapshot));
        Planner {
            options,
            snapshot,
            plan,
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    pub fn options(&self) -> &PlanOptions {
        &self.options
    }

    /// Takes changed facts and plans again what they touch, and only that.
    pub fn update(&mut self, events: impl IntoIterator<Item = Event>) -> Update {
        let mut node_affected = false;
        let mut services = BTreeSet::new();
        for event in events {
            match self.snapshot.apply(event) {
                Affected::Nothing => {}
                Affected::Services(names) => services.extend(names.into_iter().flatten()),
                Affected::Node => node_affected = true,
            }
        }
        let mut update = Update::default();
        if node_affected {
            let node = plan_node(&self.options, &self.snapshot);
            if node != *self.plan.node {
                services.extend(self.concerned(&node));
                self.plan.node = Arc::new(node);
                update.node_changed = true;
            }
        }
        while let Some(name) = services.pop_first() {
            self.replan(name, &mut services, &mut update.replaced);
        }
        update
    }

    /// The services whose plan can come out differently with another node plan.
    fn concerned(&self, node: &NodePlan) -> Vec<ServiceName> {
        let old = &self.plan.node;
        let of_family = |node: &NodePlan, family| {
            let own = node.family(family);
            (own.node_ip, own.masqueraded, own.localhost_node_ports)
        };
        let mut families = Family::BOTH.into_iter();
        let all = old.zone != node.zone
            || old.name != node.name
            || families.any(|family| of_family(old, family) != of_family(node, family));
        let own = |node: &NodePlan| -> BTreeSet<IpAddr> {
            let families = Family::BOTH.map(|family| node.family(family).addresses.clone());
            families.into_iter().flatten().collect()
        };
        let (before, after) = (own(old), own(node));
        let moved: BTreeSet<&IpAddr> = before.symmetric_difference(&after).collect();
        let is_at = |service: &Service| {
            let mut addresses = service.external_ips.iter().chain(&service.load_balancer_ips);
            addresses.any(|address| moved.contains(address))
        };
        let services = self.snapshot.services();
        let concerned = services.filter(|service| all || is_at(service));
        concerned.map(|service| service.name.clone()).collect()
    }

    fn replan(
        &mut self,
        name: ServiceName,
        disturbed: &mut BTreeSet<ServiceName>,
        replaced: &mut Vec<Replaced>,
    ) {
        let service = self.snapshot.service(&name);
        let mut new =
            service.map(|service| plan_service(service, self.snapshot.slices(&name), &self.plan.node));
        let old = self.plan.services.get(&name);
        self.plan
            .claims
            .settle(old.map(|old| &**old), new.as_mut(), disturbed);
        if old.map(|old| &**old) == new.as_ref() {
            return;
        }
        replaced.push(self.plan.replace(name, new.map(Arc::new)));
    }
}

impl Plan {
    fn empty(node: NodePlan) -> Self {
        Plan {
            node: Arc::new(node),
            services: Default::default(),
            claims: Claims::default(),
            tally: Tally::default(),
            revision: Revision::default(),
            journal: VecDeque::new(),
            journal_start: Revision::default(),
        }
    }

    fn replace(&mut self, name: ServiceName, new: Option<Arc<ServicePlan>>) -> Replaced {
        let old = match &new {
            Some(new) => self.services.insert(name.clone(), Arc::clone(new)),
            None => self.services.remove(&name),
        };
        if let Some(old) = &old {
            self.tally.subtract(old);
        }
        if let Some(new) = &new {
            self.tally.add(new);
        }
        self.revision.0 += 1;
        self.journal.push_back((self.revision, name));
        if self.journal.len() > JOURNAL_LENGTH
            && let Some((forgotten, _)) = self.journal.pop_front()
        {
            self.journal_start = forgotten;
        }
        Replaced { old, new }
    }
}
