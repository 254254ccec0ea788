//! From what is there to what should be: against what we know we wrote, or against what was observed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ferry_model::{Changed, Family, NodePlan, Plan, Revision, ServiceName, ServicePlan};

use super::canon::canon;
use super::document::Owner;
use super::names::{self, Shared, Table, is_service_chain};
use super::observe::{Observed, target};
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
            new_rules,
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
    new: ServiceRules,
    ops: &mut Ops,
    edits: &mut [Edit; 6],
    counts: &mut Counts,
) {
    counts.add(new.counts());
    counts.subtract(old.counts());
    for chain in Shared::ALL {
        edits[chain as usize].replace(chain, owner, old.shared(chain), new.shared(chain));
    }
    let old_chains: HashMap<&str, &[String]> = old
        .chains
        .iter()
        .map(|chain| (chain.name.as_str(), chain.rules.as_slice()))
        .collect();
    let names: HashSet<&str> = new.chains.iter().map(|chain| chain.name.as_str()).collect();
    let gone = old
        .chains
        .iter()
        .filter(|chain| !names.contains(chain.name.as_str()));
    ops.stale.extend(gone.map(|chain| chain.name.clone()));
    for chain in new.chains {
        if old_chains.get(chain.name.as_str()) != Some(&chain.rules.as_slice()) {
            ops.chains.push((owner.clone(), chain));
        }
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
        let changed = rules
            .chains
            .into_iter()
            .filter(|chain| of_services.remove(chain.name.as_str()));
        ops.chains
            .extend(changed.map(|chain| (Owner::Service(name.clone()), chain)));
    }
    of_services.is_empty().then_some(ops)
}

fn tail_of(chain: Shared, node: &NodeRules) -> Vec<String> {
    match has_tail(chain) {
        true => node.tail.clone(),
        false => Vec::new(),
    }
}

/// What was found different from what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) what: String,
    /// The service that it belongs to, if any.
    pub(super) service: Option<ServiceName>,
}

/// The way from what was observed to the plan, what will be known once it has been gone, and what was different.
pub(super) fn from_observed(
    observed: &Observed<'_>,
    plan: &Plan,
    context: &Context<'_>,
) -> (Ops, Known, Vec<Difference>) {
    let mut found = Comparison {
        observed,
        ops: Ops::default(),
        differences: Vec::new(),
        wanted: HashSet::new(),
    };
    let node = render_node(context);
    let mut known = Known {
        revision: plan.revision(),
        node: plan.node().clone(),
        style: context.style,
        services: BTreeMap::new(),
        counts: node.counts(),
    };
    found.node(&node);
    let mut shared: [Vec<(Owner, Vec<String>)>; 6] = Default::default();
    for service in plan.services() {
        let mut rules = render_service(service, context);
        known.counts.add(rules.counts());
        known.services.insert(
            service.name.clone(),
            Written {
                plan: service.clone(),
                comments: context.comments,
            },
        );
        let owner = Owner::Service(service.name.clone());
        for chain in Shared::ALL
            .into_iter()
            .filter(|chain| !rules.shared(*chain).is_empty())
        {
            shared[chain as usize].push((owner.clone(), rules.shared(chain).to_vec()));
        }
        for chain in std::mem::take(&mut rules.chains) {
            found.service_chain(&service.name, &owner, chain);
        }
    }
    for (chain, rules) in Shared::ALL.into_iter().zip(shared) {
        found.shared_chain(chain, rules, tail_of(chain, &node));
    }
    found.stale();
    (found.ops, known, found.differences)
}

struct Comparison<'a> {
    observed: &'a Observed<'a>,
    ops: Ops,
    differences: Vec<Difference>,
    wanted: HashSet<String>,
}

