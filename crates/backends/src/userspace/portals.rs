//! The netfilter rules that lead virtual addresses and node ports to proxy ports: as text, and what to change.
//! Pure; the chains are those of kube-proxy's userspace mode.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ferry_host::iptables::{Command, Document, Jump, Saved, Table, target};
use ferry_model::{FrontendKey, NodeFamily, NodePorts, PortName};

use crate::chains;

/// A chain of ours, in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Chain {
    PortalsContainer,
    PortalsHost,
    NodePortContainer,
    NodePortHost,
    NodePortNonLocal,
}

/// Whether a chain of a table is one of this mode's.
pub fn owns_chain(table: &str, chain: &str) -> bool {
    Chain::ALL
        .into_iter()
        .any(|ours| (ours.table().as_str(), ours.name()) == (table, chain))
}

impl Chain {
    pub(super) const ALL: [Chain; 5] = [
        Chain::PortalsContainer,
        Chain::PortalsHost,
        Chain::NodePortContainer,
        Chain::NodePortHost,
        Chain::NodePortNonLocal,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Chain::PortalsContainer => chains::PORTALS_CONTAINER,
            Chain::PortalsHost => chains::PORTALS_HOST,
            Chain::NodePortContainer => chains::NODE_PORT_CONTAINER,
            Chain::NodePortHost => chains::NODE_PORT_HOST,
            Chain::NodePortNonLocal => chains::NODE_PORT_NON_LOCAL,
        }
    }

    pub(super) fn table(self) -> Table {
        match self {
            Chain::NodePortNonLocal => Table::Filter,
            Chain::PortalsContainer | Chain::PortalsHost | Chain::NodePortContainer | Chain::NodePortHost => {
                Table::Nat
            }
        }
    }

    /// How the jump from a base chain is put there, and the jump.
    fn jump(self) -> (Command, Jump) {
        const PORTALS: &str = "handle ClusterIPs; NOTE: this must be before the NodePort rules";
        const NODE_PORTS: &str = "handle service NodePorts; NOTE: this must be the last rule in the chain";
        const NON_LOCAL: &str = "Ensure that non-local NodePort traffic can flow";
        const LOCAL: &str = "-m addrtype --dst-type LOCAL";
        let (from, command, matches, comment) = match self {
            Chain::PortalsContainer => ("PREROUTING", Command::Insert, "", PORTALS),
            Chain::PortalsHost => ("OUTPUT", Command::Insert, "", PORTALS),
            Chain::NodePortContainer => ("PREROUTING", Command::Append, LOCAL, NODE_PORTS),
            Chain::NodePortHost => ("OUTPUT", Command::Append, LOCAL, NODE_PORTS),
            Chain::NodePortNonLocal => ("INPUT", Command::Insert, "", NON_LOCAL),
        };
        let (table, to) = (self.table(), self.name());
        let jump = Jump {
            table,
            from,
            matches,
            comment,
            to,
        };
        (command, jump)
    }
}

/// A rule as save prints it, without its chain.
pub(super) type Rule = (Chain, String);

/// Where the doors listen, for the targets of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listen {
    /// The address of all proxy ports; none means every address.
    pub(super) address: Option<IpAddr>,
    /// The node's address, for traffic of the node itself.
    pub(super) node: Option<IpAddr>,
}

/// The rules that lead to one door.
pub(super) fn rules(
    name: &PortName,
    leads: &BTreeSet<FrontendKey>,
    proxy_port: u16,
    listen: Listen,
    node: &NodeFamily,
) -> BTreeSet<Rule> {
    let lines = Lines {
        name,
        proxy_port,
        listen,
    };
    let mut rules = BTreeSet::new();
    for frontend in leads {
        match *frontend {
            FrontendKey::Address(ip, port, _) => {
                rules.insert((
                    Chain::PortalsContainer,
                    lines.portal(ip, port, &lines.network_target()),
                ));
                rules.insert((Chain::PortalsHost, lines.portal(ip, port, &lines.host_target())));
            }
            FrontendKey::NodePort(_, port, _) => lines.node_port(port, node, &mut rules),
        }
    }
    // Proxy ports are for redirected traffic only: nobody gets around a policy by knowing one.
    let direct = format!(
        "{}-m conntrack ! --ctstate DNAT -j DROP",
        lines.to_port("", proxy_port)
    );
    rules.insert((Chain::NodePortNonLocal, direct));
    rules
}

struct Lines<'a> {
    name: &'a PortName,
    proxy_port: u16,
    listen: Listen,
}

