//! A node with nothing but its tables, the backend on it, and the cluster that it serves.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ferry_backends::iptables::{Iptables, Options, Programs};
use ferry_backends::{Applied, Backend};
use ferry_host::iptables::Flavour;
use ferry_host::netns::Namespace;
use ferry_lab::wait_until;
use ferry_model::*;

/// So rarely that it does not happen during a test.
pub(crate) const NEVER: Duration = Duration::from_secs(3600);

pub(crate) struct TestNode {
    pub(crate) flavour: Flavour,
    pub(crate) planner: Planner,
    pub(crate) backend: Iptables,
    pub(crate) alarms: Arc<AtomicUsize>,
    _lock: tempfile::TempDir,
}

impl TestNode {
    pub(crate) fn new(flavour: Flavour, poll: Duration) -> TestNode {
        let lock = tempfile::tempdir().unwrap();
        let alarms = Arc::new(AtomicUsize::new(0));
        let programs = Programs {
            flavour: Some(flavour),
            lock: Some(lock.path().join("lock")),
        };
        let options = Options {
            poll,
            programs,
            ..Options::default()
        };
        let count = alarms.clone();
        let alarm = Arc::new(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        TestNode {
            flavour,
            planner: planner(),
            backend: Iptables::open(options, alarm),
            alarms,
            _lock: lock,
        }
    }

    /// The same cluster, a backend that knows nothing.
    pub(crate) fn restarted(self) -> TestNode {
        TestNode {
            planner: self.planner,
            ..TestNode::new(self.flavour, NEVER)
        }
    }

    pub(crate) fn apply(&mut self) -> [Applied; 2] {
        Family::BOTH.map(|family| self.backend.apply(self.planner.plan(), family).unwrap())
    }

    pub(crate) fn update(&mut self, events: impl IntoIterator<Item = Event>) -> [Applied; 2] {
        self.planner.update(events);
        self.apply()
    }

    /// Does harm, waits for the watch to notice, and applies.
    pub(crate) fn healed(&mut self, harm: impl FnOnce(&TestNode)) -> [Applied; 2] {
        let before = self.alarms.load(Ordering::SeqCst);
        harm(self);
        let alarms = self.alarms.clone();
        assert!(
            wait_until(Duration::from_secs(30), || alarms.load(Ordering::SeqCst) > before),
            "no alarm"
        );
        let none = [Vec::<String>::new(), Vec::new()];
        assert_ne!(self.differences(), none, "the harm is seen");
        let applied = self.apply();
        assert_eq!(self.differences(), none);
        applied
    }

    fn differences(&mut self) -> [Vec<String>; 2] {
        Family::BOTH.map(|family| self.backend.differences(self.planner.plan(), family).unwrap())
    }

    /// Runs a program of the node's flavour.
    pub(crate) fn run(&self, program: &str, args: &str) -> String {
        let (name, rest) = match program.split_once('-') {
            Some((name, rest)) => (name, format!("-{rest}")),
            None => (program, String::new()),
        };
        run(&format!("{name}-{}{rest}", self.flavour), args)
    }

    /// Both families' tables, chain by chain, in an order that does not depend on history.
    pub(crate) fn saved(&self) -> BTreeMap<String, Vec<String>> {
        let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for program in ["iptables-save", "ip6tables-save"] {
            let mut table = String::new();
            for line in self.run(program, "").lines() {
                if let Some(name) = line.strip_prefix('*') {
                    table = format!("{program} {name}");
                } else if let Some(rest) = line.strip_prefix(':') {
                    chains.insert(format!("{table} {}", rest.split(' ').next().unwrap()), Vec::new());
                } else if let Some(rest) = line.strip_prefix("-A ") {
                    let chain = rest.split(' ').next().unwrap();
                    chains
                        .get_mut(&format!("{table} {chain}"))
                        .unwrap()
                        .push(rest.to_owned());
                }
            }
        }
        let shared = [
            "KUBE-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-PROXY-FIREWALL",
        ];
        for (_, rules) in chains
            .iter_mut()
            .filter(|(chain, _)| shared.iter().any(|name| chain.ends_with(name)))
        {
            let last = rules
                .last()
                .filter(|rule| rule.contains("must be the last rule"))
                .cloned();
            rules.sort();
            rules.extend(last.map(|rule| format!("last: {rule}")));
        }
        chains
    }

    /// Whether a chain or a rule has this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        let saved = self.saved();
        saved
            .iter()
            .any(|(chain, rules)| chain.contains(text) || rules.iter().any(|rule| rule.contains(text)))
    }

    /// `KUBE-` chains, but for those whose names end like this.
    pub(crate) fn left_but(&self, kept: &[&str]) -> Vec<String> {
        let left = self.saved().into_keys().filter(|chain| chain.contains("KUBE-"));
        left.filter(|chain| !kept.iter().any(|kept| chain.ends_with(kept)))
            .collect()
    }

