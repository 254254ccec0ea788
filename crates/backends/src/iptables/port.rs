//! The rules of one service port: where its traffic is told apart, and the chains that it then goes through.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::LazyLock;

use ferry_host::iptables::Chains;
use ferry_model::{Detector, Endpoint, PortPlan, Protocol, Scope, TrafficPolicy, Verdict};

use super::names::{self, Shared, hashed, hashed_chain};
use super::render::{COUNTER_LOCALHOST, Context, localhost};
use super::ruleset::ServiceRules;

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

    fn to(&self, ip: IpAddr) -> String {
        format!("{} -d {ip} --dport {}", self.protocol, self.plan.port)
    }

    fn has_firewall(&self) -> bool {
        self.plan.has_endpoints
            && !self.plan.load_balancer_ips.is_empty()
            && !self.plan.source_ranges.is_empty()
    }

    fn has_external_chain(&self) -> bool {
        self.plan.has_endpoints && self.plan.externally_accessible
    }

    /// What the filter table does with traffic that is not forwarded: comment and target.
    fn refusal(&self, verdict: Verdict) -> Option<(String, &'static str)> {
        let comment = |what: &str| format!("-m comment --comment \"{} {what}\"", self.name());
        match verdict {
            Verdict::Forward(_) => None,
            Verdict::Reject => Some((comment("has no endpoints"), "-j REJECT")),
            Verdict::Drop => Some((comment("has no local endpoints"), "-j DROP")),
        }
    }

    /// The rules in chains that all services share.
    pub(super) fn dispatch(&self, rules: &mut ServiceRules) {
        let named = |what: &str, ip: IpAddr, chain: &str| {
            format!(
                "-m comment --comment \"{} {what}\" {} -j {chain}",
                self.name(),
                self.to(ip)
            )
        };
        if let Verdict::Forward(scope) = self.plan.internal {
            let chain = self.pool_chain(scope);
            rules
                .shared_mut(Shared::NatServices)
                .push(named("cluster IP", self.plan.cluster_ip, &chain));
        }
        if let Some((comment, target)) = self.refusal(self.plan.internal) {
            let rule = format!("{comment} {} {target}", self.to(self.plan.cluster_ip));
            rules.shared_mut(Shared::FilterServices).push(rule);
        }
        if self.plan.has_endpoints {
            let (external, balanced) = match self.has_firewall() {
                true => (self.chain("EXT"), self.chain("FW")),
                false => (self.chain("EXT"), self.chain("EXT")),
            };
            let services = rules.shared_mut(Shared::NatServices);
            services.extend(
                self.plan
                    .external_ips
                    .iter()
                    .map(|ip| named("external IP", *ip, &external)),
            );
            services.extend(
                self.plan
                    .load_balancer_ips
                    .iter()
                    .map(|ip| named("loadbalancer IP", *ip, &balanced)),
            );
        }
        if self.has_firewall() {
            let dropped = format!("traffic not accepted by {}", self.chain("FW"));
            let drop = |ip: &IpAddr| {
                format!(
                    "-m comment --comment \"{} {dropped}\" {} -j DROP",
                    self.name(),
                    self.to(*ip)
                )
            };
            rules
                .shared_mut(Shared::FilterFirewall)
                .extend(self.plan.load_balancer_ips.iter().map(drop));
        }
        if let Some((comment, target)) = self.refusal(self.plan.external.verdict) {
            let refused = self
                .plan
                .external_addresses()
                .map(|ip| format!("{comment} {} {target}", self.to(ip)));
            rules.shared_mut(Shared::FilterExternal).extend(refused);
        }
        if let Some(node_port) = self.plan.node_port {
            self.dispatch_node_port(node_port, rules);
        }
    }

    fn dispatch_node_port(&self, node_port: u16, rules: &mut ServiceRules) {
        let (protocol, chain) = (self.protocol, self.chain("EXT"));
        if self.plan.has_endpoints {
            let node_ports = rules.shared_mut(Shared::NatNodePorts);
            if localhost(self.context) && self.context.style.count_localhost {
                node_ports.push(format!(
                    "-m comment --comment {} {protocol} -d 127.0.0.0/8 --dport {node_port} -m nfacct \
                     --nfacct-name {COUNTER_LOCALHOST} -j {chain}",
                    self.name()
                ));
            }
            node_ports.push(format!(
                "-m comment --comment {} {protocol} --dport {node_port} -j {chain}",
                self.name()
            ));
        }
        if let Some((comment, target)) = self.refusal(self.plan.external.verdict) {
            rules.shared_mut(Shared::FilterExternal).push(format!(
                "{comment} -m addrtype --dst-type LOCAL {protocol} --dport {node_port} {target}"
            ));
        }
    }

    /// The chains of this port and of its endpoints.
    pub(super) fn chains(&self, chains: &mut Chains) {
        if self.has_external_chain() {
            self.external_chain(chains);
        }
        if self.has_firewall() {
            self.firewall_chain(chains);
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

    fn external_chain(&self, chains: &mut Chains) {
        let comment = |what: &str| {
            format!(
                "-m comment --comment \"{what} {} external destinations\"",
                self.name()
            )
        };
        let cluster = self.chain("SVC");
        chains.begin(&self.chain("EXT"));
        match self.plan.external.policy {
            TrafficPolicy::Cluster => {
                chains.rule(&[&comment("masquerade traffic for"), " -j ", names::MARK_MASQ]);
            }
            TrafficPolicy::Local => {
                if let Some(local) = self.pod_source(true) {
                    chains.rule(&[&comment("pod traffic for"), " ", &local, " -j ", &cluster]);
                }
                let own = " -m addrtype --src-type LOCAL -j ";
                chains.rule(&[&comment("masquerade LOCAL traffic for"), own, names::MARK_MASQ]);
                chains.rule(&[&comment("route LOCAL traffic for"), own, &cluster]);
            }
        }
        if let Verdict::Forward(scope) = self.plan.external.verdict {
            chains.rule(&["-j ", &self.pool_chain(scope)]);
        }
    }

    fn firewall_chain(&self, chains: &mut Chains) {
        let (comment, external) = ("-m comment --comment \"", self.chain("EXT"));
        let allow = |source: &dyn ToString, chains: &mut Chains| {
            let source = source.to_string();
            let to = "loadbalancer IP\" -s ";
            chains.rule(&[comment, self.name(), " ", to, &source, " -j ", &external]);
        };
        chains.begin(&self.chain("FW"));
        self.plan.source_ranges.iter().for_each(|net| allow(net, chains));
        if self.plan.node_in_source_ranges {
            self.plan
                .load_balancer_ips
                .iter()
                .for_each(|ip| allow(ip, chains));
        }
        let (others, dropped) = ("other traffic to ", " will be dropped by ");
        chains.rule(&[comment, others, self.name(), dropped, names::PROXY_FIREWALL, "\""]);
    }

    /// The chain that picks an endpoint, if there is any.
    fn pool(&self, scope: Scope, targets: &[&Target<'_>], chains: &mut Chains) {
        if targets.is_empty() {
            return;
        }
        chains.begin(&self.pool_chain(scope));
        if self.plan.internal == Verdict::Forward(scope)
            && let Some(source) = self.masqueraded_sources()
        {
            let (comment, to) = ("-m comment --comment \"", self.to(self.plan.cluster_ip));
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
    fn masqueraded_sources(&self) -> Option<String> {
        match self.context.node.masquerade_all {
            true => Some(String::new()),
            false => self.pod_source(false).map(|not_pods| not_pods + " "),
        }
    }

    /// A match for traffic that comes from local pods, or that does not.
    fn pod_source(&self, from: bool) -> Option<String> {
        let not = if from { "" } else { "! " };
        match &self.context.node.family(self.context.family).detector {
            Detector::None => None,
            Detector::Cidr(net) => Some(format!("{not}-s {net}")),
            Detector::Bridge(name) => Some(format!("{not}-i {name}")),
            Detector::InterfacePrefix(prefix) => Some(format!("{not}-i {prefix}+")),
        }
    }

    fn target_comment(&self, target: &Target<'_>) -> String {
        match self.context.comments {
            true => {
                let comment = "-m comment --comment \"";
                [comment, self.name(), " -> ", &target.address, "\" "].concat()
            }
            false => String::new(),
        }
    }

    fn endpoint(&self, target: &Target<'_>, chains: &mut Chains) {
        let Target { address, chain, .. } = target;
        let comment = match self.context.comments {
            true => ["-m comment --comment ", self.name(), " "],
            false => [""; 3],
        };
        let remember = match self.plan.affinity {
            Some(_) => ["-m recent --name ", chain, " --set "],
            None => [""; 3],
        };
        let (comment, remember) = (comment.concat(), remember.concat());
        chains.begin(chain);
        chains.rule(&[&comment, "-s ", target.ip(), " -j ", names::MARK_MASQ]);
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
