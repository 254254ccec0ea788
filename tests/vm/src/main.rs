//! The tests that need a kernel with IPVS: a program that `cargo xtask vm` runs inside a guest.
//!
//! A program and not `#[test]`s, so that a plain `cargo test` on a kernel without IPVS neither fails nor skips them.
//! May touch everything: the guest is thrown away. Each case works in network namespaces of its own all the same.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backend;
mod cases;
mod draining;
mod facts;
mod host;
mod packets;
mod privileges;
mod scale;

use std::process::ExitCode;

use cases::{Room, Share, Wanted};

fn main() -> ExitCode {
    let Some(wanted) = Wanted::parse(std::env::args().skip(1).collect()) else {
        eprintln!(
            "usage: ferry-vm-tests [--share nf-tables|legacy [--claims DIRECTORY] | PART-OF-A-NAME...]"
        );
        return ExitCode::from(2);
    };
    let in_company = [
        cases::of(host::CASES, &[Share::NfTables]),
        cases::of(backend::CASES, &[Share::Legacy]),
        cases::of(draining::CASES, &[Share::Legacy]),
        cases::of(privileges::CASES, &[Share::Legacy]),
        packets::recorded(),
    ];
    // Cases that watch the clock: in company an emulated machine is too slow for any promise.
    let alone = [
        cases::of(scale::CASES, &[Share::Legacy]),
        packets::live(),
        packets::sig_network(),
        vec![packets::switch(), packets::fast_path()],
    ];
    let rooms = [
        Room {
            cases: in_company.into_iter().flatten().collect(),
            at_a_time: 4,
        },
        Room {
            cases: alone.into_iter().flatten().collect(),
            at_a_time: 1,
        },
    ];
    cases::run(&rooms, &wanted)
}
