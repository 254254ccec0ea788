//! Userspace mode as a whole: plans in, connections through. Everything happens in network namespaces of the tests.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods
)]

mod doors;
mod fixture;
mod handover;
mod options;
mod portals;
mod random;
