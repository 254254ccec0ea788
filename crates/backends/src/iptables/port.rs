//! The rules of one service port: where its traffic is told apart, and the chains that it then goes through.

use std::borrow::Cow;
use std::sync::LazyLock;

use ferry_host::iptables::Chains;
use ferry_model::{
    Action, Actions, Allowed, Detector, Endpoint, Frontend, FrontendKind, PortPlan, Protocol, Scope,
};

use super::names::{self, Shared, hashed, hashed_chain};
use super::render::{COUNTER_LOCALHOST, Context};
use super::ruleset::ServiceRules;
use crate::Likeness;

/// One service port, with the texts that its rules repeat.
pub(super) struct Port<'a> {
    plan: &'a PortPlan,
    context: &'a Context<'a>,
    /// What the names of its chains are hashed from: its own name, and the protocol.
    hashed: String,
    hash: String,
    protocol: &'static str,
}

/// An endpoint with the texts that its rules repeat.
struct Target<'a> {
    endpoint: &'a Endpoint,
    address: String,
    chain: String,
}

impl Target<'_> {
    /// Its address without the port.
    fn ip(&self) -> &str {
        let ip = self.address.rsplit_once(':').map_or("", |(ip, _)| ip);
        ip.trim_start_matches('[').trim_end_matches(']')
    }
}

impl<'a> Port<'a> {
    pub(super) fn of(plan: &'a PortPlan, context: &'a Context<'a>) -> Self {
        let hashed = hashed(&plan.name);
        Port {
            plan,
            context,
            hash: hashed_chain("", &[&hashed]),
            hashed,
            protocol: match plan.protocol() {
                Protocol::Tcp => "-m tcp -p tcp",
                Protocol::Udp => "-m udp -p udp",
                Protocol::Sctp => "-m sctp -p sctp",
            },
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.hashed[..self.hashed.len() - self.plan.protocol().as_str().len()]
    }

    fn chain(&self, kind: &str) -> String {
        ["KUBE-", kind, "-", &self.hash].concat()
    }

    fn pool_chain(&self, scope: Scope) -> String {
        match scope {
            Scope::Cluster => self.chain("SVC"),
            Scope::Local => self.chain("SVL"),
        }
    }

    /// A match for what goes to a frontend.
    fn to(&self, frontend: &Frontend) -> String {
        let number = frontend.key.port();
        match frontend.key.address() {
            Some(ip) => format!("{} -d {ip} --dport {number}", self.protocol),
            None => format!("{} --dport {number}", self.protocol),
        }
    }

    /// Who may use the load-balancer IPs, if not everyone.
    fn allowed(&self) -> Option<&'a Allowed> {
        let mut balanced = self.plan.frontends(FrontendKind::LoadBalancerIp);
        balanced.find_map(|frontend| frontend.allowed.as_deref())
    }

    /// The rules in chains that all services share.
    pub(super) fn dispatch(&self, rules: &mut ServiceRules) {
        for frontend in &self.plan.frontends {
            self.forward(frontend, rules);
            self.guard(frontend, rules);
            self.refuse(frontend, rules);
        }
    }

    fn forward(&self, frontend: &Frontend, rules: &mut ServiceRules) {
        if !frontend.actions.forward() {
            return;
        }
        let (name, to) = (self.name(), self.to(frontend));
        let (what, chain) = match frontend.kind {
            FrontendKind::ClusterIp => match frontend.actions.others.scope() {
                Some(scope) => ("cluster IP", self.pool_chain(scope)),
                None => return,
            },
            FrontendKind::ExternalIp => ("external IP", self.chain("EXT")),
            FrontendKind::LoadBalancerIp if frontend.allowed.is_some() => {
                ("loadbalancer IP", self.chain("FW"))
            }
            FrontendKind::LoadBalancerIp => ("loadbalancer IP", self.chain("EXT")),
            FrontendKind::NodePort => return self.forward_node_port(frontend, rules),
            // One rule serves all addresses that answer node ports.
            FrontendKind::LocalhostNodePort => return,
        };
        rules
            .shared_mut(Shared::NatServices)
            .push(format!("-m comment --comment \"{name} {what}\" {to} -j {chain}"));
    }

    fn forward_node_port(&self, frontend: &Frontend, rules: &mut ServiceRules) {
        let (protocol, chain, number) = (self.protocol, self.chain("EXT"), frontend.key.port());
        let node_ports = rules.shared_mut(Shared::NatNodePorts);
        let mut localhost = self.plan.frontends(FrontendKind::LocalhostNodePort);
        if self.context.style.count_localhost && localhost.next().is_some() {
            node_ports.push(format!(
                "-m comment --comment {} {protocol} -d 127.0.0.0/8 --dport {number} -m nfacct \
                 --nfacct-name {COUNTER_LOCALHOST} -j {chain}",
                self.name()
            ));
        }
        node_ports.push(format!(
            "-m comment --comment {} {} -j {chain}",
            self.name(),
            self.to(frontend)
        ));
    }

