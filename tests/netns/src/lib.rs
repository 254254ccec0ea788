//! The packet table: the built `ferry` in the lab's network, held to what its packets should do.
//!
//! Lives here: how to run `ferry` beside a cluster ([`Stage`]), the recorded scenarios as cases ([`recorded`]),
//! cases where the cluster changes under traffic ([`live`]) or another proxy takes over ([`switch`]), and what Kubernetes'
//! own end-to-end tests ask beyond that ([`sig_network`]). The mode is a
//! parameter of every case, so one table holds for all of them; the tests of this package run what this kernel has,
//! the virtual machine runs ipvs. May touch namespaces that the lab made. Always holds: what a case started ends with
//! it.

pub mod explain;
pub mod faults;
pub mod live;
pub mod newcomer;
pub mod objects;
mod proxy;
pub mod random;
pub mod recorded;
pub mod sig_network;
pub mod soak;
mod stage;
pub mod switch;
pub mod traffic;

use ferry_lab::oracle;

pub use proxy::{Proxy, program};
pub use stage::Stage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
    Ipvs,
    Userspace,
}

impl Mode {
    /// As in `--proxy-mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Nftables => "nftables",
            Mode::Iptables => "iptables",
            Mode::Ipvs => "ipvs",
            Mode::Userspace => "userspace",
        }
    }

    /// The mode of that name in `--proxy-mode`.
    pub fn named(name: &str) -> Option<Mode> {
        let all = [Mode::Nftables, Mode::Iptables, Mode::Ipvs, Mode::Userspace];
        all.into_iter().find(|mode| mode.as_str() == name)
    }

    /// The recorded mode whose decisions this one shares. The userspace mode that kube-proxy had is gone; ours
    /// decides as iptables mode does.
    fn like(self) -> oracle::Mode {
        match self {
            Mode::Nftables => oracle::Mode::Nftables,
            Mode::Iptables | Mode::Userspace => oracle::Mode::Iptables,
            Mode::Ipvs => oracle::Mode::Ipvs,
        }
    }
}
