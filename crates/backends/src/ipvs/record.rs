//! Which virtual servers are ours.
//!
//! The sets are the record: an address and port is in one of them before a virtual server is made for it and until after
//! that is gone, so what the kernel holds tells it at any moment, even after a crash, and for what kube-proxy left behind
//! too. Only node ports are in their sets without addresses; the addresses where we made servers for them are kept in a
//! small file of this boot and network namespace.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ferry_host::ipset::Entry;
use ferry_host::ipvs::Virtual;

use super::sets::Set;

/// The addresses where node ports were ever answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NodePortAddresses {
    /// As recorded.
    Recorded(BTreeSet<IpAddr>),
    /// There is no record: whoever wrote the sets (kube-proxy) took every address.
    Unknown,
}

/// Whether a virtual server was made by us or by kube-proxy.
pub(super) fn is_ours(
    at: &Virtual,
    in_set: &dyn Fn(&(Set, Entry)) -> bool,
    on_our_device: &BTreeSet<IpAddr>,
    node_ports: &NodePortAddresses,
) -> bool {
    const BY_ADDRESS: [Set; 5] = [
        Set::ClusterIp,
        Set::ExternalIp,
        Set::ExternalIpLocal,
        Set::LoadBalancer,
        Set::NodePortSctp,
    ];
    let entry = Entry::IpPort(at.address, at.protocol, at.port);
    if on_our_device.contains(&at.address) || BY_ADDRESS.iter().any(|set| in_set(&(*set, entry))) {
        return true;
    }
    let set = match i32::from(at.protocol) {
        libc::IPPROTO_TCP => Set::NodePortTcp,
        libc::IPPROTO_UDP => Set::NodePortUdp,
        _ => return false,
    };
    let answered = match node_ports {
        NodePortAddresses::Recorded(addresses) => addresses.contains(&at.address),
        NodePortAddresses::Unknown => true,
    };
    answered && in_set(&(set, Entry::Port(at.port)))
}

/// The file.
#[derive(Clone, Debug)]
pub(super) struct Record {
    directory: PathBuf,
}

impl Record {
    pub(super) fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Namespaces have numbers that no two have at a time; the directory is to be one that a boot empties.
    fn path(&self) -> std::io::Result<PathBuf> {
        let namespace = std::fs::metadata("/proc/thread-self/ns/net")?.ino();
        Ok(self
            .directory
            .join(format!("ipvs-node-port-addresses.{namespace}")))
    }

    pub(super) fn read(&self) -> NodePortAddresses {
        match self.path().and_then(std::fs::read_to_string) {
            Ok(text) => {
                NodePortAddresses::Recorded(text.lines().filter_map(|line| line.parse().ok()).collect())
            }
            Err(_) => NodePortAddresses::Unknown,
        }
    }

    /// Adds addresses. Whole or not at all: written beside, then renamed.
    pub(super) fn add<'a>(&self, addresses: impl IntoIterator<Item = &'a IpAddr>) -> std::io::Result<()> {
        let known = match self.read() {
            NodePortAddresses::Recorded(known) => Some(known),
            NodePortAddresses::Unknown => None,
        };
        let mut all = known.clone().unwrap_or_default();
        all.extend(addresses);
        if known.as_ref() == Some(&all) {
            return Ok(());
        }
        let path = self.path()?;
        // the namespace stays in the name: somebody in another one may be writing too
        let mut beside = path.clone().into_os_string();
        beside.push(".new");
        std::fs::create_dir_all(&self.directory)?;
        let text: String = all.iter().map(|address| format!("{address}\n")).collect();
        std::fs::write(&beside, text)?;
        std::fs::rename(beside, path)
    }

    pub(super) fn remove(&self) -> std::io::Result<()> {
        match std::fs::remove_file(self.path()?) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str, port: u16) -> Virtual {
        Virtual {
            address: address.parse().unwrap(),
            port,
            protocol: 6,
        }
    }

    #[test]
    fn a_namespace_does_not_write_to_anothers_file() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record::new(dir.path());
        let others = dir.path().join("ipvs-node-port-addresses.new");
        std::fs::write(&others, "192.0.2.99\n").unwrap();
        record.add(&["192.0.2.10".parse().unwrap()]).unwrap();
        let NodePortAddresses::Recorded(own) = record.read() else {
            panic!("nothing was recorded");
        };
        assert_eq!(own, BTreeSet::from(["192.0.2.10".parse().unwrap()]));
        assert_eq!(std::fs::read_to_string(others).unwrap(), "192.0.2.99\n");
    }

    #[test]
    fn ours_are_in_the_sets_or_on_our_device() {
        let vip = at("10.96.0.1", 80);
        let entries = BTreeSet::from([
            (Set::ClusterIp, Entry::IpPort(vip.address, 6, 80)),
            (Set::NodePortTcp, Entry::Port(30080)),
        ]);
        let in_set = |entry: &(Set, Entry)| entries.contains(entry);
        let device = BTreeSet::from(["10.96.0.2".parse().unwrap()]);
        let recorded = NodePortAddresses::Recorded(BTreeSet::from(["192.0.2.10".parse().unwrap()]));
        let ours = |at: Virtual, node_ports: &NodePortAddresses| is_ours(&at, &in_set, &device, node_ports);
        assert!(ours(vip, &recorded));
        assert!(ours(at("10.96.0.2", 9), &recorded), "on kube-ipvs0");
        assert!(ours(at("192.0.2.10", 30080), &recorded));
        assert!(
            ours(at("192.0.2.99", 30080), &NodePortAddresses::Unknown),
            "left by kube-proxy"
        );
        for foreign in [at("192.0.2.99", 30080), at("10.96.0.1", 81), at("192.0.2.10", 80)] {
            assert!(!ours(foreign, &recorded), "{foreign}");
        }
        assert!(
            !ours(Virtual { protocol: 17, ..vip }, &recorded),
            "another protocol"
        );
    }

    #[test]
    fn addresses_are_remembered_until_removed() {
        let directory = std::env::temp_dir().join(format!("ferry-record-{}", std::process::id()));
        let record = Record::new(&directory);
        assert_eq!(record.read(), NodePortAddresses::Unknown);
        let (one, two): (IpAddr, IpAddr) = ("192.0.2.10".parse().unwrap(), "fd00::1".parse().unwrap());
        record.add(&[one]).unwrap();
        record.add(&[two]).unwrap();
        assert_eq!(
            record.read(),
            NodePortAddresses::Recorded(BTreeSet::from([one, two]))
        );
        record.remove().unwrap();
        record.remove().unwrap();
        assert_eq!(record.read(), NodePortAddresses::Unknown);
        std::fs::remove_dir(directory).unwrap();
    }
}
