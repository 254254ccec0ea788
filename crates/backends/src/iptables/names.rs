//! Names of tables and chains: those that everybody shares, and those hashed from a service port.

use data_encoding::BASE32;
use ferry_model::PortName;
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Table {
    Mangle,
    Filter,
    Nat,
}

impl Table {
    /// In the order in which a document has them: what rejects comes before what stops redirecting.
    pub(super) const ALL: [Table; 3] = [Table::Mangle, Table::Filter, Table::Nat];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Table::Mangle => "mangle",
            Table::Filter => "filter",
            Table::Nat => "nat",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Table> {
        Table::ALL.into_iter().find(|table| table.as_str() == name)
    }
}

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(super) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(super) const FORWARD: &str = "KUBE-FORWARD";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
pub(super) const KUBELET_FIREWALL: &str = "KUBE-FIREWALL";
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";

/// Chains in the nat table that belong to one service port or endpoint. `KUBE-XLB-` is what kube-proxy before 1.24
/// had for `KUBE-EXT-` and `KUBE-SVL-`; such a chain still refers to chains that have to go.
pub(super) const SERVICE_PREFIXES: [&str; 6] = [
    "KUBE-SVC-",
    "KUBE-SVL-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-SEP-",
    "KUBE-XLB-",
];

/// Whether this is a chain of one service port or endpoint, whoever wrote it.
pub(super) fn is_service_chain(chain: &str) -> bool {
    SERVICE_PREFIXES.iter().any(|prefix| chain.starts_with(prefix))
}

/// A chain that rules of many services share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Shared {
    FilterServices,
    FilterExternal,
    FilterNodePorts,
    FilterFirewall,
    NatServices,
    NatNodePorts,
}

impl Shared {
    pub(super) const ALL: [Shared; 6] = [
        Shared::FilterServices,
        Shared::FilterExternal,
        Shared::FilterNodePorts,
        Shared::FilterFirewall,
        Shared::NatServices,
        Shared::NatNodePorts,
    ];

    pub(super) fn table(self) -> Table {
        match self {
            Shared::FilterServices
            | Shared::FilterExternal
            | Shared::FilterNodePorts
            | Shared::FilterFirewall => Table::Filter,
            Shared::NatServices | Shared::NatNodePorts => Table::Nat,
        }
    }

    pub(super) fn chain(self) -> &'static str {
        match self {
            Shared::FilterServices | Shared::NatServices => SERVICES,
            Shared::FilterExternal => EXTERNAL_SERVICES,
            Shared::FilterNodePorts | Shared::NatNodePorts => NODE_PORTS,
            Shared::FilterFirewall => PROXY_FIREWALL,
        }
    }
}

/// What the names of a service port's chains are hashed from; those of endpoints add the endpoint.
pub(super) fn hashed(name: &PortName) -> String {
    let (service, port, protocol) = (&name.service, &*name.port, name.protocol.as_str());
    let colon = if port.is_empty() { "" } else { ":" };
    [service.namespace(), "/", service.name(), colon, port, protocol].concat()
}

/// A chain's name: a prefix, and the hash of these texts in a row.
pub(super) fn hashed_chain(prefix: &str, texts: &[&str]) -> String {
    let mut sha = Sha256::new();
    texts.iter().for_each(|text| sha.update(text));
    let mut chain = String::with_capacity(prefix.len() + 16);
    chain.push_str(prefix);
    // Ten bytes are sixteen letters.
    BASE32.encode_append(&sha.finalize()[..10], &mut chain);
    chain
}

#[cfg(test)]
mod tests {
    use ferry_model::{Protocol, ServiceName};

    use super::*;

    fn name(service: &str, port: &str, protocol: Protocol) -> PortName {
        let (namespace, service) = service.split_once('/').unwrap();
        PortName {
            service: ServiceName::new(namespace, service),
            port: port.into(),
            protocol,
        }
    }

    #[test]
    fn hashes_are_kube_proxys() {
        let hash = |service, port, protocol| hashed_chain("", &[&hashed(&name(service, port, protocol))]);
        assert_eq!(hash("ns1/svc1", "p80", Protocol::Tcp), "XPGD46QRK7WJZT7O");
        assert_eq!(hash("ns1/svc1", "", Protocol::Tcp), "AQI2S6QIMU7PVVRP");
        assert_eq!(hash("ns1/svc1", "", Protocol::Udp), "A2PEVXD55OHK2IVW");
        assert_eq!(hash("ns1/svc1", "p80", Protocol::Udp), "OJWW7NSBVZTDHXNW");
        assert_eq!(
            hash("default/kubernetes", "https", Protocol::Tcp),
            "NPX46M4PTMTKRN6Y"
        );
        assert_eq!(
            hash("kube-system/kube-dns", "dns", Protocol::Udp),
            "TCOU7JCQXEZGVUNU"
        );
        let port = hashed(&name("ns1/svc1", "p80", Protocol::Tcp));
        let endpoint = |text: &str| hashed_chain("KUBE-SEP-", &[&port, text]);
        assert_eq!(endpoint("10.180.0.1:80"), "KUBE-SEP-SXIVWICOYRO3J4NJ");
        assert_eq!(endpoint("[fd00:10:180::1]:80"), "KUBE-SEP-OGYCNMB4EMRUSJ6N");
    }

    #[test]
    fn chains_of_services_are_recognised_and_others_are_not() {
        assert!(is_service_chain("KUBE-XLB-AQI2S6QIMU7PVVRP"));
        for chain in ["KUBE-SERVICES", "KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "DOCKER"] {
            assert!(!is_service_chain(chain), "{chain}");
        }
    }
}
