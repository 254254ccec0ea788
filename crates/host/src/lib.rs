//! Ferry: host.

pub mod netlink;
pub mod process;
pub mod sysctl;
