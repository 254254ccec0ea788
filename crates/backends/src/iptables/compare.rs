//! From what was observed to what should be.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use ferry_host::iptables::{Chain, Saved, canon, same, target};
use ferry_model::{Plan, ServiceName, ServicePlan};

use super::diff::{Known, Written, tail_of};
use super::names::{self, Shared, Table, is_service_chain};
use super::ops::{DELETIONS, Edit, Ops, Owner, SharedOp};
use super::render::{Context, render_into, render_node};
use super::ruleset::{NodeRules, ServiceRules};

/// The way from what was observed to the plan, and what will be known once it has been gone.
pub(super) fn from_observed(observed: &Saved<'_>, plan: &Plan, context: &Context<'_>) -> (Ops, Known) {
    let mut comparison = Comparison {
        observed,
        ops: Ops::default(),
        wanted: vec![false; observed.chains(Table::Nat).count()],
    };
    let node = render_node(context);
    let mut counts = node.counts();
    comparison.node(&node);
    let mut shared: [Vec<(Owner, Vec<String>)>; 6] = Default::default();
    let mut rules = ServiceRules::default();
    for service in plan.services() {
        render_into(service, context, &mut rules);
        counts.add(rules.counts());
        let owner = Owner::Service(service.name.clone());
        for (all, own) in shared.iter_mut().zip(&mut rules.shared) {
            if !own.is_empty() {
                all.push((owner.clone(), std::mem::take(own)));
            }
        }
        rules
            .chains
            .iter()
            .for_each(|chain| comparison.service_chain(&owner, chain));
    }
    for (chain, rules) in Shared::ALL.into_iter().zip(shared) {
        comparison.shared_chain(chain, rules, tail_of(chain, &node));
    }
    let written = |service: &Arc<ServicePlan>| Written {
        plan: service.clone(),
        comments: context.comments,
    };
    let known = Known {
        revision: plan.revision(),
        node: plan.node().clone(),
        style: context.style,
        services: plan
            .services()
            .map(|service| (service.name.clone(), written(service)))
            .collect(),
        counts,
    };
    (comparison.finish(), known)
}

struct Comparison<'a> {
    observed: &'a Saved<'a>,
    ops: Ops,
    /// Observed chains of services that are asked for, by their place.
    wanted: Vec<bool>,
}

impl Comparison<'_> {
    fn node(&mut self, node: &NodeRules) {
        let Comparison { observed, ops, .. } = self;
        for (table, chain) in &node.chains {
            if !observed.holds(*table, &chain.name, &chain.rules) {
                ops.node_chains.push((*table, chain.clone()));
            }
        }
        let canaries = Table::ALL.map(|table| (table, names::CANARY));
        for (table, chain) in canaries
            .into_iter()
            .chain([(Table::Filter, names::KUBELET_FIREWALL)])
        {
            if observed.chain(table, chain).is_none() {
                ops.declared.push((table, chain));
            }
        }
        if let Some(rule) = &node.kubelet_firewall
            && !observed.contains(Table::Filter, names::KUBELET_FIREWALL, rule)
        {
            ops.appended
                .push((Table::Filter, names::KUBELET_FIREWALL, rule.clone()));
        }
        for jump in node.jumps {
            let rule = jump.rule();
            if !observed.contains(jump.table, jump.from, &rule) {
                ops.inserted.push((jump.table, jump.from, rule));
            }
        }
        self.old_jumps(node);
    }

    /// Ways into the filter table's KUBE-SERVICES that kube-proxy no longer has since 1.12 and 1.20.
    fn old_jumps(&mut self, node: &NodeRules) {
        for from in ["INPUT", "FORWARD", "OUTPUT"] {
            let current = node
                .jumps
                .iter()
                .filter(|jump| jump.table == Table::Filter && jump.from == from);
            let current: HashSet<String> = current.map(|jump| canon(&jump.rule())).collect();
            for rule in self.observed.chain(Table::Filter, from).unwrap_or_default() {
                let portals = rule.contains("\"kubernetes service portals\"");
                if portals && target(rule) == Some(names::SERVICES) && !current.contains(&canon(rule)) {
                    self.ops
                        .removed
                        .push((Table::Filter, from.to_owned(), (*rule).to_owned()));
                }
            }
        }
    }

    fn service_chain(&mut self, owner: &Owner, chain: Chain<'_>) {
        let place = self.observed.place(Table::Nat, chain.name);
        let held = place.is_some_and(|place| {
            self.wanted[place] = true;
            let found = self.observed.at(Table::Nat, place);
            found.len() == chain.count
                && found
                    .iter()
                    .zip(chain.rules())
                    .all(|(found, rule)| same(found, rule))
        });
        if !held {
            self.ops.push(owner, chain);
        }
    }

    /// What is left are chains of services that nothing asked for.
    fn finish(mut self) -> Ops {
        let chains = self.observed.chains(Table::Nat).zip(self.wanted);
        let stale = chains.filter(|(chain, wanted)| !wanted && is_service_chain(chain));
        self.ops.stale = stale.map(|(chain, _)| chain.to_owned()).collect();
        self.ops.stale.sort_unstable();
        self.ops
    }

    fn shared_chain(&mut self, chain: Shared, rules: Vec<(Owner, Vec<String>)>, tail: Vec<String>) {
        let found = self.observed.chain(chain.table(), chain.chain());
        *self.ops.shared_mut(chain) = match found.and_then(|found| edit(chain, found, &rules, &tail)) {
            Some(edit) => SharedOp::Edit(edit),
            None => SharedOp::Write { rules, tail },
        };
    }
}

/// Something that is not as it should be, in words, and the service that it belongs to, if any.
pub(super) type Difference = (String, Option<ServiceName>);

/// What is different where these operations are necessary.
pub(super) fn differences(ops: &Ops) -> Vec<Difference> {
    let place = |table: Table, chain: &str| format!("chain {chain} in table {}", table.as_str());
    let mut found: Vec<Difference> = Vec::new();
    found.extend(
        ops.node_chains
            .iter()
            .map(|(table, chain)| (place(*table, &chain.name), None)),
    );
    found.extend(
        ops.declared
            .iter()
            .map(|(table, chain)| (place(*table, chain), None)),
    );
    for chain in Shared::ALL {
        let place = place(chain.table(), chain.chain());
        match &ops.shared[chain as usize] {
            SharedOp::Write { .. } => found.push((place, None)),
            SharedOp::Edit(edit) => {
                found.extend(
                    edit.insert.iter().map(|(owner, rules)| {
                        (format!("{} {owner} in {place}", rules.len()), service(owner))
                    }),
                );
                if !edit.remove.is_empty() {
                    found.push((format!("{} foreign rules in {place}", edit.remove.len()), None));
                }
                if !edit.append.is_empty() {
                    found.push((format!("the last rules of {place}"), None));
                }
            }
        }
    }
    let rule = |table: Table, chain: &str, rule: &str| match target(rule)
        .filter(|to| to.starts_with(names::PREFIX))
    {
        Some(to) => format!("the jump from {chain} to {to} in table {}", table.as_str()),
        None => format!("a rule of {}", place(table, chain)),
    };
    let rules = ops.appended.iter().chain(&ops.inserted);
    found.extend(rules.map(|(table, chain, text)| (rule(*table, chain, text), None)));
    found.extend(
        ops.chains()
            .map(|(owner, chain)| (place(Table::Nat, chain.name), service(owner))),
    );
    found
}

fn service(owner: &Owner) -> Option<ServiceName> {
    match owner {
        Owner::Node => None,
        Owner::Service(name) => Some(name.clone()),
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
