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
fn the_commands_for_newcomers_do_what_they_are_shown_to_do() {
    holds(ferry_netns::newcomer::run(&["README.md", "docs/first-steps.md"]));
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

#[test]
fn a_foreign_drop_with_nftables() {
    holds(explain::foreign_drop(Nftables));
}

#[test]
fn a_foreign_drop_with_iptables() {
    holds(explain::foreign_drop(Iptables));
}

#[test]
fn many_services_with_nftables() {
    holds(explain::many_services(Nftables));
}
