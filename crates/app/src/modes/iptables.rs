//! The iptables mode.

use std::time::Duration;

use ferry_backends::iptables::{Iptables, Options, listing};
use ferry_model::Policy;

use super::{Conntrack, Demo, Descriptor, HOURLY, Metrics, owns_no_chain, silent, supports_iptables};
use crate::config::{Section, Settings};

/// How often legacy iptables, which tells nothing by itself, is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "iptables",
    section: Section::Iptables,
    policy,
    open: |settings, alarm| Ok(Box::new(Iptables::open(options(settings), alarm))),
    clean_up: |settings, keep| Iptables::open(options(settings), silent()).cleanup_beside(keep),
    listing: |settings, plan, family| listing(plan, family, &options(settings)),
    owns_chain: owns_no_chain,
    supports: supports_iptables,
    kernel: None,
    writes_iptables: true,
    relays: false,
    conntrack: Conntrack::Swept,
    full_sync_period: |_| HOURLY,
    metrics: Metrics {
        sync_failures: (
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "Cumulative proxy iptables restore failures",
        ),
        shown: &[
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "kubeproxy_sync_proxy_rules_iptables_total",
            "kubeproxy_sync_proxy_rules_iptables_last",
        ],
        packets: &[
            (
                "ct_state_invalid_dropped_pkts",
                "kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
                "packets dropped by iptables to work around conntrack problems",
            ),
            (
                "localhost_nps_accepted_pkts",
                "kubeproxy_iptables_localhost_nodeports_accepted_packets_total",
                "Number of packets accepted on nodeports of loopback interface",
            ),
        ],
    },
    announcement: None,
    demo: Some(Demo { sabotage: None }),
};

fn policy(settings: &Settings) -> Policy {
    let policy = Policy::iptables();
    if settings.iptables.localhost_node_ports {
        policy
    } else {
        policy.without_localhost_node_ports()
    }
}

fn options(settings: &Settings) -> Options {
    Options {
        masquerade_bit: settings.iptables.masquerade_bit,
        likeness: settings.likeness,
        poll: POLL_INTERVAL,
        ..Options::default()
    }
}