    /// Feeds a document to this flavour's restore.
    pub(crate) fn seed(&self, document: &str) {
        let mut restore = Command::new(format!("iptables-{}-restore", self.flavour));
        let mut child = restore
            .args(["-w", "30", "--noflush"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(document.as_bytes())
            .unwrap();
        assert!(child.wait().unwrap().success());
    }
}

pub(crate) fn run(program: &str, args: &str) -> String {
    let mut command = Command::new(program);
    if program.contains("tables") && !program.contains("save") {
        command.args(["-w", "30"]);
    }
    let output = command
        .args(args.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{program} {args}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a test once for each flavour, each time in a namespace of its own.
pub(crate) fn on_both(test: impl Fn(Flavour) + Send + Sync) {
    for flavour in [Flavour::Nft, Flavour::Legacy] {
        on(flavour, &test);
    }
}

pub(crate) fn on(flavour: Flavour, test: impl Fn(Flavour) + Send + Sync) {
    Namespace::new().unwrap().run(|| test(flavour)).unwrap();
}

fn planner() -> Planner {
    let cidrs = ["10.0.0.0/8", "fd00:10::/32"].map(|cidr| cidr.parse().unwrap());
    let mut planner = Planner::new(PlanOptions {
        node_name: "node-a".into(),
        policy: Policy::iptables(),
        masquerade_all: false,
        detect_local: DetectLocal::ClusterCidrs(cidrs.into()),
        node_port_addresses: vec![],
        bind_address: None,
        allow_external_ips: true,
    });
    let addresses = ["127.0.0.1", "::1", "192.168.0.2"]
        .map(|ip| ip.parse().unwrap())
        .into();
    planner.update([Event::Host(Arc::new(Host { addresses }))]);
    planner
}

fn name(at: usize) -> ServiceName {
    ServiceName::new("ns", &format!("svc-{at:05}"))
}

/// A dual-stack load balancer with all that the mode knows; every seventh has no IPv4 endpoints.
pub(crate) fn balancer(at: usize) -> Vec<Event> {
    let mut service = plain(at);
    service.kind = ServiceType::LoadBalancer;
    service
        .cluster_ips
        .push(format!("fd00:96::{:x}", at + 1).parse().unwrap());
    service.ports[0].node_port = Some(30000 + at as u16);
    service.external_ips = vec![format!("198.18.{}.{}", at / 250, at % 250 + 1).parse().unwrap()];
    service.load_balancer_ips = vec![format!("198.19.{}.{}", at / 250, at % 250 + 1).parse().unwrap()];
    service.source_ranges = vec!["192.168.0.0/24".parse().unwrap()];
    service.affinity = at.is_multiple_of(3).then_some(Duration::from_secs(60));
    service.external_policy = if at.is_multiple_of(2) {
        TrafficPolicy::Local
    } else {
        TrafficPolicy::Cluster
    };
    service.health_check_node_port = at.is_multiple_of(2).then_some(20000 + at as u16);
    let v4: Vec<String> = (1..if at % 7 == 6 { 1 } else { 4 })
        .map(|host| format!("10.1.{at}.{host}"))
        .collect();
    let v6: Vec<String> = (1..3).map(|host| format!("fd00:10::{at:x}:{host}")).collect();
    vec![
        endpoints(&service, &v4, ""),
        endpoints(&service, &v6, "-v6"),
        add(service),
    ]
}

/// A ClusterIP service.
pub(crate) fn plain(at: usize) -> Service {
    Service {
        ports: vec![ServicePort::new("http", Protocol::Tcp, 80)],
        ..Service::new(
            name(at),
            vec![format!("10.96.{}.{}", at / 250, at % 250 + 1).parse().unwrap()],
        )
    }
}

/// Endpoints of a service, the first of them on this node.
pub(crate) fn endpoints(of: &Service, addresses: &[impl AsRef<str>], suffix: &str) -> Event {
    let endpoint = |(at, address): (usize, IpAddr)| {
        let node = if at == 0 { "node-a" } else { "node-b" };
        SliceEndpoint::ready(address, Some(node.into()))
    };
    let addresses: Vec<IpAddr> = addresses
        .iter()
        .map(|address| address.as_ref().parse().unwrap())
        .collect();
    let slice = EndpointSlice {
        name: SliceName::new("ns", &format!("{}{suffix}", of.name.name())),
        service: of.name.clone(),
        family: addresses
            .first()
            .map_or(Family::V4, |address| Family::of(*address)),
        ports: vec![SlicePort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 8080,
        }],
        endpoints: addresses.into_iter().enumerate().map(endpoint).collect(),
    };
    Event::from(slice)
}

pub(crate) fn add(service: Service) -> Event {
    Event::from(service)
}

pub(crate) fn remove(at: usize) -> Event {
    Event::Service(name(at), None)
}
