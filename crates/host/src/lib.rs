//! Ferry: host.

pub mod conntrack;
pub mod datagram;
pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub mod modules;
pub mod netlink;
pub mod netns;
pub mod nfacct;
pub mod nftables;
pub mod process;
pub mod route;
pub mod sysctl;
