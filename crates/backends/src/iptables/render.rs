//! A plan as iptables rules, services in the order of their names: rule for rule what kube-proxy 1.36 writes, but for
//! what [`Likeness`] names.

use ferry_host::iptables::Jump;
use ferry_model::{Family, NodePlan, NodePorts, Plan, ServicePlan};

use super::names::{self, Shared, Table};
use super::port::Port;
use super::ruleset::{NodeChain, NodeRules, Ruleset, ServiceRules};
use crate::Likeness;
use crate::chains::masquerade;

/// The kernel's counters that rules can refer to, by their names.
pub(super) const COUNTER_INVALID: &str = "ct_state_invalid_dropped_pkts";
pub(super) const COUNTER_LOCALHOST: &str = "localhost_nps_accepted_pkts";

/// What rules depend on beside the plan: what the operator, the programs and the kernel say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Style {
    /// The bit that marks packets to be masqueraded.
    pub(super) mark: u32,
    /// The programs know `MASQUERADE --random-fully`.
    pub(super) random_fully: bool,
    /// Conntrack does not call out-of-window TCP packets invalid, so invalid ones are not dropped.
    pub(super) tcp_liberal: bool,
    /// The kernel counts packets dropped as invalid.
    pub(super) count_invalid: bool,
    /// The kernel counts packets for node ports on loopback addresses.
    pub(super) count_localhost: bool,
    pub(super) likeness: Likeness,
}

/// All that a service's rules depend on but the service.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub(super) family: Family,
    pub(super) node: &'a NodePlan,
    pub(super) style: Style,
    /// Off in large clusters, for the rules of endpoints only.
    pub(super) comments: bool,
}

/// Everything, for people and tests.
pub(super) fn render(plan: &Plan, context: &Context<'_>) -> Ruleset {
    Ruleset {
        node: render_node(context),
        services: plan
            .services()
            .map(|service| render_service(service, context))
            .collect(),
    }
}

const JUMPS: [Jump; 14] = {
    const fn jump(
        table: Table,
        from: &'static str,
        matches: &'static str,
        comment: &'static str,
        to: &'static str,
    ) -> Jump {
        Jump {
            table,
            from,
            matches,
            comment,
            to,
        }
    }
    const NEW: &str = "-m conntrack --ctstate NEW";
    const EXTERNAL: &str = "kubernetes externally-visible service portals";
    const PORTALS: &str = "kubernetes service portals";
    const FIREWALL: &str = "kubernetes load balancer firewall";
    [
        jump(Table::Filter, "INPUT", NEW, EXTERNAL, names::EXTERNAL_SERVICES),
        jump(Table::Filter, "FORWARD", NEW, EXTERNAL, names::EXTERNAL_SERVICES),
        jump(
            Table::Filter,
            "INPUT",
            "",
            "kubernetes health check service ports",
            names::NODE_PORTS,
        ),
        jump(Table::Filter, "FORWARD", NEW, PORTALS, names::SERVICES),
        jump(Table::Filter, "OUTPUT", NEW, PORTALS, names::SERVICES),
        jump(
            Table::Filter,
            "FORWARD",
            "",
            "kubernetes forwarding rules",
            names::FORWARD,
        ),
        jump(Table::Filter, "INPUT", NEW, FIREWALL, names::PROXY_FIREWALL),
        jump(Table::Filter, "OUTPUT", NEW, FIREWALL, names::PROXY_FIREWALL),
        jump(Table::Filter, "FORWARD", NEW, FIREWALL, names::PROXY_FIREWALL),
        jump(Table::Nat, "OUTPUT", "", PORTALS, names::SERVICES),
        jump(Table::Nat, "PREROUTING", "", PORTALS, names::SERVICES),
        jump(
            Table::Nat,
            "POSTROUTING",
            "",
            "kubernetes postrouting rules",
            names::POSTROUTING,
        ),
        jump(Table::Filter, "INPUT", "", "", names::KUBELET_FIREWALL),
        jump(Table::Filter, "OUTPUT", "", "", names::KUBELET_FIREWALL),
    ]
};

