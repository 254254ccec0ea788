//! The lab's network: a node with two pods, a second node that holds two more, a client and an outsider.
//!
//! ```text
//!     client 192.0.2.100 ---+                       +--- pod1 10.244.1.2
//!     outsider 203.0.113.9 -+- switch --- node -----+--- pod2 10.244.1.3
//!     remote 192.0.2.11 ----+      192.0.2.10 eth0
//!       (holds rpod1 10.244.2.2 and rpod2 10.244.2.3)   (also 198.51.100.10 eth1; pod side 10.244.1.1)
//! ```
//!
//! Everything is there in IPv4 and IPv6. Each pod address serves [`PORTS`], the node serves [`HOST_PORTS`].
//! Node and clients forward nothing by themselves: what reaches a service address is the proxy's doing.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::runtime::Runtime;

use super::{LOOPBACK_UP, Namespace, Outcome, Probe, Proto, Reply, Servers, Sockets, summarise};

/// What every pod serves, TCP and UDP.
pub const PORTS: [u16; 3] = [8080, 8081, 9090];
/// What the node itself serves, as an endpoint on the host's network does.
pub const HOST_PORTS: [u16; 1] = [9090];

const HOSTS: [&str; 7] = ["node", "remote", "client", "outsider", "pod1", "pod2", "switch"];

/// name, IPv4, IPv6
const ADDRESSES: [(&str, &str, &str); 11] = [
    ("node", "192.0.2.10", "2001:db8:2::10"),
    ("node2", "198.51.100.10", "2001:db8:51::10"),
    ("podside", "10.244.1.1", "fd00:10:244:1::1"),
    ("pod1", "10.244.1.2", "fd00:10:244:1::2"),
    ("pod2", "10.244.1.3", "fd00:10:244:1::3"),
    ("remote", "192.0.2.11", "2001:db8:2::11"),
    ("rpod1", "10.244.2.2", "fd00:10:244:2::2"),
    ("rpod2", "10.244.2.3", "fd00:10:244:2::3"),
    ("client", "192.0.2.100", "2001:db8:2::100"),
    ("client2", "198.51.100.100", "2001:db8:51::100"),
    ("outsider", "203.0.113.9", "2001:db8:113::9"),
];

/// Who has that address in the lab's network.
pub fn name_of(address: IpAddr) -> String {
    let text = address.to_string();
    let found = ADDRESSES.iter().find(|(_, v4, v6)| text == *v4 || text == *v6);
    match found {
        Some((name, _, _)) => (*name).to_owned(),
        None if address.is_loopback() => "loopback".to_owned(),
        None => text,
    }
}

/// The network, up. Dropping it ends its servers and removes its namespaces.
#[derive(Debug)]
pub struct Network {
    servers: Servers,
    sockets: BTreeMap<&'static str, Sockets>,
    runtime: Arc<Runtime>,
    hosts: BTreeMap<&'static str, Namespace>,
}

impl Network {
    /// Makes the hosts, connects them and starts the servers.
    pub fn up() -> Result<Network> {
        let hosts: BTreeMap<_, _> = HOSTS.into_iter().zip(Namespace::make(&HOSTS)?).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("lab")
            .enable_all()
            .build()
            .context("cannot start the lab's runtime")?;
        let mut sockets = BTreeMap::new();
        for (name, host) in &hosts {
            settings(host, *name != "switch")?;
            sockets.insert(*name, Sockets::inside(host)?);
        }
        let mut network = Network {
            servers: Servers::default(),
            sockets,
            runtime: Arc::new(runtime),
            hosts,
        };
        network.connect()?;
        network.serve()?;
        Ok(network)
    }

    /// A host by name: node, remote, client, outsider, pod1, pod2 or switch.
    pub fn host(&self, name: &str) -> Result<&Namespace> {
        self.hosts
            .get(real(name))
            .with_context(|| format!("the lab has no host {name:?}"))
    }

    /// The node: the host that a proxy runs on.
    pub fn node(&self) -> &Namespace {
        &self.hosts["node"]
    }

    /// Sockets of a host, for traffic of your own.
    pub fn sockets(&self, name: &str) -> Result<Sockets> {
        self.sockets
            .get(real(name))
            .cloned()
            .with_context(|| format!("the lab has no host {name:?}"))
    }

    /// The runtime that the servers run on.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// One more server somewhere.
    pub fn listen(&mut self, host: &str, proto: Proto, at: SocketAddr) -> Result<()> {
        let sockets = self.sockets(host)?;
        self.runtime.block_on(self.servers.listen(&sockets, proto, at))
    }

