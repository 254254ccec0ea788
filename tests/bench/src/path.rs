//! What packets meet: short connections through the node, beside the same without a proxy, and masquerading under
//! connections that come back with the same ports.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ferry_lab::api::Api;
use ferry_lab::api::generate::Cluster;
use ferry_lab::netns::Network;
use ferry_netns::{Proxy, objects};
use serde_json::{Value, json};

use crate::load::{self, Closes, Count, Counters, Way};
use crate::node;
use crate::table::{Table, median};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    pub(crate) round: Duration,
    pub(crate) rounds: usize,
}

impl Effort {
    pub(crate) const FULL: Effort = Effort {
        round: Duration::from_secs(1),
        rounds: 7,
    };
    /// Enough to see that it works.
    pub(crate) const QUICK: Effort = Effort {
        round: Duration::from_millis(200),
        rounds: 3,
    };
}

/// A proxy under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) name: &'static str,
    pub(crate) program: &'a Path,
    pub(crate) flags: &'static [&'static str],
}

/// Endpoints of a large service: addresses of one pod, in a network of their own.
const MANY: u32 = 1000;
const DIRECT_PORT: u16 = 7000;

/// One thing that a client dials. Each has a port of its own at the pod, so that none meets what another left there.
struct Target {
    name: &'static str,
    from: &'static str,
    vip: u8,
    port: u16,
    dialled: Dialled,
    endpoints: u32,
    spec: fn() -> Value,
}

#[derive(Clone, Copy)]
enum Dialled {
    ClusterIp,
    NodePort,
}

const PLAIN: fn() -> Value = || json!({});
const STICKY: fn() -> Value = || json!({"sessionAffinity": "ClientIP"});
const LOCAL: fn() -> Value = || json!({"externalTrafficPolicy": "Local"});

const TARGETS: [Target; 7] = {
    const fn target(
        name: &'static str,
        from: &'static str,
        vip: u8,
        dialled: Dialled,
        endpoints: u32,
        spec: fn() -> Value,
    ) -> Target {
        Target {
            name,
            from,
            vip,
            port: DIRECT_PORT + vip as u16,
            dialled,
            endpoints,
            spec,
        }
    }
    use Dialled::{ClusterIp, NodePort};
    [
        target("pod, cluster IP, 1 endpoint", "pod2", 1, ClusterIp, 1, PLAIN),
        target(
            "pod, cluster IP, 1,000 endpoints",
            "pod2",
            2,
            ClusterIp,
            MANY,
            PLAIN,
        ),
        target("pod, affinity, 1 endpoint", "pod2", 3, ClusterIp, 1, STICKY),
        target(
            "pod, affinity, 1,000 endpoints",
            "pod2",
            4,
            ClusterIp,
            MANY,
            STICKY,
        ),
        target("node, cluster IP", "node", 5, ClusterIp, 1, PLAIN),
        target("outside, node port, Cluster", "client", 6, NodePort, 1, PLAIN),
        target("outside, node port, Local", "client", 7, NodePort, 1, LOCAL),
    ]
};

impl Target {
    fn node_port(&self) -> u16 {
        30_000 + u16::from(self.vip)
    }

    fn way(&self) -> Way {
        let to = match self.dialled {
            Dialled::ClusterIp => SocketAddr::from(([10, 111, 0, self.vip], 80)),
            Dialled::NodePort => SocketAddr::from(([192, 0, 2, 10], self.node_port())),
        };
        Way {
            from: self.from,
            to,
            closes: Closes::Server,
            sources: Vec::new(),
        }
    }

    fn objects(&self) -> [Value; 2] {
        let name = format!("path-{}", self.vip);
        let mut service = objects::service(&name, &[&format!("10.111.0.{}", self.vip)]);
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"] = json!([{
            "name": "tcp", "port": 80, "targetPort": self.port, "nodePort": self.node_port(), "protocol": "TCP",
        }]);
        if let (Some(spec), Value::Object(more)) = (service["spec"].as_object_mut(), (self.spec)()) {
            spec.extend(more);
        }
        let mut slice = objects::slice(&name, "IPv4", &[objects::POD1]);
        slice["ports"] = json!([{"name": "tcp", "port": self.port, "protocol": "TCP"}]);
        let endpoint = slice["endpoints"][0].clone();
        let other = |i: u32| {
            let mut endpoint = endpoint.clone();
            endpoint["addresses"] = json!([many(i).to_string()]);
            endpoint
        };
        if self.endpoints > 1 {
            slice["endpoints"] = (0..self.endpoints).map(other).collect();
        }
        [service, slice]
    }
}

