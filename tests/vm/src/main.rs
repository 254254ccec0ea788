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
mod scale;

use std::process::ExitCode;

use cases::Room;

fn main() -> ExitCode {
    let filters: Vec<String> = std::env::args().skip(1).collect();
    let mut rooms: Vec<Room> = [host::CASES, backend::CASES, draining::CASES, scale::CASES]
        .map(Room::of)
        .into();
    rooms.extend([packets::room(), packets::live_room()]);
    cases::run(&rooms, &filters)
}
