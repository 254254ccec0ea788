//! Ferry: host.

pub mod iptables;
pub mod netlink;
pub mod nfacct;
pub mod process;
pub mod route;
pub mod sysctl;