impl Comparison<'_> {
    fn different(&mut self, service: Option<&ServiceName>, what: String) {
        self.differences.push(Difference {
            what,
            service: service.cloned(),
        });
    }

    fn node(&mut self, node: &NodeRules) {
        for (table, chain) in &node.chains {
            if !self.observed.holds(*table, &chain.name, &chain.rules) {
                self.different(None, format!("chain {} in table {}", chain.name, table.as_str()));
                self.ops.node_chains.push((*table, chain.clone()));
            }
        }
        for table in Table::ALL {
            if self.observed.chain(table, names::CANARY).is_none() {
                self.different(
                    None,
                    format!("chain {} in table {}", names::CANARY, table.as_str()),
                );
                self.ops.declared.push((table, names::CANARY));
            }
        }
        if self
            .observed
            .chain(Table::Filter, names::KUBELET_FIREWALL)
            .is_none()
        {
            self.different(None, format!("chain {} in table filter", names::KUBELET_FIREWALL));
            self.ops.declared.push((Table::Filter, names::KUBELET_FIREWALL));
        }
        if let Some(rule) = &node.kubelet_firewall
            && !self
                .observed
                .contains(Table::Filter, names::KUBELET_FIREWALL, rule)
        {
            self.different(
                None,
                format!("a rule of chain {} in table filter", names::KUBELET_FIREWALL),
            );
            self.ops
                .appended
                .push((Table::Filter, names::KUBELET_FIREWALL, rule.clone()));
        }
        for jump in node.jumps {
            let rule = jump.rule();
            if !self.observed.contains(jump.table, jump.from, &rule) {
                self.different(
                    None,
                    format!(
                        "the jump from {} to {} in table {}",
                        jump.from,
                        jump.to,
                        jump.table.as_str()
                    ),
                );
                self.ops.inserted.push((jump.table, jump.from, rule));
            }
        }
        self.old_jumps(node);
    }

    /// Ways into the filter table's KUBE-SERVICES that kube-proxy no longer has since 1.12 and 1.20.
    fn old_jumps(&mut self, node: &NodeRules) {
        for from in ["INPUT", "FORWARD", "OUTPUT"] {
            let current: HashSet<String> = node
                .jumps
                .iter()
                .filter(|jump| jump.table == Table::Filter && jump.from == from)
                .map(|jump| canon(&jump.rule()))
                .collect();
            for rule in self.observed.chain(Table::Filter, from).unwrap_or_default() {
                let ours =
                    target(rule) == Some(names::SERVICES) && rule.contains("\"kubernetes service portals\"");
                if ours && !current.contains(&canon(rule)) {
                    self.ops
                        .removed
                        .push((Table::Filter, from.to_owned(), (*rule).to_owned()));
                }
            }
        }
    }

    fn service_chain(&mut self, service: &ServiceName, owner: &Owner, chain: super::ruleset::Chain) {
        if !self.observed.holds(Table::Nat, &chain.name, &chain.rules) {
            self.different(
                Some(service),
                format!("chain {} of service {service} in table nat", chain.name),
            );
            self.wanted.insert(chain.name.clone());
            self.ops.chains.push((owner.clone(), chain));
        } else {
            self.wanted.insert(chain.name);
        }
    }

    fn shared_chain(&mut self, chain: Shared, rules: Vec<(Owner, Vec<String>)>, tail: Vec<String>) {
        let (table, name) = (chain.table(), chain.chain());
        let found = self.observed.chain(table, name);
        let op = match found.and_then(|found| edit(chain, found, &rules, &tail)) {
            Some(edit) => SharedOp::Edit(edit),
            None => SharedOp::Write { rules, tail },
        };
        let place = format!("chain {name} in table {}", table.as_str());
        match &op {
            SharedOp::Write { .. } => self.different(None, place),
            SharedOp::Edit(edit) => {
                for (owner, rules) in &edit.insert {
                    let Owner::Service(service) = owner else { continue };
                    let what = format!("{} rules of service {service} in {place}", rules.len());
                    self.differences.push(Difference {
                        what,
                        service: Some(service.clone()),
                    });
                }
                if !edit.remove.is_empty() {
                    self.different(None, format!("{} foreign rules in {place}", edit.remove.len()));
                }
                if !edit.append.is_empty() {
                    self.different(None, format!("the last rules of {place}"));
                }
            }
        }
        *self.ops.shared_mut(chain) = op;
    }

    fn stale(&mut self) {
        let stale = self.observed.chains(Table::Nat).into_iter();
        let stale = stale.filter(|chain| is_service_chain(chain) && !self.wanted.contains(*chain));
        self.ops.stale = stale.map(str::to_owned).collect();
    }
}

/// How a shared chain becomes what it should be by a few rules; `None` if it has to be written again. The order of
/// services is free, that of a service's node port rules is not, and the tail comes last.
fn edit(chain: Shared, found: &[&str], rules: &[(Owner, Vec<String>)], tail: &[String]) -> Option<Edit> {
    let mut places: HashMap<String, VecDeque<usize>> = HashMap::new();
    for (at, rule) in found.iter().enumerate() {
        places.entry(canon(rule)).or_default().push_back(at);
    }
    let mut used = vec![false; found.len()];
    let mut take = |rule: &str| {
        let at = places.get_mut(&canon(rule)).and_then(VecDeque::pop_front);
        at.inspect(|at| used[*at] = true)
    };
    let mut edit = Edit::default();
    let mut last = None;
    for (owner, rules) in rules {
        let at: Vec<Option<usize>> = rules.iter().map(|rule| take(rule)).collect();
        last = last.max(at.iter().flatten().max().copied());
        let missing: Vec<String> = rules
            .iter()
            .zip(&at)
            .filter(|(_, at)| at.is_none())
            .map(|(rule, _)| rule.clone())
            .collect();
        let partly = !missing.is_empty() && missing.len() < rules.len();
        if chain == Shared::NatNodePorts && (partly || !at.iter().flatten().is_sorted()) {
            return None;
        }
        if !missing.is_empty() {
            edit.insert.push((owner.clone(), missing));
        }
    }
    for rule in tail {
        match take(rule) {
            Some(at) if last < Some(at) && edit.append.is_empty() => last = Some(at),
            Some(_) => return None,
            None => edit.append.push(rule.clone()),
        }
    }
    let extra = found.iter().zip(used).filter(|(_, used)| !used);
    edit.remove = extra.map(|(rule, _)| (Owner::Node, (*rule).to_owned())).collect();
    (edit.remove.len() <= DELETIONS).then_some(edit)
}
