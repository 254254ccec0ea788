//! Whatever happened before, the tables end up as they would have been written at once; every document on the way is
//! accepted and leaves no jump into nothing.

use std::sync::Arc;
use std::time::Duration;

use ferry_host::iptables::Saved;
use ferry_model::*;
use proptest::prelude::*;

use super::super::compare::{differences, from_observed};
use super::super::diff::{Known, from_known, restoring};
use super::super::names::{Shared, Table};

use super::super::ops::{Ops, SharedOp};
use super::super::render::Context;
use super::STYLE;
use super::facts::{add, add_slice, ip, options, planner, service, slice};
use super::render;
use super::simulated::Tables;

const FAMILY: Family = Family::V4;

fn context(plan: &Plan, comments: bool) -> Context<'_> {
    Context {
        family: FAMILY,
        node: plan.node(),
        style: STYLE,
        comments,
    }
}

fn fresh(plan: &Plan) -> Tables {
    let mut tables = Tables::default();
    tables.restore(&render(plan, FAMILY)).unwrap();
    tables
}

fn go(tables: &mut Tables, ops: &Ops, limit: usize) {
    for document in ops.documents(limit) {
        tables
            .restore(&document.text())
            .unwrap_or_else(|why| panic!("{why}\nin\n{}", document.text()));
    }
}

fn observe(tables: &mut Tables, plan: &Plan, limit: usize) -> Known {
    let saved = tables.save();
    let (ops, known) = from_observed(&Saved::parse(&saved), plan, &context(plan, true));
    go(tables, &ops, limit);
    known
}

fn check(tables: &Tables, plan: &Plan) {
    assert_eq!(tables.canonical().save(), fresh(plan).canonical().save());
    assert_eq!(tables.unreferenced(), Vec::<&str>::new());
    assert!(tables.node_ports_in_order() && tables.ends_in_node_ports());
}

/// One of a few services, in one of many shapes.
#[derive(Clone, Debug)]
struct Step {
    which: u8,
    gone: bool,
    endpoints: Vec<u8>,
    local: usize,
    external: bool,
    node_port: bool,
    balanced: bool,
    ranges: bool,
    affinity: bool,
    local_internal: bool,
    local_external: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let shape = (any::<[bool; 7]>(), prop::collection::vec(1u8..6, 0..4), 0usize..3);
    (0u8..4, prop::bool::weighted(0.2), shape).prop_map(|(which, gone, (bits, endpoints, local))| Step {
        which,
        gone,
        endpoints,
        local,
        external: bits[0],
        node_port: bits[1],
        balanced: bits[2],
        ranges: bits[3],
        affinity: bits[4],
        local_internal: bits[5],
        local_external: bits[6],
    })
}

