//! Names of chains: those that everybody shares, and those hashed from a service port.

use data_encoding::BASE32;
use ferry_model::PortName;
use sha2::{Digest, Sha256};

pub(super) use crate::chains::*;
pub(super) use ferry_host::iptables::Table;

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
}
