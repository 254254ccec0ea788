//! The node's kernel and its tools, spoken to: netlink, iptables, sysctls, modules, namespaces, this process.
//!
//! The only crate with `unsafe`, a netlink socket or a child process. It knows the languages and decides nothing: it has
//! never heard of a Service.

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

mod fuzz;

pub use fuzz::fuzz_netlink;
