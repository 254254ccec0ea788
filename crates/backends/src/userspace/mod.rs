//! Userspace mode.

mod access;
mod balancer;
mod recent;
mod relay;
mod traffic;

pub use access::{Access, Home};
pub use balancer::{Balancer, Pools, Target};
pub use relay::{Door, Listening, Port, PortOptions, Relay, Serving, Settings};
pub use traffic::{Counters, Totals};