impl Lines<'_> {
    fn network_target(&self) -> String {
        match self.listen.address {
            None => format!("REDIRECT --to-ports {}", self.proxy_port),
            Some(address) => format!(
                "DNAT --to-destination {}",
                SocketAddr::new(address, self.proxy_port)
            ),
        }
    }

    fn host_target(&self) -> String {
        match self.listen.address.or(self.listen.node) {
            None => format!("REDIRECT --to-ports {}", self.proxy_port),
            Some(address) => format!(
                "DNAT --to-destination {}",
                SocketAddr::new(address, self.proxy_port)
            ),
        }
    }

    fn to_port(&self, destination: &str, port: u16) -> String {
        let protocol = self.name.protocol;
        let name = self.name;
        format!("{destination}-p {protocol} -m comment --comment \"{name}\" -m {protocol} --dport {port} ")
    }

    fn portal(&self, ip: IpAddr, port: u16, target: &str) -> String {
        let prefix = if ip.is_ipv4() { 32 } else { 128 };
        format!("{}-j {target}", self.to_port(&format!("-d {ip}/{prefix} "), port))
    }

    fn node_port(&self, port: u16, node: &NodeFamily, rules: &mut BTreeSet<Rule>) {
        let destinations: Vec<String> = match &node.node_ports {
            NodePorts::All => vec![String::new()],
            NodePorts::Only(addresses) => addresses
                .iter()
                .map(|ip| format!("-d {ip}/{} ", if ip.is_ipv4() { 32 } else { 128 }))
                .collect(),
        };
        for destination in destinations {
            let line = self.to_port(&destination, port);
            rules.insert((
                Chain::NodePortContainer,
                format!("{line}-j {}", self.network_target()),
            ));
            rules.insert((Chain::NodePortHost, format!("{line}-j {}", self.host_target())));
        }
        let line = self.to_port("", self.proxy_port);
        rules.insert((
            Chain::NodePortNonLocal,
            format!("{line}-m conntrack --ctstate DNAT -j ACCEPT"),
        ));
    }
}

/// What is there of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Present {
    chains: BTreeSet<Chain>,
    jumps: BTreeSet<Chain>,
    /// Jumps as they are, to be deleted: the table, the chain and the rule.
    jump_rules: Vec<(Table, String, String)>,
    pub(super) rules: BTreeSet<Rule>,
}

impl Present {
    pub(super) fn of(saved: &Saved<'_>) -> Present {
        let mut present = Present::default();
        for chain in Chain::ALL {
            let Some(rules) = saved.chain(chain.table(), chain.name()) else {
                continue;
            };
            present.chains.insert(chain);
            present
                .rules
                .extend(rules.iter().map(|rule| (chain, (*rule).to_owned())));
        }
        for chain in Chain::ALL {
            let (_, jump) = chain.jump();
            let (table, rule) = (jump.table, jump.rule());
            let into = |(from, rule): &(&str, &str)| *from != jump.to && target(rule) == Some(jump.to);
            for (from, found) in saved.rules(table).filter(into) {
                if from == jump.from && found == rule {
                    present.jumps.insert(chain);
                }
                let found = (table, from.to_owned(), found.to_owned());
                present.jump_rules.push(found);
            }
        }
        present
    }

    /// Whether every chain and every jump is there.
    pub(super) fn is_wired(&self) -> bool {
        Chain::ALL
            .iter()
            .all(|chain| self.chains.contains(chain) && self.jumps.contains(chain))
    }
}

/// Brings everything in order, whatever is there: chains, jumps, rules.
pub(super) fn whole(present: &Present, want: &BTreeSet<Rule>) -> Document {
    let mut document = Document::default();
    for chain in Chain::ALL {
        // Naming a chain empties it, in the same transaction that fills it again.
        document.declare(chain.table(), chain.name());
        let (command, jump) = chain.jump();
        if !present.jumps.contains(&chain) {
            document.rule(jump.table, &(), command, jump.from, &jump.rule());
        }
    }
    add(&mut document, want);
    document
}

/// Removes some rules and adds others.
pub(super) fn change(gone: &BTreeSet<Rule>, new: &BTreeSet<Rule>) -> Document {
    let mut document = Document::default();
    for (chain, rule) in gone {
        document.remove(chain.table(), chain.name(), rule);
    }
    add(&mut document, new);
    document
}

fn add(document: &mut Document, rules: &BTreeSet<Rule>) {
    for (chain, rule) in rules {
        document.append(chain.table(), chain.name(), rule);
    }
}

