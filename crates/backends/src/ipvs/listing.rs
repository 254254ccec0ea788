//! What the kernel would hold, in the words of its tools. Pure.

use std::net::SocketAddr;

use ferry_host::ipset::Kind;
use ferry_host::ipvs::SCHED2;
use ferry_model::{Family, Plan};

use super::diff::Before;
use super::ruleset::Ruleset;
use super::sets::Set;
use super::{DEVICE, Options, family, observe, rules};

/// Virtual servers as `ipvsadm -S -n` prints them, sets as `ipset save` does, the addresses of the interface, and rules
/// as `iptables-restore` reads them. The node's addresses are taken from the plan.
pub fn listing(plan: &Plan, family: Family, options: &Options) -> String {
    let own = plan.node().family(family).addresses.iter().copied();
    let addresses = observe::Addresses::from_plan(own);
    let view = observe::view(plan.node(), family, &addresses);
    let mut ruleset = Ruleset::default();
    family::render_all(&mut ruleset, plan, &view, options, &mut Before::default());
    let rules = family::rules(&ruleset, plan.node(), family, options, true);
    let mut text = String::from("# ipvsadm -R\n");
    let mut add = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    virtual_servers(&ruleset).into_iter().for_each(&mut add);
    add("# ipset restore".to_owned());
    sets(&ruleset, family).into_iter().for_each(&mut add);
    add(format!("# ip -batch -, of the interface {DEVICE}"));
    for address in ruleset.addresses() {
        add(format!("addr add {address} dev {DEVICE}"));
    }
    add("# iptables-restore --noflush".to_owned());
    text.push_str(&rules::document(&rules, None, &rules::JUMPS).text());
    text
}

/// As `ipvsadm -S -n` prints them.
pub(super) fn virtual_servers(ruleset: &Ruleset) -> Vec<String> {
    let mut lines = Vec::new();
    for (at, server) in ruleset.virtuals() {
        let protocol = match i32::from(at.protocol) {
            libc::IPPROTO_UDP => "-u",
            libc::IPPROTO_SCTP => "--sctp-service",
            _ => "-t",
        };
        let service = format!("{protocol} {}", SocketAddr::new(at.address, at.port));
        let mut line = format!("-A {service} -s {}", server.service.scheduler);
        if let Some(persistence) = server.service.persistence {
            line += &format!(" -p {}", persistence.as_secs());
        }
        if server.service.flags & SCHED2 != 0 {
            line += &format!(" -b {}-port", server.service.scheduler);
        }
        lines.push(line);
        let real = server.servers.iter();
        lines.extend(real.map(|real| format!("-a {service} -r {real} -m -w 1")));
    }
    lines
}

/// As `ipset save` prints them.
pub(super) fn sets(ruleset: &Ruleset, family: Family) -> Vec<String> {
    let mut lines = Vec::new();
    for set in Set::ALL {
        let (name, kind) = (set.name(family), set.kind());
        let options = match (kind, family) {
            (Kind::BitmapPort, _) => "range 0-65535",
            (_, Family::V4) => "family inet hashsize 1024 maxelem 65536",
            (_, Family::V6) => "family inet6 hashsize 1024 maxelem 65536",
        };
        lines.push(format!("create {name} {} {options}", kind.as_str()));
        let entries = ruleset.entries().filter(|(of, _)| *of == set);
        lines.extend(entries.map(|(_, entry)| format!("add {name} {entry}")));
    }
    lines
}
