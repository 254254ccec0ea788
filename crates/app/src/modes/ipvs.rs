//! The ipvs mode.

use ferry_backends::ipvs::{self, Ipvs, Options};
use ferry_host::ipvs::Timeouts;
use ferry_model::Policy;

use super::{Conntrack, Descriptor, KernelPart, Metrics, run_directory, supports_iptables};
use crate::config::{Section, Settings};
use crate::events::Event;

pub(super) static DESCRIPTOR: Descriptor = Descriptor {
    name: "ipvs",
    section: Section::Ipvs,
    policy: |_| Policy::ipvs(),
    open: |settings, alarm| Ok(Box::new(Ipvs::open(options(settings), alarm)?)),
    clean_up: |settings, _| ipvs::cleanup(&run_directory(settings)),
    listing: |settings, plan, family| ipvs::listing(plan, family, &options(settings)),
    owns_chain: ipvs::owns_chain,
    supports: supports_iptables,
    kernel: Some(KernelPart {
        // before, connections to pods that are gone are used again
        oldest: (4, 1),
        check: || {
            let mut kernel = ferry_host::ipvs::Ipvs::open().map_err(|error| error.to_string())?;
            kernel.services().map(drop).map_err(|error| error.to_string())
        },
        remedy: "modprobe ip_vs, and name it in /etc/modules-load.d/ so that it is there after the next boot",
    }),
    writes_iptables: true,
    relays: false,
    // It removes them when answers on their way have arrived; a flow that goes earlier takes its masquerading with it,
    // and the answer is lost.
    conntrack: Conntrack::SweptButEndpoints,
    // IPVS tells nobody what changed in it.
    full_sync_period: |settings| settings.sync_period,
    metrics: Metrics {
        sync_failures: (
            "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
            "Cumulative proxy iptables restore failures",
        ),
        shown: &[],
        packets: &[],
    },
    announcement: Some(Event::ipvs_deprecation),
    // Not every machine has its kernel modules.
    demo: None,
};

fn options(settings: &Settings) -> Options {
    Options {
        scheduler: settings.ipvs.scheduler.clone(),
        exclude_cidrs: settings.ipvs.exclude_cidrs.clone(),
        strict_arp: settings.ipvs.strict_arp,
        timeouts: Timeouts {
            tcp: settings.ipvs.tcp_timeout,
            tcp_fin: settings.ipvs.tcp_fin_timeout,
            udp: settings.ipvs.udp_timeout,
        },
        masquerade_mark: 1 << (settings.iptables.masquerade_bit & 31),
        likeness: settings.likeness,
        repair_every: Some(settings.sync_period),
        record: run_directory(settings),
        ..Options::default()
    }
}