fn many(i: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 244, 128, 1)) + i)
}

/// Every round of a way is taken beside rounds without a proxy, so that whatever else the machine does falls on all.
pub(crate) fn bench(
    mode: &str,
    services: u32,
    candidates: &[Candidate<'_>],
    effort: Effort,
) -> Result<Table> {
    let mut table = Table::new(&[
        "",
        "connections per second",
        "of direct",
        "of direct, tracked",
        "CPU each, us",
        "of direct, tracked",
        "SYNs repeated (direct)",
        "failed",
    ]);
    let direct = network()?;
    let tracked = network()?;
    // What any translation switches on for all packets of the node.
    tracked.node().sh(
        "nft 'add table ip track; add chain ip track c { type nat hook prerouting priority 0; }; \
                       add chain ip track o { type nat hook output priority 0; }'",
    )?;
    forget_soon(&tracked)?;
    for candidate in candidates {
        for services in [10, services] {
            let proxied = Proxied::serving(candidate, mode, services, Closes::Server)
                .with_context(|| format!("{}, {services} services", candidate.name))?;
            forget_soon(&proxied.network)?;
            let mut rounds: BTreeMap<usize, Vec<[Count; 3]>> = BTreeMap::new();
            for _ in 0..effort.rounds {
                for (i, target) in TARGETS.iter().enumerate() {
                    let round = round(&direct, &tracked, &proxied.network, target, effort.round)?;
                    rounds.entry(i).or_default().push(round);
                }
            }
            for (i, target) in TARGETS.iter().enumerate() {
                let what = format!("{}, {services} services: {}", candidate.name, target.name);
                table.row(row(what, &rounds[&i]));
            }
        }
    }
    Ok(table)
}

/// Ended connections leave the node's table early: those of a whole run would not fit into it.
fn forget_soon(network: &Network) -> Result<()> {
    network
        .node()
        .sysctl("net.netfilter.nf_conntrack_tcp_timeout_time_wait", "5")
}

/// Direct, direct with connection tracking, and through the proxy.
fn round(
    direct: &Network,
    tracked: &Network,
    proxied: &Network,
    target: &Target,
    length: Duration,
) -> Result<[Count; 3]> {
    let way = target.way();
    let straight = Way {
        to: SocketAddr::from(([10, 244, 1, 2], DIRECT_PORT)),
        ..way.clone()
    };
    let through = load::run(proxied, &way, length)?;
    ensure!(
        through.connections > 0,
        "{}: no connection in a round",
        target.name
    );
    Ok([
        load::run(direct, &straight, length)?,
        load::run(tracked, &straight, length)?,
        through,
    ])
}

fn row(what: String, rounds: &[[Count; 3]]) -> [String; 8] {
    let middle =
        |figure: &dyn Fn(&[Count; 3]) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
    let repeated = |place: usize| {
        rounds
            .iter()
            .map(|round| round[place].kernel.repeated)
            .sum::<u64>()
    };
    [
        what,
        format!("{:.0}", middle(&|[_, _, with]| with.rate())),
        format!("{:.2}", middle(&|[direct, _, with]| with.rate() / direct.rate())),
        format!(
            "{:.2}",
            middle(&|[_, tracked, with]| with.rate() / tracked.rate())
        ),
        format!("{:.1}", middle(&|[_, _, with]| with.cpu_each())),
        format!(
            "{:.2}",
            middle(&|[_, tracked, with]| with.cpu_each() / tracked.cpu_each())
        ),
        format!("{} ({})", repeated(2), repeated(0) + repeated(1)),
        rounds
            .iter()
            .map(|[_, _, with]| with.failed)
            .sum::<u32>()
            .to_string(),
    ]
}

/// Masqueraded connections that come back with the same ports, one while after the other: where the endpoint takes new
/// ones for those that it remembers, the rate falls with the number remembered.
pub(crate) fn masquerading(mode: &str, candidates: &[Candidate<'_>], effort: Effort) -> Result<Table> {
    const WHILES: usize = 4;
    let mut table = Table::new(&[
        "",
        "connections per second, one while after the other",
        "SYNs repeated",
        "taken for old ones",
        "insert_failed",
        "failed",
    ]);
    let (node, outside) = (&TARGETS[4], &TARGETS[5]);
    let addresses: Vec<Ipv4Addr> = (101..151).map(|last| Ipv4Addr::new(192, 0, 2, last)).collect();
    // Few ports, so that addresses meet on them.
    let meeting: Vec<SocketAddr> = (10_000..10_400)
        .flat_map(|port| addresses.iter().map(move |ip| SocketAddr::from((*ip, port))))
        .collect();
    for candidate in candidates {
        for (what, target, sources) in [
            ("node, cluster IP", node, &[][..]),
            ("outside, node port, one address", outside, &[][..]),
            ("outside, node port, 50 addresses", outside, &meeting),
        ] {
            for (who, closes) in [("server", Closes::Server), ("client", Closes::Client)] {
                let proxied = Proxied::serving(candidate, mode, 10, closes)?;
                let lines: Vec<String> = addresses
                    .iter()
                    .map(|ip| format!("addr add {ip}/24 dev eth0"))
                    .collect();
                proxied.network.host("client")?.ip(&lines.join("\n"))?;
                let way = Way {
                    closes,
                    sources: sources.to_vec(),
                    ..target.way()
                };
                let (mut sum, mut failed) = (Counters::default(), 0);
                let mut rates = Vec::new();
                for _ in 0..WHILES {
                    let count = load::run(&proxied.network, &way, effort.round * 2)?;
                    sum += count.kernel;
                    failed += count.failed;
                    rates.push(format!("{:.0}", count.rate()));
                }
                table.row([
                    format!("{}: {what}, the {who} closes first", candidate.name),
                    rates.join(", "),
                    sum.repeated.to_string(),
                    sum.old.to_string(),
                    sum.insert_failed.to_string(),
                    failed.to_string(),
                ]);
            }
        }
    }
    Ok(table)
}

/// The lab's network with room for many short connections, and no server yet.
fn bare() -> Result<Network> {
    let network = Network::up()?;
    for host in ["client", "node", "pod1", "pod2"] {
        network.host(host)?.sysctls(&[
            ("net.ipv4.tcp_tw_reuse", "1"),
            ("net.ipv4.ip_local_port_range", "2000 29999"),
            ("net.core.somaxconn", "4096"),
        ])?;
    }
    let pod = network.host("pod1")?;
    let lines: Vec<String> = (0..MANY)
        .map(|i| format!("addr add {}/32 dev lo", many(i)))
        .collect();
    pod.ip(&lines.join("\n"))?;
    network
        .node()
        .ip("route add 10.244.128.0/17 via 10.244.1.2 dev veth-pod1 onlink")?;
    Ok(network)
}

/// The same, served where connections go without a proxy.
fn network() -> Result<Network> {
    let network = bare()?;
    load::serve(network.host("pod1")?, DIRECT_PORT, Closes::Server)?;
    Ok(network)
}

/// A network whose node has a proxy in sync.
struct Proxied {
    _proxy: Proxy,
    _api: Api,
    _dir: tempfile::TempDir,
    network: Network,
}

impl Proxied {
    fn serving(candidate: &Candidate<'_>, mode: &str, services: u32, closes: Closes) -> Result<Proxied> {
        let network = bare()?;
        for target in &TARGETS {
            load::serve(network.host("pod1")?, target.port, closes)?;
        }
        let dir = tempfile::tempdir()?;
        let api = Api::start_in(network.node(), 0)?;
        let endpoints = 5;
        api.apply(Cluster { services, endpoints }.objects())?;
        api.apply(TARGETS.iter().flat_map(Target::objects))?;
        let mut args = node::arguments(mode, &api, dir.path(), candidate.program)?;
        args.extend(candidate.flags.iter().map(|flag| (*flag).to_owned()));
        let mut proxy = Proxy::start(network.node(), candidate.program, &args, dir.path().join("log"))?;
        proxy.wait_ready_within(Duration::from_secs(900))?;
        Ok(Proxied {
            _proxy: proxy,
            _api: api,
            _dir: dir,
            network,
        })
    }
}
