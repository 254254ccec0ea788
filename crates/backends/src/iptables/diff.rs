//! From what we know we wrote to what should be.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ferry_host::iptables::Chain;
use ferry_model::{Changed, Family, NodePlan, Plan, Revision, ServiceName, ServicePlan};

use super::names::{self, Shared, Table, is_service_chain};
use super::ops::{DELETIONS, Edit, Ops, Owner, SharedOp, has_tail};
use super::render::{Context, Style, render_node, render_service, render_shared};
use super::ruleset::{Counts, NodeRules, ServiceRules};

/// What we wrote: not the text, but what it was rendered from.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) revision: Revision,
    pub(super) node: Arc<NodePlan>,
    pub(super) style: Style,
    pub(super) services: BTreeMap<ServiceName, Written>,
    pub(super) counts: Counts,
}

/// A service as it was written.
#[derive(Clone, Debug)]
pub(super) struct Written {
    pub(super) plan: Arc<ServicePlan>,
    /// Whether its endpoints' rules have comments: kept as it was until something else changes.
    pub(super) comments: bool,
}

impl Known {
    /// Whether a service is as it was when it was written.
    pub(super) fn has(&self, service: &Arc<ServicePlan>) -> bool {
        self.services
            .get(&service.name)
            .is_some_and(|written| Arc::ptr_eq(&written.plan, service))
    }
}

/// The way from the known to the plan. `known` becomes what will be there once the way has been gone.
pub(super) fn from_known(known: &mut Known, plan: &Plan, context: &Context<'_>) -> Ops {
    let same_node = same_for_rules(&known.node, context);
    let changed: Vec<ServiceName> = match plan.changed_since(known.revision) {
        Changed::Services(names) if same_node => names.into_iter().cloned().collect(),
        Changed::Services(_) | Changed::Everything => all_names(known, plan),
    };
    let mut way = Way {
        before: known.node.clone(),
        known,
        context,
        ops: Ops::default(),
        edits: Default::default(),
    };
    for name in changed {
        let (old, new) = (way.known.services.get(&name), plan.service(&name));
        if !same_node || old.map(|old| Arc::as_ptr(&old.plan)) != new.map(Arc::as_ptr) {
            way.service(name, new);
        }
    }
    if !same_node {
        way.node();
    }
    way.known.revision = plan.revision();
    way.known.node = plan.node().clone();
    way.finish()
}

/// What has been found so far.
struct Way<'a> {
    known: &'a mut Known,
    /// What the rules that are known were rendered with.
    before: Arc<NodePlan>,
    context: &'a Context<'a>,
    ops: Ops,
    edits: [Edit; 6],
}

impl Way<'_> {
    fn service(&mut self, name: ServiceName, new: Option<&Arc<ServicePlan>>) {
        let old = self.known.services.get(&name);
        let written = Context {
            node: &self.before,
            comments: old.is_some_and(|old| old.comments),
            ..*self.context
        };
        let old_rules = old
            .map(|old| render_service(&old.plan, &written))
            .unwrap_or_default();
        let new_rules = new
            .map(|new| render_service(new, self.context))
            .unwrap_or_default();
        self.replace(&Owner::Service(name.clone()), &old_rules, &new_rules);
        let comments = self.context.comments;
        match new.cloned() {
            Some(plan) => drop(self.known.services.insert(name, Written { plan, comments })),
            None => drop(self.known.services.remove(&name)),
        }
    }

    fn replace(&mut self, owner: &Owner, old: &ServiceRules, new: &ServiceRules) {
        self.known.counts.add(new.counts());
        self.known.counts.subtract(old.counts());
        for chain in Shared::ALL {
            self.edits[chain as usize].replace(chain, owner, old.shared(chain), new.shared(chain));
        }
        let had: HashMap<&str, Chain<'_>> = old.chains.iter().map(|chain| (chain.name, chain)).collect();
        let names: HashSet<&str> = new.chains.iter().map(|chain| chain.name).collect();
        let gone = old.chains.iter().filter(|chain| !names.contains(chain.name));
        self.ops.stale.extend(gone.map(|chain| chain.name.to_owned()));
        for chain in new
            .chains
            .iter()
            .filter(|chain| had.get(chain.name) != Some(chain))
        {
            self.ops.push(owner, chain);
        }
    }

    fn node(&mut self) {
        let old = render_node(&Context {
            node: &self.before,
            ..*self.context
        });
        let new = render_node(self.context);
        self.known.counts.add(new.counts());
        self.known.counts.subtract(old.counts());
        for (table, chain) in new.chains {
            if !old.chains.iter().any(|(of, had)| *of == table && *had == chain) {
                self.ops.node_chains.push((table, chain));
            }
        }
        if let Some(rule) = new.kubelet_firewall.filter(|_| old.kubelet_firewall.is_none()) {
            let appended = (Table::Filter, names::KUBELET_FIREWALL, rule);
            self.ops.appended.push(appended);
        }
        if new.tail != old.tail {
            let edit = &mut self.edits[Shared::NatServices as usize];
            edit.remove
                .extend(old.tail.iter().map(|rule| (Owner::Node, rule.clone())));
            edit.append = new.tail;
        }
    }

    fn finish(mut self) -> Ops {
        for chain in Shared::ALL {
            let edit = std::mem::take(&mut self.edits[chain as usize]);
            *self.ops.shared_mut(chain) = if edit.remove.len() > DELETIONS {
                write_shared(chain, self.known, self.context)
            } else {
                SharedOp::Edit(edit)
            };
        }
        self.ops
    }
}

