//! Keeps a plan true to a snapshot, one event at a time.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::node::plan_node;
use super::service::plan_service;
use super::{Claims, NodePlan, Plan, Revision, ServicePlan, Tally};
use crate::names::ServiceName;
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
                if concerns_services(&self.plan.node, &node) {
                    services.extend(self.snapshot.services().map(|service| service.name.clone()));
                }
                self.plan.node = Arc::new(node);
                update.node_changed = true;
            }
        }
        while let Some(name) = services.pop_first() {
            self.replan(name, &mut services, &mut update.replaced);
        }
        update
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

/// Whether planning a service can come out differently with the other node plan.
fn concerns_services(old: &NodePlan, new: &NodePlan) -> bool {
    let node_ips = |node: &NodePlan| (node.families.v4.node_ip, node.families.v6.node_ip);
    old.zone != new.zone || old.name != new.name || node_ips(old) != node_ips(new)
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