impl Step {
    fn events(&self) -> Vec<Event> {
        let which = self.which;
        let mut shaped = service(
            "ns",
            &format!("svc{which}"),
            &format!("172.30.0.{}", which + 1),
            "http",
            80,
        );
        if self.gone {
            return vec![Event::Service(shaped.name.clone(), None)];
        }
        shaped.kind = ServiceType::LoadBalancer;
        if self.external {
            shaped.external_ips = vec![ip(&format!("192.168.99.{which}"))];
        }
        shaped.ports[0].node_port = self.node_port.then_some(30000 + u16::from(which));
        if self.balanced {
            shaped.load_balancer_ips = vec![ip(&format!("1.2.3.{which}"))];
        }
        if self.ranges {
            shaped.source_ranges = vec!["192.168.0.0/24".parse().unwrap()];
        }
        shaped.affinity = self.affinity.then_some(Duration::from_secs(60));
        let policy = |local| {
            if local {
                TrafficPolicy::Local
            } else {
                TrafficPolicy::Cluster
            }
        };
        shaped.internal_policy = policy(self.local_internal);
        shaped.external_policy = policy(self.local_external);
        let addresses: Vec<String> = self
            .endpoints
            .iter()
            .map(|host| format!("10.0.{which}.{host}"))
            .collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        vec![
            add_slice(slice(&shaped, &addresses, 8080, self.local)),
            add(shaped),
        ]
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_where_a_fresh_start_would(
        start in prop::collection::vec(step(), 0..5),
        rounds in prop::collection::vec(prop::collection::vec(step(), 0..3), 1..5),
        limit in prop::sample::select(vec![1, 3, 1000]),
    ) {
        let mut planner = planner();
        planner.update(start.iter().flat_map(Step::events));
        let mut tables = Tables::default();
        let mut known = observe(&mut tables, planner.plan(), limit);
        check(&tables, planner.plan());
        for round in rounds {
            planner.update(round.iter().flat_map(Step::events));
            let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
            go(&mut tables, &ops, limit);
            check(&tables, planner.plan());
        }
        prop_assert_eq!(known.counts, observe(&mut tables.clone(), planner.plan(), limit).counts);
    }

    #[test]
    fn whatever_is_found_becomes_what_is_planned(
        before in prop::collection::vec(step(), 0..5),
        after in prop::collection::vec(step(), 0..5),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 0..4),
        limit in prop::sample::select(vec![1, 1000]),
    ) {
        let (mut old, mut new) = (planner(), planner());
        old.update(before.iter().flat_map(Step::events));
        new.update(after.iter().flat_map(Step::events));
        let mut tables = fresh(old.plan());
        let saved = tables.save();
        let observed = Saved::parse(&saved);
        let mut rules: Vec<(Table, &str)> = Vec::new();
        for table in Table::ALL {
            let filled = observed.chains(table).filter(|c| !observed.chain(table, c).unwrap().is_empty());
            rules.extend(filled.map(|chain| (table, chain)));
        }
        for (at, foreign) in damage {
            let (table, chain) = at.get(&rules);
            let rules = tables.chain_mut(*table, chain);
            if foreign && chain.starts_with("KUBE-") {
                rules.insert(0, "-s 10.9.9.9 -j RETURN".into());
            } else {
                rules.pop();
            }
        }
        tables.chain_mut(Table::Filter, "KUBE-FIREWALL").retain(|rule| !rule.contains("10.9.9.9"));
        observe(&mut tables, new.plan(), limit);
        let want = fresh(new.plan()).canonical();
        let mut got = tables.canonical();
        for table in Table::ALL {
            // A jump that was removed comes back at the head: order among jumps follows what was there.
            for base in ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"] {
                got.chain_mut(table, base).sort_unstable();
            }
        }
        let mut want = want;
        for table in Table::ALL {
            for base in ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"] {
                want.chain_mut(table, base).sort_unstable();
            }
        }
        prop_assert_eq!(got.save(), want.save());
    }
}

fn two_services() -> Planner {
    let mut planner = planner();
    for at in 0..2 {
        let web = service(
            "ns",
            &format!("svc{at}"),
            &format!("172.30.0.{}", at + 1),
            "http",
            80,
        );
        let hosts = [format!("10.0.{at}.1"), format!("10.0.{at}.2")];
        planner.update([add_slice(slice(&web, &[&hosts[0], &hosts[1]], 8080, 0)), add(web)]);
    }
    planner
}

