//! Every recorded step of every scenario: the virtual servers, sets and rules that kube-proxy had then.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferry_model::*;
use ferry_sources::convert::{self, Interner};
use serde_json::Value;

use super::super::listing::{sets, virtual_servers};
use super::super::rules::{CHAINS, JUMPS, Rules};
use super::{options, rendered, standing};

const NODE: [&str; 2] = ["192.0.2.10", "2001:db8:2::10"];
const HOST: [&str; 8] = [
    "192.0.2.10",
    "198.51.100.10",
    "10.244.1.1",
    "127.0.0.1",
    "2001:db8:2::10",
    "2001:db8:51::10",
    "fd00:10:244:1::1",
    "::1",
];

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

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

fn options_of(scenario: &Value) -> PlanOptions {
    let mut options = options(DetectLocal::ClusterCidrs(vec![]));
    for flag in list(scenario, "args").map(|flag| flag.as_str().unwrap()) {
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

type Chains = BTreeMap<(String, String), Vec<String>>;

/// A rule of ours as the save program prints it.
fn as_saved(rule: &str, family: Family) -> String {
    let reject = match family {
        Family::V4 => "icmp-port-unreachable",
        Family::V6 => "icmp6-port-unreachable",
    };
    let rule = rule
        .replace("0x00004000", "0x4000")
        .replace("--or-mark 0x4000", "--set-xmark 0x4000/0x4000")
        .replace("--xor-mark 0x4000", "--set-xmark 0x4000/0x0")
        .replace("-j REJECT", &format!("-j REJECT --reject-with {reject}"));
    // Addresses and interfaces come first.
    for flag in [" ! -s ", " ! -i "] {
        if let Some((head, rest)) = rule.split_once(flag) {
            let (value, rest) = rest.split_once(' ').unwrap();
            return format!("{} {value} {head} {rest}", flag.trim());
        }
    }
    match rule.strip_prefix("-s ").and_then(|rest| rest.split_once(' ')) {
        Some((source, rest)) if !source.contains('/') => {
            let whole = if source.contains(':') { 128 } else { 32 };
            format!("-s {source}/{whole} {rest}")
        }
        _ => rule,
    }
}

fn ours(rules: &Rules, family: Family) -> Chains {
    let mut chains = Chains::new();
    for chain in &rules.chains {
        let lines = chain.rules.iter().map(|rule| as_saved(rule, family)).collect();
        chains.insert((chain.table.as_str().to_owned(), chain.name.to_owned()), lines);
    }
    for jump in JUMPS {
        let base = chains
            .entry((jump.table.as_str().to_owned(), jump.from.to_owned()))
            .or_default();
        base.insert(0, jump.rule());
    }
    chains
}

fn parse_saved(text: &str) -> Chains {
    let (mut table, mut chains) = ("", Chains::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if let Some((chain, _)) = line.strip_prefix(':').and_then(|rest| rest.split_once(' ')) {
            if CHAINS.iter().any(|(_, name)| *name == chain) {
                chains.entry((table.to_owned(), chain.to_owned())).or_default();
            }
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(|rest| rest.split_once(' ')) {
            chains
                .entry((table.to_owned(), chain.to_owned()))
                .or_default()
                .push(rule.to_owned());
        }
    }
    chains
}

fn lines(text: &Value) -> BTreeSet<String> {
    text.as_str()
        .unwrap()
        .lines()
        .map(|line| line.trim().to_owned())
        .filter(|line| !line.is_empty())
        .collect()
}

fn compare(place: &str, want: &BTreeSet<String>, got: &BTreeSet<String>) {
    let missing: Vec<_> = want.difference(got).collect();
    let extra: Vec<_> = got.difference(want).collect();
    assert!(
        missing.is_empty() && extra.is_empty(),
        "{place}:\nmissing {missing:#?}\nextra {extra:#?}"
    );
}

#[test]
fn every_recorded_state_is_rendered_line_for_line() {
    let data = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/oracle");
    let (mut steps, mut compared) = (0, 0);
    for entry in std::fs::read_dir(data.join("expected/ipvs")).unwrap() {
        let expected = read(&entry.unwrap().path());
        let name = expected["scenario"].as_str().unwrap().to_owned();
        let scenario = read(&data.join("scenarios").join(format!("{name}.json")));
        let mut planner = Planner::new(options_of(&scenario));
        planner.update(standing(&NODE, &HOST));
        planner.update(list(&scenario, "objects").filter_map(|object| event(object, false)));
        for (step, want) in list(&scenario, "steps").zip(list(&expected, "steps")) {
            planner.update(list(step, "apply").filter_map(|object| event(object, false)));
            planner.update(list(step, "delete").filter_map(|object| event(object, true)));
            let place = |what: &str| format!("{name} / {} / {what}", want["step"]);
            let Some(recorded) = want.get("rules") else {
                continue;
            };
            let both = Family::BOTH.map(|family| (family, rendered(planner.plan(), family)));
            let servers = both
                .iter()
                .flat_map(|(_, (ruleset, _))| virtual_servers(ruleset))
                .collect();
            // What drained when this was recorded had connections of the probes before.
            let mut wanted = lines(&recorded["ipvs"]);
            wanted.retain(|line| !line.ends_with(" -w 0"));
            compare(&place("ipvs"), &wanted, &servers);
            let sets = both
                .iter()
                .flat_map(|(family, (ruleset, _))| sets(ruleset, *family))
                .collect();
            compare(&place("ipset"), &lines(&recorded["ipset"]), &sets);
            for (family, (_, rules)) in &both {
                let tool = if *family == Family::V4 {
                    "iptables-save"
                } else {
                    "ip6tables-save"
                };
                let want = parse_saved(recorded[tool].as_str().unwrap());
                // One recording caught kube-proxy between making the chains of a family and filling them.
                let filled = want.get(&("nat".to_owned(), "KUBE-MARK-MASQ".to_owned()));
                if filled.is_some_and(|rules| !rules.is_empty()) {
                    assert_eq!(ours(rules, *family), want, "{}", place(tool));
                    compared += 1;
                }
            }
            steps += 1;
        }
    }
    assert!(steps >= 40, "only {steps} steps were compared");
    assert!(
        compared >= 2 * steps - 1,
        "only {compared} of {} rulesets were compared",
        2 * steps
    );
}
