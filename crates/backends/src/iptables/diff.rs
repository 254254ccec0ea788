//! From what we know we wrote to what should be.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use ferry_model::{Changed, Family, NodePlan, Plan, Revision, ServiceName, ServicePlan};

use super::chains::Chain;
use super::document::Owner;
use super::names::{self, Shared, Table, is_service_chain};
use super::ops::{DELETIONS, Edit, Ops, SharedOp, has_tail};
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
    let mut ops = Ops::default();
    let before = known.node.clone();
    let same_node = same_for_rules(&before, context);
    let changed: Vec<ServiceName> = match plan.changed_since(known.revision) {
        Changed::Services(names) if same_node => names.into_iter().cloned().collect(),
        Changed::Services(_) | Changed::Everything => all_names(known, plan),
    };
    let mut edits: [Edit; 6] = Default::default();
    for name in changed {
        let new = plan.service(&name);
        let old = known.services.get(&name);
        if same_node && old.map(|old| Arc::as_ptr(&old.plan)) == new.map(Arc::as_ptr) {
            continue;
        }
        let written = Context {
            node: &before,
            comments: old.is_some_and(|old| old.comments),
            ..*context
        };
        let old_rules = old
            .map(|old| render_service(&old.plan, &written))
            .unwrap_or_default();
        let new_rules = new.map(|new| render_service(new, context)).unwrap_or_default();
        replace_service(
            &Owner::Service(name.clone()),
            &old_rules,
            &new_rules,
            &mut ops,
            &mut edits,
            &mut known.counts,
        );
        match new {
            Some(new) => {
                known.services.insert(
                    name,
                    Written {
                        plan: new.clone(),
                        comments: context.comments,
                    },
                );
            }
            None => {
                known.services.remove(&name);
            }
        }
    }
    if !same_node {
        let old = render_node(&Context {
            node: &before,
            ..*context
        });
        replace_node(
            &old,
            render_node(context),
            &mut ops,
            &mut edits,
            &mut known.counts,
        );
    }
    for chain in Shared::ALL {
        let edit = std::mem::take(&mut edits[chain as usize]);
        *ops.shared_mut(chain) = match edit.remove.len() > DELETIONS {
            true => write_shared(chain, known, context),
            false => SharedOp::Edit(edit),
        };
    }
    known.revision = plan.revision();
    known.node = plan.node().clone();
    ops
}

fn same_for_rules(node: &Arc<NodePlan>, context: &Context<'_>) -> bool {
    let (family, now) = (context.family, context.node);
    std::ptr::eq(&raw const **node, now)
        || (node.masquerade_all == now.masquerade_all
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

fn replace_service(
    owner: &Owner,
    old: &ServiceRules,
    new: &ServiceRules,
    ops: &mut Ops,
    edits: &mut [Edit; 6],
    counts: &mut Counts,
) {
    counts.add(new.counts());
    counts.subtract(old.counts());
    for chain in Shared::ALL {
        edits[chain as usize].replace(chain, owner, old.shared(chain), new.shared(chain));
    }
    let had: HashMap<&str, Chain<'_>> = old.chains.iter().map(|chain| (chain.name, chain)).collect();
    let names: HashSet<&str> = new.chains.iter().map(|chain| chain.name).collect();
    let gone = old.chains.iter().filter(|chain| !names.contains(chain.name));
    ops.stale.extend(gone.map(|chain| chain.name.to_owned()));
    for chain in new
        .chains
        .iter()
        .filter(|chain| had.get(chain.name) != Some(chain))
    {
        ops.push(owner, chain);
    }
}

fn replace_node(old: &NodeRules, new: NodeRules, ops: &mut Ops, edits: &mut [Edit; 6], counts: &mut Counts) {
    counts.add(new.counts());
    counts.subtract(old.counts());
    for (table, chain) in new.chains {
        if !old.chains.iter().any(|(of, had)| *of == table && *had == chain) {
            ops.node_chains.push((table, chain));
        }
    }
    if let Some(rule) = new.kubelet_firewall.filter(|_| old.kubelet_firewall.is_none()) {
        ops.appended.push((Table::Filter, names::KUBELET_FIREWALL, rule));
    }
    if new.tail != old.tail {
        let edit = &mut edits[Shared::NatServices as usize];
        edit.remove
            .extend(old.tail.iter().map(|rule| (Owner::Node, rule.clone())));
        edit.append = new.tail;
    }
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
    match has_tail(chain) {
        true => node.tail.clone(),
        false => Vec::new(),
    }
}
