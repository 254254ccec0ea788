//! What userspace mode would open and write, as text. Pure.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use ferry_model::{Family, Plan};

use super::live::Options;
use super::portals::{self, Listen, Present, Rule};
use super::render;
use super::ruleset::{DoorRule, Ingress, Place, PortRule};

/// Where proxy ports are numbered from here if no range is given: the kernel chooses when they are opened.
const FIRST_PROXY_PORT: u16 = 10001;

/// The table of listeners, then the rules that lead traffic to them as `iptables-restore` reads them.
pub fn listing(plan: &Plan, family: Family, options: &Options) -> String {
    let node = plan.node().family(family);
    let home = render::home(node);
    let first = options
        .ports
        .as_ref()
        .map_or(FIRST_PROXY_PORT, |ports| *ports.start());
    let bound = options
        .bind_address
        .filter(|ip| Family::of(*ip) == family && !ip.is_unspecified());
    let mut listing = Listing {
        family,
        bound,
        next_port: first,
        text: "# listeners; proxy ports get their numbers when they are opened\n".to_owned(),
        doors: Vec::new(),
    };
    for service in plan.services() {
        let ports = render::render(service, plan.node(), family, &home, options.ingress);
        ports.iter().for_each(|port| listing.port(port));
    }
    let Listing { mut text, doors, .. } = listing;
    if options.ingress != Ingress::Portals {
        return text;
    }
    let listen = Listen {
        address: bound,
        node: node.node_ip.filter(|ip| node.addresses.contains(ip)),
    };
    let rules: BTreeSet<Rule> = doors
        .iter()
        .flat_map(|(port, door, number)| portals::rules(&port.name, &door.leads, *number, listen, node))
        .collect();
    text.push_str("# iptables-restore --noflush\n");
    text.push_str(&portals::whole(&Present::default(), &rules).text());
    text
}

struct Listing {
    family: Family,
    bound: Option<IpAddr>,
    next_port: u16,
    text: String,
    /// With the number of its proxy port.
    doors: Vec<(PortRule, DoorRule, u16)>,
}

impl Listing {
    fn port(&mut self, port: &PortRule) {
        let protocol = port.name.protocol;
        for (place, door) in &port.doors {
            let at = match place {
                Place::At(at) => *at,
                Place::Proxy(_) => self.proxy_port(port, door),
            };
            let leads: Vec<String> = door.leads.iter().map(ToString::to_string).collect();
            self.line(&format!(
                "listen {protocol} {at}  {}, for {}",
                port.name,
                leads.join(", ")
            ));
            for line in door.access.describe(&port.pools) {
                self.line(&format!("  {line}"));
            }
        }
        for address in &port.addresses {
            self.line(&format!(
                "address {address} on the loopback interface  {}",
                port.name
            ));
        }
        for claim in &port.claims {
            self.line(&format!(
                "hold {protocol} {claim}  {}, so that nobody else takes it",
                port.name
            ));
        }
    }

    fn proxy_port(&mut self, port: &PortRule, door: &DoorRule) -> SocketAddr {
        let number = self.next_port;
        self.next_port = number.saturating_add(1);
        self.doors.push((port.clone(), door.clone(), number));
        SocketAddr::new(self.bound.unwrap_or_else(|| render::any(self.family)), number)
    }

    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }
}