fn lines(ops: &Ops) -> Vec<String> {
    ops.documents(1000)
        .flat_map(|document| document.text().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

#[test]
fn identical_tables_are_left_untouched() {
    let planner = two_services();
    let saved = fresh(planner.plan()).save();
    let (ops, _) = from_observed(
        &Saved::parse(&saved),
        planner.plan(),
        &context(planner.plan(), true),
    );
    assert_eq!(lines(&ops), Vec::<String>::new());
    assert_eq!(differences(&ops), []);
}

#[test]
fn services_in_another_order_are_identical_too() {
    let planner = two_services();
    let mut tables = fresh(planner.plan());
    tables.chain_mut(Table::Nat, "KUBE-SERVICES").swap(0, 1);
    let saved = tables.save();
    let (ops, _) = from_observed(
        &Saved::parse(&saved),
        planner.plan(),
        &context(planner.plan(), true),
    );
    assert_eq!(lines(&ops), Vec::<String>::new());
}

#[test]
fn a_replaced_endpoint_touches_its_chains_and_nothing_else() {
    let mut planner = two_services();
    let mut tables = Tables::default();
    let mut known = observe(&mut tables, planner.plan(), 1000);
    let web = service("ns", "svc0", "172.30.0.1", "http", 80);
    planner.update([add_slice(slice(&web, &["10.0.0.1", "10.0.0.9"], 8080, 0))]);
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
    let lines = lines(&ops);
    assert_eq!(
        lines.iter().filter(|line| line.starts_with(":KUBE-SVC-")).count(),
        1
    );
    assert_eq!(
        lines.iter().filter(|line| line.starts_with(":KUBE-SEP-")).count(),
        2,
        "the new one and the old one"
    );
    assert_eq!(
        lines
            .iter()
            .filter(|line| line.starts_with("-X KUBE-SEP-"))
            .count(),
        1
    );
    assert!(
        !lines
            .iter()
            .any(|line| line.contains("KUBE-SERVICES") || line.contains("*filter")),
        "{lines:#?}"
    );
    go(&mut tables, &ops, 1000);
    check(&tables, planner.plan());
}

#[test]
fn a_new_service_is_one_line_in_the_shared_chain() {
    let mut planner = two_services();
    let mut known = observe(&mut Tables::default(), planner.plan(), 1000);
    let web = service("ns", "svc9", "172.30.0.9", "http", 80);
    planner.update([add_slice(slice(&web, &["10.0.9.1"], 8080, 0)), add(web.clone())]);
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
    let inserted: Vec<String> = lines(&ops)
        .into_iter()
        .filter(|line| line.contains(" KUBE-SERVICES "))
        .collect();
    assert_eq!(inserted.len(), 1);
    assert!(inserted[0].starts_with("-I KUBE-SERVICES -m comment"));
    planner.update([Event::Service(web.name, None)]);
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
    let removed: Vec<String> = lines(&ops)
        .into_iter()
        .filter(|line| line.contains(" KUBE-SERVICES "))
        .collect();
    assert_eq!(removed.len(), 1);
    assert!(removed[0].starts_with("-D KUBE-SERVICES -m comment"));
}

#[test]
fn nothing_changed_means_nothing_is_written() {
    let planner = two_services();
    let mut known = observe(&mut Tables::default(), planner.plan(), 1000);
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
    assert_eq!(ops.documents(1000).count(), 0);
}

#[test]
fn crossing_into_a_large_cluster_rewrites_only_what_changes() {
    let mut planner = two_services();
    let mut known = observe(&mut Tables::default(), planner.plan(), 1000);
    let web = service("ns", "svc0", "172.30.0.1", "http", 80);
    planner.update([add_slice(slice(&web, &["10.0.0.1", "10.0.0.9"], 8080, 0))]);
    let large = from_known(&mut known, planner.plan(), &context(planner.plan(), false));
    let written: std::collections::BTreeSet<String> =
        large.chains().map(|(owner, _)| owner.to_string()).collect();
    assert_eq!(written.len(), 1, "{written:?}");
    planner.update([add_slice(slice(&web, &["10.0.0.1"], 8080, 0))]);
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), false));
    let kept = ops
        .chains()
        .filter(|(_, chain)| chain.name.starts_with("KUBE-SEP-"))
        .count();
    assert_eq!(
        kept, 0,
        "the endpoint that stays is known to have no comments already"
    );
}

#[test]
fn addresses_of_the_node_matter_only_where_rules_name_them() {
    let more = |addresses: &[&str]| {
        Event::Host(Arc::new(Host {
            addresses: addresses.iter().map(|address| ip(address)).collect(),
        }))
    };
    let only = vec![NodePortAddress::Cidr("192.168.0.0/16".parse().unwrap())];
    for (node_port_addresses, writes) in [(vec![], false), (only, true)] {
        let mut planner = Planner::new(PlanOptions {
            node_port_addresses,
            ..options()
        });
        planner.update([more(&["127.0.0.1", "192.168.0.2"])]);
        let mut tables = Tables::default();
        let mut known = observe(&mut tables, planner.plan(), 1000);
        planner.update([more(&["127.0.0.1", "192.168.0.2", "192.168.7.7"])]);
        let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
        assert_eq!(ops.documents(1000).next().is_some(), writes);
        go(&mut tables, &ops, 1000);
        check(&tables, planner.plan());
    }
}

