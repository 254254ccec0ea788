//! The rules of one service port: where its traffic is told apart, and the chains that it then goes through.

use std::fmt::Write;
use std::net::IpAddr;

use ferry_model::{Detector, Endpoint, PortPlan, Scope, TrafficPolicy, Verdict};

use super::names::{self, Shared, endpoint_chain, port_hash};
use super::render::{COUNTER_LOCALHOST, Context, localhost};
use super::ruleset::{Chain, ServiceRules};

/// One service port, with the texts that its rules repeat.
pub(super) struct Port<'a> {
    plan: &'a PortPlan,
    context: &'a Context<'a>,
    pub(super) name: String,
    hash: String,
}

impl<'a> Port<'a> {
    pub(super) fn of(plan: &'a PortPlan, context: &'a Context<'a>) -> Self {
        Port {
            plan,
            context,
            name: plan.name.to_string(),
            hash: port_hash(&plan.name),
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

    fn protocol(&self) -> String {
        let protocol = self.plan.protocol();
        format!("-m {protocol} -p {protocol}")
    }

    fn to(&self, ip: IpAddr) -> String {
        format!("{} -d {ip} --dport {}", self.protocol(), self.plan.port)
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
        let (protocol, chain) = (self.protocol(), self.chain("EXT"));
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
        let reachable: Vec<(&Endpoint, String)> = self
            .plan
            .reachable()
            .map(|endpoint| (endpoint, endpoint_chain(&self.plan.name, endpoint.address)))
            .collect();
        for scope in [Scope::Cluster, Scope::Local] {
            let in_pool = |endpoint: &Endpoint| match scope {
                Scope::Cluster => endpoint.in_cluster_pool(),
                Scope::Local => endpoint.in_local_pool(),
            };
            let pool: Vec<_> = reachable
                .iter()
                .filter(|(endpoint, _)| in_pool(endpoint))
                .collect();
            if !pool.is_empty() {
                chains.push(self.pool(scope, &pool));
            }
        }
        chains.extend(
            reachable
                .iter()
                .map(|(endpoint, chain)| self.endpoint(endpoint, chain)),
        );
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

    /// The chain that picks an endpoint.
    fn pool(&self, scope: Scope, endpoints: &[&(&Endpoint, String)]) -> Chain {
        let mut rules = Vec::new();
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
            rules.extend(endpoints.iter().map(|(endpoint, chain)| {
                let comment = self.endpoint_comment(endpoint);
                format!("{comment}-m recent --name {chain} --rcheck --seconds {seconds} --reap -j {chain}")
            }));
        }
        for (index, (endpoint, chain)) in endpoints.iter().enumerate() {
            let mut rule = self.endpoint_comment(endpoint);
            let left = endpoints.len() - index;
            if left > 1 {
                let probability = probability(left);
                let _ = write!(rule, "-m statistic --mode random --probability {probability} ");
            }
            let _ = write!(rule, "-j {chain}");
            rules.push(rule);
        }
        Chain {
            name: self.pool_chain(scope),
            rules,
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

    fn endpoint_comment(&self, endpoint: &Endpoint) -> String {
        match self.context.comments {
            true => format!("-m comment --comment \"{} -> {}\" ", self.name, endpoint.address),
            false => String::new(),
        }
    }

    fn endpoint(&self, endpoint: &Endpoint, chain: &str) -> Chain {
        let comment = match self.context.comments {
            true => format!("-m comment --comment {} ", self.name),
            false => String::new(),
        };
        let remember = match self.plan.affinity {
            Some(_) => format!("-m recent --name {chain} --set "),
            None => String::new(),
        };
        let address = endpoint.address;
        Chain {
            name: chain.to_owned(),
            rules: vec![
                format!("{comment}-s {} -j {}", address.ip(), names::MARK_MASQ),
                format!(
                    "{comment}{remember}{} -j DNAT --to-destination {address}",
                    self.protocol()
                ),
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
