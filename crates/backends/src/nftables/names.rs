//! Names of everything in the table. Where kube-proxy has the same object it has the same name and type, so that
//! either program can take the table over from the other.

use data_encoding::BASE32;
use ferry_model::PortName;
use sha2::{Digest, Sha256};

use super::ruleset::Name;

/// Our table: the name that kube-proxy uses, so that one of the two never works beside the other.
pub const TABLE: &str = "kube-proxy";
/// The table of the fast path, and its flowtable.
pub(super) const FAST_PATH: &str = "ferry-fast-path";
pub(super) const TABLE_COMMENT: &str = "rules for kube-proxy";

pub(super) const CLUSTER_IPS: &str = "cluster-ips";
pub(super) const NODE_PORT_IPS: &str = "nodeport-ips";
pub(super) const HAIRPIN: &str = "hairpin-connections";
pub(super) const SERVICE_IPS: &str = "service-ips";
pub(super) const SERVICE_NODE_PORTS: &str = "service-nodeports";
pub(super) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
pub(super) const NO_ENDPOINT_NODE_PORTS: &str = "no-endpoint-nodeports";
pub(super) const FIREWALL_IPS: &str = "firewall-ips";
pub(super) const SERVICE_CIDRS: &str = "service-cidrs";
pub(super) const PROTOCOLS: &str = "protocols";
pub(super) const ENDPOINTS: &str = "endpoints";
pub(super) const NODE_PORT_ENDPOINTS: &str = "nodeport-endpoints";
pub(super) const FRONTENDS: &str = "frontends";
pub(super) const NODE_PORTS: &str = "nodeports";
pub(super) const SHORT_CIRCUITS: &str = "short-circuits";
pub(super) const NODE_PORT_SHORT_CIRCUITS: &str = "nodeport-short-circuits";
pub(super) const BALANCERS: &str = "balancers";
pub(super) const NODE_PORT_BALANCERS: &str = "nodeport-balancers";
pub(super) const SHORT_CIRCUIT_BALANCERS: &str = "short-circuit-balancers";
pub(super) const NODE_PORT_SHORT_CIRCUIT_BALANCERS: &str = "nodeport-short-circuit-balancers";

pub(super) const FILTER_PREROUTING: &str = "filter-prerouting-pre-dnat";
pub(super) const FILTER_OUTPUT_PRE_DNAT: &str = "filter-output-pre-dnat";
pub(super) const FILTER_INPUT: &str = "filter-input";
pub(super) const FILTER_FORWARD: &str = "filter-forward";
pub(super) const FILTER_OUTPUT: &str = "filter-output";
pub(super) const NAT_PREROUTING: &str = "nat-prerouting";
pub(super) const NAT_OUTPUT: &str = "nat-output";
pub(super) const NAT_POSTROUTING: &str = "nat-postrouting";
pub(super) const NODE_PORT_CHECK: &str = "nodeport-endpoints-check";
pub(super) const SERVICE_CHECK: &str = "service-endpoints-check";
pub(super) const FIREWALL_CHECK: &str = "firewall-check";
pub(super) const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
pub(super) const SERVICES: &str = "services";
pub(super) const MASQUERADING: &str = "masquerading";
pub(super) const REJECT: &str = "reject-chain";
pub(super) const MASQUERADE: &str = "masquerade-chain";
pub(super) const BALANCE: &str = "balance";
pub(super) const NODE_PORT_BALANCE: &str = "nodeport-balance";
pub(super) const SHORT_CIRCUIT: &str = "short-circuit";
pub(super) const NODE_PORT_SHORT_CIRCUIT: &str = "nodeport-short-circuit";

/// The kernel's limit is 255 bytes; prefixes need some of them.
const LONGEST: usize = 240;

/// The part of a name that tells a service port: a hash, then as much of the readable form as fits.
pub(super) fn of_port(port: &PortName) -> String {
    hashed(&plain(port))
}

/// A name that tells a list of networks.
pub(super) fn of_content(prefix: &str, content: &[u8]) -> Name {
    let digest = BASE32.encode(&Sha256::digest(content));
    format!("{prefix}{}", &digest[..16]).into()
}

fn plain(port: &PortName) -> String {
    format!("{}/{}/{}", port.service, port.protocol, port.port)
}

fn hashed(text: &str) -> String {
    let digest = BASE32.encode(&Sha256::digest(text.as_bytes()));
    let mut name = format!("{}-{text}", &digest[..8]);
    if name.len() > LONGEST {
        name.truncate(name.floor_char_boundary(LONGEST - 3));
        name.push_str("...");
    }
    name
}

#[cfg(test)]
mod tests {
    use ferry_model::{Protocol, ServiceName};

    use super::*;

    fn port(namespace: &str, name: &str, port: &str) -> PortName {
        PortName {
            service: ServiceName::new(namespace, name),
            port: port.into(),
            protocol: Protocol::Tcp,
        }
    }

    /// The hashes are kube-proxy's.
    #[test]
    fn names_are_those_of_kube_proxy() {
        let testing = port("testing", "service", "http");
        assert_eq!(of_port(&port("ns1", "svc1", "p80")), "ULMVA6XW-ns1/svc1/tcp/p80");
        assert_eq!(of_port(&testing), "P4ZYZVCF-testing/service/tcp/http");
    }

    #[test]
    fn long_names_are_cut_but_stay_apart() {
        let long = |last: &str| {
            of_port(&port(
                &"n".repeat(120),
                &"s".repeat(120),
                &format!("{}{last}", "p".repeat(20)),
            ))
        };
        assert_eq!(long("a").len(), LONGEST);
        assert!(long("a").ends_with("..."));
        assert_ne!(long("a"), long("b"));
    }
}