    /// Sends all probes at once, each from its host; one outcome for each sender, in order.
    pub fn probe(&self, probes: &[Probe]) -> Result<Vec<Outcome>> {
        let each: Vec<Probe> = probes.iter().flat_map(Probe::each).collect();
        let replies = self.replies(&each)?;
        Ok(each.iter().zip(&replies).map(|(p, r)| summarise(p, r)).collect())
    }

    /// As [`Network::probe`], with every single reply.
    pub fn replies(&self, probes: &[Probe]) -> Result<Vec<Vec<Reply>>> {
        self.runtime.block_on(async {
            let mut running = Vec::new();
            for probe in probes {
                let sockets = self.sockets(probe.sender())?;
                let probe = probe.clone();
                running.push(tokio::spawn(async move { probe.send(&sockets).await }));
            }
            let mut replies = Vec::new();
            for task in running {
                replies.push(task.await.context("a probe was cut off")?);
            }
            Ok(replies)
        })
    }

    /// One program for each host: under emulation starting one is what costs. Whoever makes a pair of interfaces comes
    /// before the host that gets the other end.
    fn connect(&self) -> Result<()> {
        self.host("switch")?.ip(&self.switch_lines()?)?;
        self.node().ip(&self.node_lines()?)?;
        for pod in PODS {
            self.host(pod)?.ip(&pod_lines(pod)?)?;
        }
        for name in ["remote", "client", "outsider"] {
            self.host(name)?
                .ip(&format!("{}\n{}", plug_lines(name), routes_of(name)))?;
        }
        Ok(())
    }

    fn switch_lines(&self) -> Result<String> {
        let mut lines = format!(
            "{LOOPBACK_UP}\nlink add br0 type bridge\nlink set br0 up\n\
             addr add 192.0.2.1/24 dev br0\naddr add 2001:db8:2::1/64 dev br0 nodad"
        );
        for (name, dev, _) in PLUGS {
            let (here, there) = (format!("p-{name}-{dev}"), self.host(name)?.name());
            lines += &format!(
                "\nlink add {here} type veth peer name {dev} netns {there}\nlink set {here} master br0 up"
            );
        }
        Ok(lines)
    }

    fn node_lines(&self) -> Result<String> {
        let mut lines = plug_lines("node");
        for pod in PODS {
            let (dev, (v4, v6), there) = (format!("veth-{pod}"), addresses_of(pod)?, self.host(pod)?.name());
            lines += &format!(
                "\nlink add {dev} type veth peer name eth0 netns {there}\nlink set {dev} up\n\
                 addr add 10.244.1.1/32 dev {dev}\naddr add fd00:10:244:1::1/128 dev {dev} nodad\n\
                 route add {v4}/32 dev {dev} src 10.244.1.1\nroute add {v6}/128 dev {dev} src fd00:10:244:1::1"
            );
        }
        Ok(format!("{lines}\n{}", routes_of("node")))
    }

