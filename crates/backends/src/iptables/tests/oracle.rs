//! Every recorded step of every scenario: the rules that kube-proxy had then are the rules that the plan renders to.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferry_host::iptables::Saved;
use ferry_lab::oracle::{self, Mode, Scenario};
use ferry_model::*;
use ferry_sources::convert::{self, Interner};
use serde_json::Value;

use super::super::names::Table;
use super::facts::{ip, options};
use super::render;
use super::simulated::Tables;

fn event(object: &Value, deleted: bool) -> Option<Event> {
    let interner = Interner::default();
    let label = |name: &str| object["metadata"]["labels"].get(name).is_some();
    let text = |field: &str| object["metadata"][field].as_str().unwrap();
    match object["kind"].as_str().unwrap() {
        "Service" => {
            let service = convert::service(&serde_json::from_value(object.clone()).unwrap(), &interner).fact;
            let served = !deleted && !label("service.kubernetes.io/service-proxy-name");
            let name = ServiceName::new(text("namespace"), text("name"));
            Some(Event::Service(name, service.filter(|_| served).map(Arc::new)))
        }
        "EndpointSlice" => {
            let slice = convert::slice(&serde_json::from_value(object.clone()).unwrap(), &interner).fact?;
            let used = !deleted && !label("service.kubernetes.io/headless");
            Some(Event::Slice(slice.name.clone(), used.then(|| Arc::new(slice))))
        }
        "Node" => {
            let node = convert::node(&serde_json::from_value(object.clone()).unwrap(), &interner).fact;
            Some(Event::Node(Some(Arc::new(node))))
        }
        kind => panic!("an object of kind {kind}"),
    }
}

/// The lab's node, as every scenario has it.
fn standing() -> Vec<Event> {
    let node = Node {
        addresses: ["192.0.2.10", "2001:db8:2::10"].map(ip).into(),
        pod_cidrs: ["10.244.1.0/24", "fd00:10:244:1::/64"]
            .map(|cidr| cidr.parse().unwrap())
            .into(),
        zone: Some("zone-a".into()),
        eligible: true,
    };
    let own = ["192.0.2.10", "198.51.100.10", "10.244.1.1", "127.0.0.1"];
    let own6 = ["2001:db8:2::10", "2001:db8:51::10", "fd00:10:244:1::1", "::1"];
    let addresses = own.into_iter().chain(own6).map(ip).collect();
    vec![
        Event::Node(Some(Arc::new(node))),
        Event::Host(Arc::new(Host { addresses })),
    ]
}

fn options_of(scenario: &Scenario) -> PlanOptions {
    let mut options = PlanOptions {
        detect_local: DetectLocal::ClusterCidrs(vec![]),
        ..options()
    };
    for flag in &scenario.args {
        match flag.split_once('=').unwrap_or((flag, "")) {
            ("--cluster-cidr", cidrs) => {
                let cidrs = cidrs.split(',').map(|cidr| cidr.parse().unwrap()).collect();
                options.detect_local = DetectLocal::ClusterCidrs(cidrs);
            }
            ("--masquerade-all", _) => options.masquerade_all = true,
            ("--detect-local-mode", _) => {}
            ("--pod-interface-name-prefix", prefix) => {
                options.detect_local = DetectLocal::InterfacePrefix(prefix.into());
            }
            ("--nodeport-addresses", cidrs) => {
                let cidr = |cidr: &str| NodePortAddress::Cidr(cidr.parse().unwrap());
                options.node_port_addresses = cidrs.split(',').map(cidr).collect();
            }
            (flag, _) => panic!("a scenario uses {flag}, which this test does not know"),
        }
    }
    options
}

/// Tables that hold what was recorded.
fn recorded(saved: &str) -> Tables {
    let observed = Saved::parse(saved);
    let mut tables = Tables::default();
    for table in Table::ALL {
        for chain in observed.chains(table) {
            let rules = observed
                .chain(table, chain)
                .unwrap()
                .iter()
                .map(|rule| rule.to_string());
            tables.chain_mut(table, chain).extend(rules);
        }
    }
    tables
}

#[test]
fn every_recorded_ruleset_is_rendered_rule_for_rule() {
    let mut compared = BTreeSet::new();
    for scenario in oracle::scenarios().unwrap() {
        if !scenario.runs_in(Mode::Iptables) {
            continue;
        }
        let expected = oracle::expected(Mode::Iptables, &scenario.name).unwrap();
        let mut planner = Planner::new(options_of(&scenario));
        planner.update(standing());
        planner.update(scenario.objects.iter().filter_map(|object| event(object, false)));
        for (step, want) in scenario.steps.iter().zip(&expected.steps) {
            planner.update(step.apply.iter().filter_map(|object| event(object, false)));
            planner.update(step.delete.iter().filter_map(|object| event(object, true)));
            for (tool, family) in [("iptables-save", Family::V4), ("ip6tables-save", Family::V6)] {
                let mut rendered = Tables::default();
                rendered.restore(&render(planner.plan(), family)).unwrap();
                let place = format!("{} / {} / {tool}", scenario.name, step.name);
                compare(
                    &place,
                    &recorded(&want.rules[tool]).canonical(),
                    &rendered.canonical(),
                );
                compared.insert(place);
            }
        }
    }
    assert!(
        compared.len() >= 80,
        "only {} rulesets were compared",
        compared.len()
    );
}

fn compare(place: &str, want: &Tables, got: &Tables) {
    let (want, got) = (want.save(), got.save());
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let (wanted, rendered) = (lines(&want), lines(&got));
    let missing: Vec<_> = wanted.difference(&rendered).collect();
    let extra: Vec<_> = rendered.difference(&wanted).collect();
    assert!(want == got, "{place}:\nmissing {missing:#?}\nextra {extra:#?}");
}