    /// Drops what the chain of source ranges did not let through.
    fn guard(&self, frontend: &Frontend, rules: &mut ServiceRules) {
        if frontend.kind == FrontendKind::LoadBalancerIp && frontend.allowed.is_some() {
            rules.shared_mut(Shared::FilterFirewall).push(format!(
                "-m comment --comment \"{} traffic not accepted by {}\" {} -j DROP",
                self.name(),
                self.chain("FW"),
                self.to(frontend)
            ));
        }
    }

    /// What the filter table does with traffic that is not forwarded.
    fn refuse(&self, frontend: &Frontend, rules: &mut ServiceRules) {
        let (what, target) = match frontend.actions.others {
            Action::Reject => ("has no endpoints", self.rejection()),
            Action::Drop => ("has no local endpoints", "-j DROP"),
            Action::Forward { .. } | Action::NotOurs => return,
        };
        let (chain, local) = match frontend.kind {
            FrontendKind::ClusterIp => (Shared::FilterServices, ""),
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp => (Shared::FilterExternal, ""),
            FrontendKind::NodePort => (Shared::FilterExternal, "-m addrtype --dst-type LOCAL "),
            // The node's rule about loopback addresses stops others.
            FrontendKind::LocalhostNodePort => return,
        };
        rules.shared_mut(chain).push(format!(
            "-m comment --comment \"{} {what}\" {local}{} {target}",
            self.name(),
            self.to(frontend)
        ));
    }

