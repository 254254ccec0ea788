//! The tests that need a kernel with IPVS: a program that `cargo xtask vm` runs inside a guest.
//!
//! A program and not `#[test]`s, so that a plain `cargo test` on a kernel without IPVS neither fails nor skips them.
//! May touch everything: the guest is thrown away. Each case works in network namespaces of its own all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cases;
mod host;

use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = std::env::args().nth(1);
    cases::run(&[host::CASES], filter.as_deref())
}
