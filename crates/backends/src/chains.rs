//! The chains of kube-proxy's modes that write iptables rules, by name: modes take over and clean up each other's.
//! What a mode alone has stands in that mode.

use ferry_host::iptables::Ip;
use ferry_model::Family;

use crate::Likeness;

/// What all of them begin with, the kubelet's too.
pub(crate) const PREFIX: &str = "KUBE-";

pub(crate) const SERVICES: &str = "KUBE-SERVICES";
pub(crate) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(crate) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(crate) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(crate) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(crate) const FORWARD: &str = "KUBE-FORWARD";
pub(crate) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub(crate) const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";
pub(crate) const CANARY: &str = "KUBE-PROXY-CANARY";

// kube-proxy's userspace mode, until 1.25, and ours.
pub(crate) const PORTALS_CONTAINER: &str = "KUBE-PORTALS-CONTAINER";
pub(crate) const PORTALS_HOST: &str = "KUBE-PORTALS-HOST";
pub(crate) const NODE_PORT_CONTAINER: &str = "KUBE-NODEPORT-CONTAINER";
pub(crate) const NODE_PORT_HOST: &str = "KUBE-NODEPORT-HOST";
pub(crate) const NODE_PORT_NON_LOCAL: &str = "KUBE-NODEPORT-NON-LOCAL";

/// Chains in the nat table that belong to one service port or endpoint. `KUBE-XLB-` is what kube-proxy before 1.24
/// had for `KUBE-EXT-` and `KUBE-SVL-`; such a chain still refers to chains that have to go.
const SERVICE_PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
    "KUBE-XLB-",
];

/// Whether this is a chain of one service port or endpoint, whoever wrote it.
pub(crate) fn is_service_chain(chain: &str) -> bool {
    SERVICE_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// The rules that masquerade what is left at the end of [`POSTROUTING`]. TCP keeps its port, for the reason that the
/// nftables mode gives; `random_fully`: the programs know the option.
pub(crate) fn masquerade(likeness: Likeness, random_fully: bool) -> Vec<String> {
    let rule = "-m comment --comment \"kubernetes service traffic requiring SNAT\" -j MASQUERADE";
    match (likeness, random_fully) {
        (_, false) => vec![rule.to_owned()],
        (Likeness::Rules, true) => vec![format!("{rule} --random-fully")],
        (Likeness::Outcomes, true) => vec![format!("-p tcp {rule}"), format!("{rule} --random-fully")],
    }
}

/// The program that writes a family's rules.
pub(crate) fn program(family: Family) -> Ip {
    match family {
        Family::V4 => Ip::V4,
        Family::V6 => Ip::V6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_services_are_recognised_and_others_are_not() {
        assert!(is_service_chain("KUBE-XLB-AQI2S6QIMU7PVVRP"));
        for chain in ["KUBE-SERVICES", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "DOCKER"] {
            assert!(!is_service_chain(chain), "{chain}");
        }
    }
}