    /// An ICMP error for a connect() that waits is dropped by the kernel while the caller holds the socket: see the
    /// nftables mode.
    fn rejection(&self) -> &'static str {
        let tcp = self.plan.name.protocol == Protocol::Tcp;
        match self.context.style.likeness {
            Likeness::Outcomes if tcp => "-j REJECT --reject-with tcp-reset",
            Likeness::Outcomes | Likeness::Rules => "-j REJECT",
        }
    }

    /// The chains of this port and of its endpoints.
    pub(super) fn chains(&self, chains: &mut Chains) {
        if let Some(actions) = self.plan.external.filter(|actions| actions.forward()) {
            self.external_chain(&actions, chains);
        }
        if let Some(allowed) = self.allowed() {
            self.firewall_chain(allowed, chains);
        }
        let targets: Vec<Target<'_>> = self
            .plan
            .reachable()
            .map(|endpoint| self.target(endpoint))
            .collect();
        let cluster = targets.iter().filter(|target| target.endpoint.in_cluster_pool());
        let local = targets.iter().filter(|target| target.endpoint.in_local_pool());
        self.pool(Scope::Cluster, &cluster.collect::<Vec<_>>(), chains);
        self.pool(Scope::Local, &local.collect::<Vec<_>>(), chains);
        targets.iter().for_each(|target| self.endpoint(target, chains));
    }

    fn target<'e>(&self, endpoint: &'e Endpoint) -> Target<'e> {
        let address = endpoint.address().to_string();
        let chain = hashed_chain("KUBE-SEP-", &[&self.hashed, &address]);
        Target {
            endpoint,
            address,
            chain,
        }
    }

    fn external_chain(&self, actions: &Actions, chains: &mut Chains) {
        let comment = |what: &str| {
            format!(
                "-m comment --comment \"{what} {} external destinations\"",
                self.name()
            )
        };
        chains.begin(&self.chain("EXT"));
        if actions.uniform().is_none() {
            if let Some((source, scope)) = self.pod_source("").zip(actions.pods.scope()) {
                let pool = self.pool_chain(scope);
                chains.rule(&[&comment("pod traffic for"), " ", &source, " -j ", &pool]);
            }
            let own = " -m addrtype --src-type LOCAL -j ";
            if actions.node.masquerades() {
                chains.rule(&[&comment("masquerade LOCAL traffic for"), own, names::MARK_MASQ]);
            }
            if let Some(scope) = actions.node.scope() {
                chains.rule(&[&comment("route LOCAL traffic for"), own, &self.pool_chain(scope)]);
            }
        }
        if actions.others.masquerades() {
            chains.rule(&[&comment("masquerade traffic for"), " -j ", names::MARK_MASQ]);
        }
        if let Some(scope) = actions.others.scope() {
            chains.rule(&["-j ", &self.pool_chain(scope)]);
        }
    }

    fn firewall_chain(&self, allowed: &Allowed, chains: &mut Chains) {
        let (comment, external) = ("-m comment --comment \"", self.chain("EXT"));
        let allow = |source: &dyn ToString, chains: &mut Chains| {
            let source = source.to_string();
            let to = "loadbalancer IP\" -s ";
            chains.rule(&[comment, self.name(), " ", to, &source, " -j ", &external]);
        };
        chains.begin(&self.chain("FW"));
        allowed.ranges.iter().for_each(|net| allow(net, chains));
        allowed.own_addresses.iter().for_each(|ip| allow(ip, chains));
        let (others, dropped) = ("other traffic to ", " will be dropped by ");
        chains.rule(&[comment, others, self.name(), dropped, names::PROXY_FIREWALL, "\""]);
    }

    /// The chain that picks an endpoint, if there is any.
    fn pool(&self, scope: Scope, targets: &[&Target<'_>], chains: &mut Chains) {
        if targets.is_empty() {
            return;
        }
        chains.begin(&self.pool_chain(scope));
        let cluster_ip = self.plan.cluster_ip();
        if let Some(frontend) = cluster_ip.filter(|frontend| frontend.actions.others.scope() == Some(scope))
            && let Some(source) = self.masqueraded_sources(&frontend.actions)
        {
            let (comment, to) = ("-m comment --comment \"", self.to(frontend));
            let mark = ["-j ", names::MARK_MASQ].concat();
            chains.rule(&[comment, self.name(), " cluster IP\" ", &to, " ", &source, &mark]);
        }
        if let Some(timeout) = self.plan.affinity {
            let check = format!(" --rcheck --seconds {} --reap -j ", timeout.as_secs());
            for target in targets {
                let (comment, chain) = (self.target_comment(target), &target.chain);
                chains.rule(&[&comment, "-m recent --name ", chain, &check, chain]);
            }
        }
        for (index, target) in targets.iter().enumerate() {
            let comment = self.target_comment(target);
            match targets.len() - index {
                1 => chains.rule(&[&comment, "-j ", &target.chain]),
                left => {
                    let random = "-m statistic --mode random --probability ";
                    chains.rule(&[&comment, random, &probability(left), " -j ", &target.chain]);
                }
            }
        }
    }

    /// Which traffic to the cluster IP is masqueraded: a match with a space after it, or `None` for none at all.
    fn masqueraded_sources(&self, actions: &Actions) -> Option<String> {
        match (actions.pods.masquerades(), actions.others.masquerades()) {
            (true, _) => Some(String::new()),
            (false, true) => self.pod_source("! ").map(|not_pods| not_pods + " "),
            (false, false) => None,
        }
    }

    /// A match for traffic that comes from local pods, or that does not.
    fn pod_source(&self, not: &str) -> Option<String> {
        match &self.context.node.family(self.context.family).detector {
            Detector::None => None,
            Detector::Cidr(net) => Some(format!("{not}-s {net}")),
            Detector::Bridge(name) => Some(format!("{not}-i {name}")),
            Detector::InterfacePrefix(prefix) => Some(format!("{not}-i {prefix}+")),
        }
    }

    fn target_comment(&self, target: &Target<'_>) -> String {
        if !self.context.comments {
            return String::new();
        }
        let comment = "-m comment --comment \"";
        [comment, self.name(), " -> ", &target.address, "\" "].concat()
    }

    fn endpoint(&self, target: &Target<'_>, chains: &mut Chains) {
        let Target { address, chain, .. } = target;
        let comment = if self.context.comments {
            ["-m comment --comment ", self.name(), " "]
        } else {
            [""; 3]
        };
        let remember = match self.plan.affinity {
            Some(_) => ["-m recent --name ", chain, " --set "],
            None => [""; 3],
        };
        let (comment, remember) = (comment.concat(), remember.concat());
        chains.begin(chain);
        if target.endpoint.hairpins() {
            chains.rule(&[&comment, "-s ", target.ip(), " -j ", names::MARK_MASQ]);
        }
        let to = " -j DNAT --to-destination ";
        chains.rule(&[&comment, &remember, self.protocol, to, address]);
    }
}

/// The chance of the first of this many.
fn probability(of: usize) -> Cow<'static, str> {
    /// Those of most pools: writing a fraction takes longer than the rest of its rule.
    static COMMON: LazyLock<Vec<String>> = LazyLock::new(|| (0..=100).map(chance).collect());
    match COMMON.get(of) {
        Some(text) => Cow::Borrowed(text),
        None => Cow::Owned(chance(of)),
    }
}

fn chance(of: usize) -> String {
    format!("{:.10}", 1.0 / of as f64)
}

#[cfg(test)]
mod tests {
    use super::probability;

    #[test]
    fn probabilities_have_ten_decimals() {
        let expected = [
            (2, "0.5000000000"),
            (3, "0.3333333333"),
            (7, "0.1428571429"),
            (100_001, "0.0000099999"),
        ];
        for (of, text) in expected {
            assert_eq!(probability(of), text);
        }
    }

    #[test]
    fn more_endpoints_never_have_the_same_chance() {
        assert!((2..100_000).all(|of| probability(of) > probability(of + 1)));
    }
}
