//! Faults at every step of a start, in every mode that this kernel has.

#![allow(clippy::panic)]

use ferry_netns::Mode::{self, Iptables, Nftables, Userspace};
use ferry_netns::faults::{crash_points, errors_at_every_message};

fn crashes(mode: Mode) {
    match crash_points(mode) {
        Ok(points) => println!("{}: {points} crash points", mode.as_str()),
        Err(e) => panic!("{e:#}"),
    }
}

fn errors(mode: Mode) {
    match errors_at_every_message(mode, "ENOBUFS") {
        Ok(messages) => println!("{}: {messages} messages failed in turn", mode.as_str()),
        Err(e) => panic!("{e:#}"),
    }
}

#[test]
fn killed_at_every_step_in_nftables_mode() {
    crashes(Nftables);
}

#[test]
fn killed_at_every_step_in_iptables_mode() {
    crashes(Iptables);
}

#[test]
fn killed_at_every_step_in_userspace_mode() {
    crashes(Userspace);
}

#[test]
fn every_message_fails_in_nftables_mode() {
    errors(Nftables);
}

#[test]
fn every_message_fails_in_iptables_mode() {
    errors(Iptables);
}

#[test]
fn every_message_fails_in_userspace_mode() {
    errors(Userspace);
}