/// Removes everything; empty if nothing is there.
pub(super) fn removal(present: &Present) -> Document {
    let mut document = Document::default();
    if present.chains.is_empty() {
        return document;
    }
    for chain in &present.chains {
        document.delete(chain.table(), chain.name());
    }
    for (table, from, rule) in &present.jump_rules {
        document.remove(*table, from, rule);
    }
    document
}

#[cfg(test)]
mod tests {
    use ferry_model::{Detector, Family, Masqueraded, Protocol, ServiceName};

    use super::*;

    fn node(node_ports: NodePorts) -> NodeFamily {
        NodeFamily {
            detector: Detector::None,
            masqueraded: Masqueraded::Everybody,
            node_ip: None,
            node_ports,
            localhost_node_ports: true,
            service_cidrs: Vec::new(),
            addresses: Vec::new(),
        }
    }

    fn of(leads: &[FrontendKey], listen: Listen, node_ports: NodePorts) -> Vec<String> {
        let service = ServiceName::new("shop", "web");
        let name = PortName {
            service,
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let rules = rules(
            &name,
            &leads.iter().copied().collect(),
            4000,
            listen,
            &node(node_ports),
        );
        rules
            .into_iter()
            .map(|(chain, rule)| format!("{} {rule}", chain.name()))
            .collect()
    }

    const EVERYWHERE: Listen = Listen {
        address: None,
        node: None,
    };

    #[test]
    fn a_cluster_ip_is_redirected_for_pods_and_translated_for_the_node() {
        let vip = FrontendKey::Address("10.96.0.1".parse().unwrap(), 80, Protocol::Tcp);
        let listen = Listen {
            address: None,
            node: "192.0.2.10".parse().ok(),
        };
        let to = "-d 10.96.0.1/32 -p tcp -m comment --comment \"shop/web:http\" -m tcp --dport 80";
        let guard = "-p tcp -m comment --comment \"shop/web:http\" -m tcp --dport 4000";
        assert_eq!(
            of(&[vip], listen, NodePorts::All),
            [
                format!("KUBE-PORTALS-CONTAINER {to} -j REDIRECT --to-ports 4000"),
                format!("KUBE-PORTALS-HOST {to} -j DNAT --to-destination 192.0.2.10:4000"),
                format!("KUBE-NODEPORT-NON-LOCAL {guard} -m conntrack ! --ctstate DNAT -j DROP"),
            ]
        );
    }

    #[test]
    fn node_ports_keep_to_their_addresses() {
        let only = NodePorts::Only(vec!["192.0.2.10".parse().unwrap()]);
        let lines = of(
            &[FrontendKey::NodePort(Family::V4, 30080, Protocol::Tcp)],
            EVERYWHERE,
            only,
        );
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("KUBE-NODEPORT-CONTAINER -d 192.0.2.10/32 -p tcp"));
        assert!(
            lines[2].ends_with("--dport 4000 -m conntrack ! --ctstate DNAT -j DROP"),
            "{}",
            lines[2]
        );
        assert!(
            lines[3].ends_with("--dport 4000 -m conntrack --ctstate DNAT -j ACCEPT"),
            "{}",
            lines[3]
        );
    }

    #[test]
    fn what_was_written_is_found_again_and_can_be_removed() {
        let vip = FrontendKey::Address("2001:db8::1".parse().unwrap(), 80, Protocol::Tcp);
        let name = PortName {
            service: ServiceName::new("shop", "web"),
            port: "".into(),
            protocol: Protocol::Udp,
        };
        let want = rules(&name, &[vip].into(), 4000, EVERYWHERE, &node(NodePorts::All));
        let nothing = Present::of(&Saved::parse("*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"));
        assert!(!nothing.is_wired() && removal(&nothing).is_empty());
        // What save prints after that: inserted rules are appended ones.
        let saved = whole(&nothing, &want).text().replace("-I ", "-A ");
        let present = Present::of(&Saved::parse(&saved));
        assert!(present.is_wired());
        assert_eq!(present.rules, want);
        assert!(change(&BTreeSet::new(), &BTreeSet::new()).is_empty());
        let removed = removal(&present).text();
        for chain in Chain::ALL {
            assert!(removed.contains(&format!("-X {}\n", chain.name())));
        }
        assert_eq!(removed.matches("-D PREROUTING").count(), 2);
        // With both jumps there, nothing is jumped to twice.
        assert!(!whole(&present, &want).text().contains("PREROUTING"));
    }
}