fn same_for_rules(node: &Arc<NodePlan>, context: &Context<'_>) -> bool {
    let (family, now) = (context.family, context.node);
    std::ptr::eq(&raw const **node, now)
        || (node.family(family).masqueraded == now.family(family).masqueraded
            && node.family(family).detector == now.family(family).detector
            && node.family(family).node_ports == now.family(family).node_ports
            && node.family(family).localhost_node_ports == now.family(family).localhost_node_ports)
}

fn all_names(known: &Known, plan: &Plan) -> Vec<ServiceName> {
    let gone = known.services.keys().filter(|name| plan.service(name).is_none());
    plan.services()
        .map(|service| &service.name)
        .chain(gone)
        .cloned()
        .collect()
}

/// All rules of a shared chain.
fn write_shared(chain: Shared, known: &Known, context: &Context<'_>) -> SharedOp {
    let rules = known
        .services
        .iter()
        .map(|(name, written)| {
            let mut rules = render_shared(&written.plan, context);
            (
                Owner::Service(name.clone()),
                std::mem::take(rules.shared_mut(chain)),
            )
        })
        .filter(|(_, rules)| !rules.is_empty())
        .collect();
    SharedOp::Write {
        rules,
        tail: tail_of(chain, &render_node(context)),
    }
}

/// How chains that others changed become what they are known to have been; `None` if that cannot be said without
/// looking. Works without an observation, which for large tables takes seconds.
pub(super) fn restoring(known: &Known, family: Family, chains: &BTreeSet<(Table, String)>) -> Option<Ops> {
    let context = |comments| Context {
        family,
        node: &known.node,
        style: known.style,
        comments,
    };
    let node = render_node(&context(true));
    let mut ops = Ops::default();
    let mut of_services = BTreeSet::new();
    for (table, name) in chains {
        let shared = Shared::ALL
            .into_iter()
            .find(|shared| shared.table() == *table && shared.chain() == name);
        let own = node
            .chains
            .iter()
            .find(|(of, chain)| of == table && chain.name == *name);
        match (shared, own) {
            (Some(shared), _) => *ops.shared_mut(shared) = write_shared(shared, known, &context(true)),
            (None, Some((_, chain))) => ops.node_chains.push((*table, chain.clone())),
            (None, None) if *table == Table::Nat && is_service_chain(name) => {
                of_services.insert(name.as_str());
            }
            (None, None) => return None,
        }
    }
    for (name, written) in &known.services {
        if of_services.is_empty() {
            break;
        }
        let rules = render_service(&written.plan, &context(written.comments));
        let owner = Owner::Service(name.clone());
        let changed = rules.chains.iter().filter(|chain| of_services.remove(chain.name));
        changed.for_each(|chain| ops.push(&owner, chain));
    }
    of_services.is_empty().then_some(ops)
}

pub(super) fn tail_of(chain: Shared, node: &NodeRules) -> Vec<String> {
    if has_tail(chain) {
        node.tail.clone()
    } else {
        Vec::new()
    }
}