    fn serve(&mut self) -> Result<()> {
        let places: [(&str, &[&str], &[u16]); 4] = [
            ("pod1", &["pod1"], &PORTS),
            ("pod2", &["pod2"], &PORTS),
            ("remote", &["rpod1", "rpod2"], &PORTS),
            ("node", &["node"], &HOST_PORTS),
        ];
        for (host, names, ports) in places {
            for (_, v4, v6) in ADDRESSES.iter().filter(|(name, _, _)| names.contains(name)) {
                for address in [v4, v6] {
                    let address: IpAddr = address.parse()?;
                    for port in ports {
                        for proto in [Proto::Tcp, Proto::Udp] {
                            self.listen(host, proto, SocketAddr::new(address, *port))?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.servers = Servers::default();
        self.sockets.clear();
        let hosts = std::mem::take(&mut self.hosts).into_values().collect();
        if let Err(e) = Namespace::remove(hosts) {
            eprintln!("cannot remove a network: {e:#}");
        }
    }
}

const PODS: [&str; 2] = ["pod1", "pod2"];

/// What is plugged into the switch: host, interface, addresses.
const PLUGS: [(&str, &str, &[&str]); 5] = [
    ("node", "eth0", &["192.0.2.10/24", "2001:db8:2::10/64"]),
    ("node", "eth1", &["198.51.100.10/24", "2001:db8:51::10/64"]),
    ("remote", "eth0", &["192.0.2.11/24", "2001:db8:2::11/64"]),
    (
        "client",
        "eth0",
        &[
            "192.0.2.100/24",
            "2001:db8:2::100/64",
            "198.51.100.100/24",
            "2001:db8:51::100/64",
        ],
    ),
    ("outsider", "eth0", &["203.0.113.9/24", "2001:db8:113::9/64"]),
];

/// The remote node's pods, and everyone's routes. The node's default route ends at the switch, which swallows all it gets.
const ROUTES: [(&str, &str); 4] = [
    (
        "node",
        "route add 10.244.2.0/24 via 192.0.2.11\nroute add fd00:10:244:2::/64 via 2001:db8:2::11\n\
         route add 203.0.113.0/24 dev eth0\nroute add 2001:db8:113::/64 dev eth0\n\
         route add 0.0.0.0/0 via 192.0.2.1\nroute add ::/0 via 2001:db8:2::1",
    ),
    (
        "remote",
        "addr add 10.244.2.2/32 dev lo\naddr add 10.244.2.3/32 dev lo\n\
         addr add fd00:10:244:2::2/128 dev lo nodad\naddr add fd00:10:244:2::3/128 dev lo nodad\n\
         route add 10.244.1.0/24 via 192.0.2.10\nroute add fd00:10:244:1::/64 via 2001:db8:2::10\n\
         route add 203.0.113.0/24 dev eth0\nroute add 2001:db8:113::/64 dev eth0\n\
         route add 0.0.0.0/0 via 192.0.2.10\nroute add ::/0 via 2001:db8:2::10",
    ),
    (
        "client",
        "route add 0.0.0.0/0 via 192.0.2.10\nroute add ::/0 via 2001:db8:2::10 src 2001:db8:2::100",
    ),
    (
        "outsider",
        "route add 192.0.2.0/24 dev eth0\nroute add 2001:db8:2::/64 dev eth0\n\
         route add 0.0.0.0/0 via 192.0.2.10\nroute add ::/0 via 2001:db8:2::10 src 2001:db8:113::9",
    ),
];

/// `client2` is the client's other address.
fn real(name: &str) -> &str {
    if name == "client2" { "client" } else { name }
}

fn settings(host: &Namespace, forward: bool) -> Result<()> {
    let forward = if forward { "1" } else { "0" };
    host.sysctls(&[
        ("net.ipv4.ip_forward", forward),
        ("net.ipv6.conf.all.forwarding", forward),
        ("net.ipv6.conf.default.accept_dad", "0"),
        ("net.ipv4.conf.all.rp_filter", "0"),
        ("net.ipv4.conf.default.rp_filter", "0"),
        ("net.ipv4.conf.all.send_redirects", "0"),
        ("net.ipv4.conf.default.send_redirects", "0"),
        ("net.ipv4.icmp_ratelimit", "0"),
        ("net.ipv6.icmp.ratelimit", "0"),
    ])?;
    // older kernels have these for the whole machine only, and read-only here
    let _ = host.sysctls(&[
        ("net.ipv4.icmp_msgs_per_sec", "100000"),
        ("net.ipv4.icmp_msgs_burst", "10000"),
    ]);
    Ok(())
}

fn addresses_of(name: &str) -> Result<(&'static str, &'static str)> {
    let found = ADDRESSES.iter().find(|(known, _, _)| *known == name);
    let (_, v4, v6) = found.with_context(|| format!("no address for {name}"))?;
    Ok((v4, v6))
}

fn routes_of(name: &str) -> &'static str {
    let found = ROUTES.iter().find(|(known, _)| *known == name);
    found.map_or("", |(_, routes)| routes)
}

/// Brings a host's interfaces up and gives them their addresses.
fn plug_lines(host: &str) -> String {
    let mut lines = LOOPBACK_UP.to_owned();
    for (_, dev, addresses) in PLUGS.iter().filter(|(name, _, _)| *name == host) {
        lines += &format!("\nlink set {dev} up");
        for address in *addresses {
            let nodad = if address.contains(':') { "nodad" } else { "" };
            lines += &format!("\naddr add {address} dev {dev} {nodad}");
        }
    }
    lines
}

fn pod_lines(pod: &str) -> Result<String> {
    let (v4, v6) = addresses_of(pod)?;
    Ok(format!(
        "{LOOPBACK_UP}\nlink set eth0 up\naddr add {v4}/32 dev eth0\naddr add {v6}/128 dev eth0 nodad\n\
         route add 10.244.1.1/32 dev eth0\nroute add fd00:10:244:1::1/128 dev eth0\n\
         route add 0.0.0.0/0 via 10.244.1.1 src {v4}\nroute add ::/0 via fd00:10:244:1::1 src {v6}"
    ))
}
