//! Userspace mode: a relay between sockets, for places where the kernel cannot or may not forward.
//!
//! The plan is rendered into doors (`render`, `ruleset`), doors are opened, changed and closed (`live`), what comes in
//! through them is relayed to endpoints in turn (`crate::relay`), and where rules are to lead traffic to the doors,
//! they are written (`portals`). Touches sockets, addresses of the loopback interface and netfilter rules.
//! Always holds: no connection is cut for a change that does not concern it, and none waits for another.

mod filter;
mod handover;
mod listing;
mod live;
mod loopback;
mod portals;
mod ports;
mod render;
mod ruleset;
mod wire;

pub use listing::listing;
pub use live::{Options, Userspace};
pub use portals::owns_chain;
pub use ruleset::Ingress;
#[doc(hidden)]
pub use wire::fuzz_handover;

pub use crate::relay::Settings;
