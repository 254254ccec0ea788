//! The rules of one service port: where its traffic is told apart, and the chains that it then goes through.

use std::net::IpAddr;

use ferry_model::{Detector, Endpoint, PortPlan, Scope, TrafficPolicy, Verdict};

use super::names::{self, Shared, hashed, hashed_chain};
use super::render::{COUNTER_LOCALHOST, Context, localhost};
use super::ruleset::{Chain, ServiceRules};

/// One service port, with the texts that its rules repeat.
pub(super) struct Port<'a> {
    plan: &'a PortPlan,
    context: &'a Context<'a>,
    pub(super) name: String,
    /// What the names of its chains are hashed from.
    hashed: String,
    hash: String,
    protocol: String,
}

/// An endpoint with the texts that its rules repeat.
struct Target<'a> {
    endpoint: &'a Endpoint,
    address: String,
    chain: String,
}

impl<'a> Port<'a> {
    pub(super) fn of(plan: &'a PortPlan, context: &'a Context<'a>) -> Self {
        let hashed = hashed(&plan.name);
        let protocol = plan.protocol();
        Port {
            plan,
            context,
            name: plan.name.to_string(),
            hash: hashed_chain("", &[&hashed]),
            hashed,
            protocol: format!("-m {protocol} -p {protocol}"),
        }
    }

    fn chain(&self, kind: &str) -> String {
        format!("KUBE-{kind}-{}", self.hash)
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
        let comment = |what: &str| format!("-m comment --comment \"{} {what}\"", self.name);
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
                self.name,
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
                    self.name,
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
        let (protocol, chain) = (&self.protocol, self.chain("EXT"));
        if self.plan.has_endpoints {
            let node_ports = rules.shared_mut(Shared::NatNodePorts);
            if localhost(self.context) && self.context.style.count_localhost {
                node_ports.push(format!(
                    "-m comment --comment {} {protocol} -d 127.0.0.0/8 --dport {node_port} -m nfacct \
                     --nfacct-name {COUNTER_LOCALHOST} -j {chain}",
                    self.name
                ));
            }
            node_ports.push(format!(
                "-m comment --comment {} {protocol} --dport {node_port} -j {chain}",
                self.name
            ));
        }
        if let Some((comment, target)) = self.refusal(self.plan.external.verdict) {
            rules.shared_mut(Shared::FilterExternal).push(format!(
                "{comment} -m addrtype --dst-type LOCAL {protocol} --dport {node_port} {target}"
            ));
        }
    }

    /// The chains of this port and of its endpoints.
    pub(super) fn chains(&self, chains: &mut Vec<Chain>) {
        if self.has_external_chain() {
            chains.push(self.external_chain());
        }
        if self.has_firewall() {
            chains.push(self.firewall_chain());
        }
        let targets: Vec<Target<'_>> = self
            .plan
            .reachable()
            .map(|endpoint| self.target(endpoint))
            .collect();
        let cluster = targets.iter().filter(|target| target.endpoint.in_cluster_pool());
        let local = targets.iter().filter(|target| target.endpoint.in_local_pool());
        chains.extend(self.pool(Scope::Cluster, cluster.collect()));
        chains.extend(self.pool(Scope::Local, local.collect()));
        chains.extend(targets.iter().map(|target| self.endpoint(target)));
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

    fn external_chain(&self) -> Chain {
        let comment = |what: &str| {
            format!(
                "-m comment --comment \"{what} {} external destinations\"",
                self.name
            )
        };
        let cluster = self.chain("SVC");
        let mut rules = Vec::new();
        match self.plan.external.policy {
            TrafficPolicy::Cluster => {
                rules.push(format!(
                    "{} -j {}",
                    comment("masquerade traffic for"),
                    names::MARK_MASQ
                ));
            }
            TrafficPolicy::Local => {
                if let Some(local) = self.pod_source(true) {
                    rules.push(format!("{} {local} -j {cluster}", comment("pod traffic for")));
                }
                let own = "-m addrtype --src-type LOCAL -j";
                rules.push(format!(
                    "{} {own} {}",
                    comment("masquerade LOCAL traffic for"),
                    names::MARK_MASQ
                ));
                rules.push(format!("{} {own} {cluster}", comment("route LOCAL traffic for")));
            }
        }
        if let Verdict::Forward(scope) = self.plan.external.verdict {
            rules.push(format!("-j {}", self.pool_chain(scope)));
        }
        Chain {
            name: self.chain("EXT"),
            rules,
        }
    }

    fn firewall_chain(&self) -> Chain {
        let external = self.chain("EXT");
        let allow = |source: String| {
            format!(
                "-m comment --comment \"{} loadbalancer IP\" -s {source} -j {external}",
                self.name
            )
        };
        let mut rules: Vec<String> = self
            .plan
            .source_ranges
            .iter()
            .map(|net| allow(net.to_string()))
            .collect();
        if self.plan.node_in_source_ranges {
            rules.extend(self.plan.load_balancer_ips.iter().map(|ip| allow(ip.to_string())));
        }
        rules.push(format!(
            "-m comment --comment \"other traffic to {} will be dropped by {}\"",
            self.name,
            names::PROXY_FIREWALL
        ));
        Chain {
            name: self.chain("FW"),
            rules,
        }
    }

    /// The chain that picks an endpoint, if there is any.
    fn pool(&self, scope: Scope, targets: Vec<&Target<'_>>) -> Option<Chain> {
        let mut rules = Vec::with_capacity(targets.len() + 1);
        if self.plan.internal == Verdict::Forward(scope)
            && let Some(source) = self.masqueraded_sources()
        {
            rules.push(format!(
                "-m comment --comment \"{} cluster IP\" {} {source}-j {}",
                self.name,
                self.to(self.plan.cluster_ip),
                names::MARK_MASQ
            ));
        }
        if let Some(timeout) = self.plan.affinity {
            let seconds = timeout.as_secs();
            rules.extend(targets.iter().map(|target| {
                let (comment, chain) = (self.target_comment(target), &target.chain);
                format!("{comment}-m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}")
            }));
        }
        for (index, target) in targets.iter().enumerate() {
            let chance = match targets.len() - index {
                1 => String::new(),
                left => format!("-m statistic --mode random --probability {} ", probability(left)),
            };
            rules.push([&*self.target_comment(target), &chance, "-j ", &target.chain].concat());
        }
        (!targets.is_empty()).then(|| Chain {
            name: self.pool_chain(scope),
            rules,
        })
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
            true => [
                "-m comment --comment \"",
                &self.name,
                " -> ",
                &target.address,
                "\" ",
            ]
            .concat(),
            false => String::new(),
        }
    }

    fn endpoint(&self, target: &Target<'_>) -> Chain {
        let Target {
            endpoint,
            address,
            chain,
        } = target;
        let comment = match self.context.comments {
            true => ["-m comment --comment ", &self.name, " "].concat(),
            false => String::new(),
        };
        let remember = match self.plan.affinity {
            Some(_) => ["-m recent --name ", chain, " --set "].concat(),
            None => String::new(),
        };
        let ip = endpoint.address().ip().to_string();
        Chain {
            name: chain.clone(),
            rules: vec![
                [&*comment, "-s ", &ip, " -j ", names::MARK_MASQ].concat(),
                [
                    &*comment,
                    &remember,
                    &self.protocol,
                    " -j DNAT --to-destination ",
                    address,
                ]
                .concat(),
            ],
        }
    }
}

/// The chance of the first of this many.
fn probability(of: usize) -> String {
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
