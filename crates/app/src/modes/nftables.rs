//! The nftables mode.

use anyhow::ensure;
use ferry_backends::Backend;
use ferry_backends::nftables::{Nftables, Options, TABLE, listing};
use ferry_host::nftables::{Client, Family};
use ferry_model::Policy;

use super::{
    Conntrack, Demo, Descriptor, HOURLY, KernelPart, Metrics, Sabotage, owns_no_chain, silent,
    supports_every_family,
};
use crate::config::{Section, Settings};

/// kube-proxy's way past its check of the kernel's version.
const SKIP_KERNEL_CHECK: &str = "KUBE_PROXY_NFTABLES_SKIP_KERNEL_VERSION_CHECK";

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "nftables",
    section: Section::Nftables,
    policy,
    open: |settings, alarm| Ok(Box::new(Nftables::open(options(settings), alarm)?)),
    clean_up: |_, _| Nftables::open(Options::default(), silent())?.cleanup(),
    listing: |settings, plan, family| listing(plan, family, &options(settings)),
    owns_chain: owns_no_chain,
    supports: supports_every_family,
    kernel: Some(KernelPart {
        oldest: ferry_backends::nftables::OLDEST_KERNEL,
        check: || {
            let mut client = Client::open().map_err(|error| error.to_string())?;
            client.generation().map(drop).map_err(|error| error.to_string())
        },
        remedy: "modprobe nf_tables, and run as root or with the capability NET_ADMIN",
    }),
    writes_iptables: false,
    relays: false,
    conntrack: Conntrack::Swept,
    full_sync_period: |_| HOURLY,
    metrics: Metrics {
        sync_failures: (
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "Cumulative proxy nftables sync failures",
        ),
        shown: &[
            "kubeproxy_sync_full_proxy_rules_duration_seconds",
            "kubeproxy_sync_partial_proxy_rules_duration_seconds",
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        ],
        packets: &[],
    },
    announcement: None,
    demo: Some(Demo {
        sabotage: Some(Sabotage {
            title: "Someone deletes the proxy's table",
            run: delete_table,
        }),
    }),
};

fn policy(settings: &Settings) -> Policy {
    let policy = Policy::nftables();
    if settings.nftables.localhost_node_ports {
        policy
    } else {
        policy.without_localhost_node_ports()
    }
}

fn options(settings: &Settings) -> Options {
    Options {
        masquerade_bit: settings.nftables.masquerade_bit,
        likeness: settings.likeness,
        fast_path: settings.nftables.fast_path,
        counters: settings.traffic_counters,
        check_kernel: std::env::var_os(SKIP_KERNEL_CHECK).is_none_or(|value| value.is_empty()),
    }
}

fn delete_table() -> anyhow::Result<()> {
    let deleted = Client::open()?.delete_table(Family::Ip, TABLE)?;
    ensure!(deleted, "there was no table to delete");
    Ok(())
}
