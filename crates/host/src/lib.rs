//! Ferry: host.

pub mod process;
pub mod sysctl;