#[test]
fn many_removals_write_the_chain_again() {
    let mut planner = planner();
    let names: Vec<String> = (0..100).map(|at| format!("svc{at:03}")).collect();
    let each = |at: usize| service("ns", &names[at], &format!("172.30.0.{}", at + 1), "http", 80);
    planner
        .update((0..100).flat_map(|at| [add_slice(slice(&each(at), &["10.0.0.1"], 8080, 0)), add(each(at))]));
    let mut tables = Tables::default();
    let mut known = observe(&mut tables, planner.plan(), 1000);
    planner.update((0..90).map(|at| Event::Service(each(at).name, None)));
    let ops = from_known(&mut known, planner.plan(), &context(planner.plan(), true));
    assert!(matches!(
        ops.shared[Shared::NatServices as usize],
        SharedOp::Write { .. }
    ));
    go(&mut tables, &ops, 1000);
    check(&tables, planner.plan());
}

#[test]
fn leftovers_of_old_releases_go() {
    let planner = two_services();
    let mut tables = fresh(planner.plan());
    let service_chain = tables.chain(Table::Nat, "KUBE-SERVICES")[0]
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned();
    tables
        .chain_mut(Table::Nat, "KUBE-XLB-AAAAAAAAAAAAAAAA")
        .push(format!("-s 10.0.0.0/8 -j {service_chain}"));
    tables
        .chain_mut(Table::Nat, "KUBE-SVC-OLDOLDOLDOLDOLDO")
        .push("-j KUBE-XLB-AAAAAAAAAAAAAAAA".into());
    tables
        .chain_mut(Table::Nat, "KUBE-MARK-DROP")
        .push("-j MARK --set-xmark 0x8000/0x8000".into());
    let old = [
        "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
        "-m conntrack --ctstate NEW -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    ];
    tables
        .chain_mut(Table::Filter, "INPUT")
        .extend(old.map(str::to_owned));
    tables.chain_mut(Table::Filter, "OUTPUT").push(old[0].to_owned());
    observe(&mut tables, planner.plan(), 1000);
    assert_eq!(
        tables.chain(Table::Nat, "KUBE-MARK-DROP").len(),
        1,
        "the kubelet's"
    );
    let mut want = fresh(planner.plan());
    want.chain_mut(Table::Nat, "KUBE-MARK-DROP")
        .push("-j MARK --set-xmark 0x8000/0x8000".into());
    assert_eq!(tables.canonical().save(), want.canonical().save());
}

#[test]
fn chains_that_others_changed_are_restored_without_looking() {
    let planner = two_services();
    let mut tables = Tables::default();
    let known = observe(&mut tables, planner.plan(), 1000);
    let whole = tables.clone();
    let service_chain = whole.chain(Table::Nat, "KUBE-SERVICES")[0]
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned();
    let broken = [
        (Table::Nat, "KUBE-SERVICES"),
        (Table::Nat, "KUBE-MARK-MASQ"),
        (Table::Filter, "KUBE-FORWARD"),
        (Table::Nat, service_chain.as_str()),
    ];
    let chains = broken.map(|(table, chain)| (table, chain.to_owned())).into();
    for (table, chain) in broken {
        tables.chain_mut(table, chain).truncate(1);
        tables
            .chain_mut(table, chain)
            .push("-s 10.9.9.9 -j RETURN".into());
    }
    let ops = restoring(&known, FAMILY, &chains).unwrap();
    go(&mut tables, &ops, 1000);
    assert_eq!(tables.canonical().save(), whole.canonical().save());
    let unknown =
        |table, chain: &str| restoring(&known, FAMILY, &[(table, chain.to_owned())].into()).is_none();
    assert!(unknown(Table::Nat, "KUBE-SVC-AAAAAAAAAAAAAAAA"), "whose is it?");
    assert!(unknown(Table::Filter, "KUBE-FIREWALL"), "not ours alone");
}
