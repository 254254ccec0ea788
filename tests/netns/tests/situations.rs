//! `ferry explain` names what is wrong, in every mode that this kernel has.

#![allow(clippy::panic)]

use ferry_netns::Mode::{Iptables, Nftables, Userspace};
use ferry_netns::explain;

fn holds(outcome: anyhow::Result<()>) {
    if let Err(e) = outcome {
        panic!("{e:#}");
    }
}

#[test]
fn wrong_objects_with_nftables() {
    holds(explain::wrong_objects(Nftables));
}

#[test]
fn wrong_objects_with_iptables() {
    holds(explain::wrong_objects(Iptables));
}

#[test]
fn wrong_objects_with_userspace() {
    holds(explain::wrong_objects(Userspace));
}

#[test]
fn a_broken_node_with_nftables() {
    holds(explain::broken_node(Nftables));
}

#[test]
fn a_broken_node_with_iptables() {
    holds(explain::broken_node(Iptables));
}