pub(super) fn render_node(context: &Context<'_>) -> NodeRules {
    let Style {
        random_fully,
        tcp_liberal,
        count_invalid,
        mark,
        likeness,
        ..
    } = context.style;
    let mark = format!("{mark:#010x}");
    let mut forward = Vec::new();
    if !tcp_liberal {
        let counter = if count_invalid {
            format!("-m nfacct --nfacct-name {COUNTER_INVALID} ")
        } else {
            String::new()
        };
        forward.push(format!("-m conntrack --ctstate INVALID {counter}-j DROP"));
    }
    forward.push(format!(
        "-m comment --comment \"kubernetes forwarding rules\" -m mark --mark {mark}/{mark} -j ACCEPT"
    ));
    forward.push(
        "-m comment --comment \"kubernetes forwarding conntrack rule\" -m conntrack --ctstate RELATED,ESTABLISHED \
         -j ACCEPT"
            .to_owned(),
    );
    let mut postrouting = vec![
        format!("-m mark ! --mark {mark}/{mark} -j RETURN"),
        format!("-j MARK --xor-mark {mark}"),
    ];
    postrouting.extend(masquerade(likeness, random_fully));
    let chain = |table, name: &str, rules| {
        (
            table,
            NodeChain {
                name: name.to_owned(),
                rules,
            },
        )
    };
    NodeRules {
        chains: vec![
            chain(Table::Filter, names::FORWARD, forward),
            chain(Table::Nat, names::POSTROUTING, postrouting),
            chain(
                Table::Nat,
                names::MARK_MASQ,
                vec![format!("-j MARK --or-mark {mark}")],
            ),
        ],
        kubelet_firewall: localhost(context).then(|| {
            "-m comment --comment \"block incoming localnet connections\" -d 127.0.0.0/8 ! -s 127.0.0.0/8 \
             -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP"
                .to_owned()
        }),
        tail: tail(context),
        jumps: &JUMPS,
    }
}

/// Whether node ports answer on IPv4 loopback addresses; never on IPv6 ones.
fn localhost(context: &Context<'_>) -> bool {
    context.family == Family::V4 && context.node.family(Family::V4).localhost_node_ports
}

fn tail(context: &Context<'_>) -> Vec<String> {
    let comment = "-m comment --comment \"kubernetes service nodeports; NOTE: this must be the last rule in this chain\"";
    let jump = format!("-j {}", names::NODE_PORTS);
    match &context.node.family(context.family).node_ports {
        NodePorts::All => {
            let but = match context.family {
                Family::V6 => "! -d ::1/128 ",
                Family::V4 if !localhost(context) => "! -d 127.0.0.0/8 ",
                Family::V4 => "",
            };
            vec![format!("{comment} -m addrtype --dst-type LOCAL {but}{jump}")]
        }
        NodePorts::Only(addresses) => addresses
            .iter()
            .filter(|ip| !ip.is_loopback() || localhost(context))
            .map(|ip| format!("{comment} -d {ip} {jump}"))
            .collect(),
    }
}

pub(super) fn render_service(service: &ServicePlan, context: &Context<'_>) -> ServiceRules {
    let mut rules = ServiceRules::default();
    render_into(service, context, &mut rules);
    rules
}

/// As [`render_service`], into memory that was used before.
pub(super) fn render_into(service: &ServicePlan, context: &Context<'_>, rules: &mut ServiceRules) {
    rules.clear();
    for port in service.ports(context.family) {
        let port = Port::of(port, context);
        dispatch(service, &port, rules);
        port.chains(&mut rules.chains);
    }
}

/// The part of a service in the chains that all services share, without its own chains.
pub(super) fn render_shared(service: &ServicePlan, context: &Context<'_>) -> ServiceRules {
    let mut rules = ServiceRules::default();
    for port in service.ports(context.family) {
        dispatch(service, &Port::of(port, context), &mut rules);
    }
    rules
}

fn dispatch(service: &ServicePlan, port: &Port<'_>, rules: &mut ServiceRules) {
    port.dispatch(rules);
    if let Some(check) = &service.health_check {
        rules.shared_mut(Shared::FilterNodePorts).push(format!(
            "-m comment --comment \"{} health check node port\" -m tcp -p tcp --dport {} -j ACCEPT",
            port.name(),
            check.port
        ));
    }
}
