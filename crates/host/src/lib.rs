//! Ferry: host.

pub mod netlink;
pub mod process;
pub mod route;
pub mod sysctl;
